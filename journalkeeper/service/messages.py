# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the worker thread reports to the event loop, and what the service knows after each. Pure."""

from __future__ import annotations

from typing import NamedTuple

from journalkeeper.model import Result, Window
from journalkeeper.model.progress import Progress
from journalkeeper.model.recorded import Counters
from journalkeeper.service.jobs import FileDone
from journalkeeper.service.snapshot import Findings, Snapshot


class Began(NamedTuple):
    """A run of the service has files to work on."""


class Looked(NamedTuple):
    """A run over everything is over. `limits` says in words which limits are reached, `counters` what was saved."""

    findings: Findings
    missing: tuple[str, ...]
    intake_p99_us: int
    limits: tuple[str, ...]
    counters: Counters | None = None


class Failed(NamedTuple):
    """A run came to nothing because of `problem`; "" if another process held the lock."""

    problem: str


class Progressed(NamedTuple):
    """A job got on."""

    job: int
    progress: Progress


class FlushesLooked(NamedTuple):
    """The flush timers were looked at: the window of each instance, and when the first journald flushes."""

    windows: tuple[Window, ...]
    next_flush_us: int


Message = Began | FlushesLooked | Looked | Failed | FileDone | Progressed


def after(state: Snapshot, message: Message) -> Snapshot:
    """What the service knows after `message`."""
    match message:
        case Began():
            return state._replace(working=True)
        case Looked(findings, missing, intake_p99_us, limits, counters):
            return state._replace(
                working=False,
                problem="",
                findings=findings,
                missing=missing,
                intake_p99_us=intake_p99_us,
                limits=limits,
                counters=counters or state.counters,
            )
        case FlushesLooked(windows, next_flush_us):
            return state._replace(windows=windows, next_flush_us=next_flush_us)
        case Failed(problem):
            return state._replace(working=False, problem=problem)
        case FileDone(outcome, when_us) if outcome.result is Result.DONE:
            return state._replace(tally=state.tally.add(outcome, when_us))
        case FileDone() | Progressed():
            return state
