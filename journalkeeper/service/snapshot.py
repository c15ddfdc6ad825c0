# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service's state as the bus shows it: one immutable record, and how the worker's messages change it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from journalkeeper import __version__
from journalkeeper.health.evidence import Obstacle, Present
from journalkeeper.health.finding import FIRST_LOOK, Verdict
from journalkeeper.health.verdict import describe_files, describe_foreign, find_failures, judge_present, keep_failures
from journalkeeper.model import Action, JournalFile, Outcome, Result, Skip, Volume, Window
from journalkeeper.model.manager import Manager
from journalkeeper.model.run import Counters, Progress, Report

Doing = Action | Skip | Outcome

STANDING: Final = ("configuration", "unwatched", "unwritable", "full", "silent", "paused")
"""The facts in `Snapshot.present` that do not depend on the last run."""


class Findings(NamedTuple):
    """The result of the last look: the files, and the decision or outcome for each, by path.

    `known` has the numbers that the look determines. `waits_for` is the sentence of `describe_waits` on the files that
    wait. `missing` are the directories that do not exist.
    """

    files: Mapping[str, JournalFile]
    decided: Mapping[str, Doing]
    known: Manager
    waits_for: str = ""
    missing: tuple[str, ...] = ()


class Snapshot(NamedTuple):
    """The state of the service. `working` is True while files are worked on; `verdict` judges `present`.

    `windows` are those of the last look at the flush timers. `last_run_us` is the time of the last action since the
    service started, and the bytes are the sums of all. `counters` are those of the last look.
    """

    directories: tuple[str, ...]
    findings: Findings | None = None
    counters: Counters | None = None
    last_run_us: int = 0
    bytes_written: int = 0
    bytes_reclaimed: int = 0
    working: bool = False
    windows: tuple[Window, ...] = ()
    next_flush_us: int = 0
    present: Present = Present(looked=False)
    verdict: Verdict = judge_present(Present(looked=False), 0)

    @property
    def headline(self) -> str:
        """The verdict in one line: "Act: ...", "Unknown: ..." or "OK: ...", with the service's state before a look."""
        if self.findings is None:
            return self.verdict.headline(f"{describe_state(self._replace(working=False))[1]}.")
        return self.verdict.headline(describe_files(len(self.findings.files), self.findings.waits_for))


def describe_state(snapshot: Snapshot) -> tuple[str, str]:
    """Return the first true state of working (no reason), paused, degraded, waiting, idle, and its reason or "".

    Before a look it is waiting, or idle with a reason if no journal is on btrfs.
    """
    found = snapshot.findings
    if snapshot.working:
        return "working", ""
    if snapshot.present.paused:
        return "paused", snapshot.present.paused
    if snapshot.present.problem:
        return "degraded", snapshot.present.problem
    if found is None:
        foreign = snapshot.present.foreign
        return ("idle", describe_foreign([foreign])) if foreign else ("waiting", FIRST_LOOK.why)
    if found.missing:
        return "waiting", f"waiting for {' and '.join(found.missing)} to appear"
    return ("waiting", found.waits_for) if found.waits_for else ("idle", "")


def make_manager(snapshot: Snapshot) -> Manager:
    """Return the D-Bus properties from the snapshot and its `findings.known`, whose values are None before a look."""
    word, reason = describe_state(snapshot)
    known = Manager() if snapshot.findings is None else snapshot.findings.known
    counters = snapshot.counters
    return known._replace(
        version=__version__,
        health=snapshot.verdict.health,
        health_reasons=snapshot.verdict.reasons,
        findings=snapshot.verdict.findings,
        state=word,
        state_reason=reason,
        directories=list(snapshot.directories),
        window_open=any(one.open for one in snapshot.windows),
        next_flush_us=snapshot.next_flush_us,
        last_run_us=snapshot.last_run_us,
        bytes_written=snapshot.bytes_written,
        bytes_reclaimed=snapshot.bytes_reclaimed,
        bytes_reclaimed_total=None if counters is None else max(0, counters.bytes_reclaimed or 0),
        paused=bool(snapshot.present.paused),
    )


