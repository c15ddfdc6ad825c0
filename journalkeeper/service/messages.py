# SPDX-License-Identifier: LGPL-2.1-or-later
"""The worker thread's messages to the event loop, and how each changes the service's state. Pure."""

from __future__ import annotations

from typing import NamedTuple

from journalkeeper.health.evidence import Failure, Present
from journalkeeper.health.verdict import has_failed, still_failing
from journalkeeper.model import Result, Window
from journalkeeper.model.progress import Progress
from journalkeeper.model.recorded import Counters
from journalkeeper.service.jobs import FileDone
from journalkeeper.service.snapshot import Findings, Snapshot


class Began(NamedTuple):
    """A run of the service has files to work on."""


class Looked(NamedTuple):
    """A run over everything ended; `present` is the state that it left, `counters` the totals of the saving."""

    findings: Findings
    missing: tuple[str, ...]
    intake_p99_us: int
    present: Present
    counters: Counters | None = None


class Failed(NamedTuple):
    """A run failed as a whole because of `problem`, at `when_us`.

    If another process holds what the run needs, `busy_limit_us` is how long that is normal, else 0.
    """

    problem: str
    when_us: int
    busy_limit_us: int = 0


class NotOnBtrfs(NamedTuple):
    """A look ended at `path`: no journal directory is on btrfs."""

    path: str


class Progressed(NamedTuple):
    """A job made progress."""

    job: int
    progress: Progress


class FlushesLooked(NamedTuple):
    """The flush timers were read: the window of each instance, and when the first journald flushes."""

    windows: tuple[Window, ...]
    next_flush_us: int


Message = Began | FlushesLooked | Looked | Failed | FileDone | NotOnBtrfs | Progressed


def after(state: Snapshot, message: Message) -> Snapshot:
    """Return `state` as `message` changes it."""
    match message:
        case Began():
            return state._replace(working=True)
        case Looked(findings, missing, intake_p99_us, present, counters):
            failing = {one.path: one for one in still_failing(state.present.failures, findings.decided)}
            failing |= {one.path: one for one in present.failures}
            return state._replace(
                working=False,
                findings=findings,
                missing=missing,
                intake_p99_us=intake_p99_us,
                present=present._replace(failures=tuple(failing.values()), paused=state.present.paused),
                counters=counters or state.counters,
            )
        case FlushesLooked(windows, next_flush_us):
            return state._replace(windows=windows, next_flush_us=next_flush_us)
        case Failed():
            return state._replace(working=False, present=_present_after_failure(state.present, message))
        case FileDone(outcome, when_us):
            failures = [one for one in state.present.failures if one.path != outcome.path]
            if has_failed(outcome):
                failures.append(Failure(outcome.path, outcome.reason, outcome.detail))
            done = outcome.result is Result.DONE
            tally = state.tally.add(outcome, when_us) if done else state.tally
            lacking = tuple(one for one in state.present.lacking_space if one.path != outcome.path)
            present = state.present._replace(failures=tuple(failures), lacking_space=lacking)
            return state._replace(tally=tally, present=present)
        case NotOnBtrfs(path):
            present = Present(foreign=path, paused=state.present.paused)
            state = state._replace(working=False, findings=None, present=present)
        case Progressed():
            pass
    return state


def _present_after_failure(present: Present, failed: Failed) -> Present:
    if not failed.busy_limit_us:
        return present._replace(problem=failed.problem, busy="")
    since_us = present.busy_since_us if present.busy else failed.when_us
    held = present._replace(busy=failed.problem, busy_since_us=since_us, busy_limit_us=failed.busy_limit_us)
    return held._replace(problem="")