# -- Messages of the worker --------------------------------------------------------------------


class Looked(NamedTuple):
    """A run over everything ended; `present` is the state that it left. Another plan can differ after `wait_s`."""

    findings: Findings
    present: Present
    report: Report
    wait_s: float


class RunFailed(NamedTuple):
    """A run failed as a whole because of `problem`, at `when_us`; `busy`: another process holds what it needs."""

    problem: str
    when_us: int
    busy: bool = False


class NotOnBtrfs(NamedTuple):
    """A look ended at `path`: no journal directory is on btrfs."""

    path: str


class Progressed(NamedTuple):
    """A run made progress: that of `job`, or with 0 the service's own."""

    job: int
    progress: Progress


class FileDone(NamedTuple):
    """An action ended at `when_us`."""

    outcome: Outcome
    when_us: int


class WorkEnded(NamedTuple):
    """A call of the worker ended; `windows` and `next_flush_us` are those of Snapshot.

    `free_at_s` is the monotonic time of the earliest next look at everything, and `flush_look_at_s` that of the next
    look at the flush timers, infinite before the next append. Until the next call, an append is news only in the
    directories `awaiting` one.
    """

    windows: tuple[Window, ...]
    next_flush_us: int
    free_at_s: float
    flush_look_at_s: float
    awaiting: frozenset[str] = frozenset()


class Checked(NamedTuple):
    """Changes were looked for that cause no event.

    `configuration` is why the running configuration is not the one on disk, "" while it is. `unwritable` are the
    paths that the service may not write to, each with the reason. `full` is that of Present, `tops` of `identify_tops`.
    """

    configuration: str
    unwritable: tuple[tuple[str, Obstacle], ...]
    full: tuple[tuple[str, Volume], ...] = ()
    tops: tuple[object, ...] = ()


RunEnded = Looked | RunFailed | NotOnBtrfs
Message = RunEnded | Checked | WorkEnded | FileDone | Findings | Progressed


def apply_message(state: Snapshot, message: Message) -> Snapshot:
    """Return the state after a message of the worker. Facts in STANDING survive a run.

    Findings come before the actions of a run. Looked replaces also facts and counters, but not the failures of
    `keep_failures`. A done action sets `last_run_us` and adds its bytes. Each outcome replaces its file's failure.
    RunFailed sets `problem` or `busy`. NotOnBtrfs drops findings. Progress of job 0 begins `working`, RunEnded ends it.
    """
    before = present = state.present
    standing = {name: getattr(before, name) for name in STANDING}
    match message:
        case Progressed(job, _):
            state = state._replace(working=state.working or not job)
        case Findings():
            state = state._replace(findings=message)
        case Checked(configuration, unwritable, full):
            present = before._replace(configuration=configuration, unwritable=unwritable, full=full)
        case WorkEnded(windows, next_us):
            state = state._replace(windows=windows, next_flush_us=next_us)
        case FileDone(outcome, when_us):
            if outcome.result is Result.DONE:
                written = state.bytes_written + outcome.bytes_written
                reclaimed = state.bytes_reclaimed + outcome.reclaimed_bytes
                state = state._replace(last_run_us=when_us, bytes_written=written, bytes_reclaimed=reclaimed)
            failures = [one for one in before.failures if one.path != outcome.path] + find_failures([outcome])
            present = before._replace(failures=tuple(failures))
        case Looked(findings, run, report):
            failing = {one.path: one for one in (*keep_failures(before.failures, findings.decided), *run.failures)}
            present = run._replace(failures=tuple(failing.values()), **standing)
            state = state._replace(working=False, findings=findings, counters=report.counters)
        case NotOnBtrfs(path):
            present = Present(foreign=path, **standing)
            state = state._replace(working=False, findings=None)
        case RunFailed(why, when_us, busy):
            since_us = when_us if busy and not before.busy else before.busy_since_us
            problem, holder = ("", why) if busy else (why, "")
            present = before._replace(problem=problem, busy=holder, busy_since_us=since_us)
            state = state._replace(working=False)
    return state._replace(present=present)
