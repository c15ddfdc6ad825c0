# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service's state as the bus shows it: one immutable record, and how the worker's messages change it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from journalkeeper import __version__
from journalkeeper.config.directives import Watch
from journalkeeper.health.evidence import Obstacle, Present
from journalkeeper.health.finding import Verdict
from journalkeeper.health.verdict import (
    describe_files,
    describe_foreign,
    describe_waits,
    find_failures,
    still_failing,
)
from journalkeeper.metrics.status import Status
from journalkeeper.model import Action, Host, JournalFile, Outcome, Plan, Result, Skip, Window
from journalkeeper.model.manager import Manager
from journalkeeper.model.progress import Progress
from journalkeeper.model.recorded import Counters
from journalkeeper.model.run import Report

Doing = Action | Skip | Outcome

STANDING: Final = ("configuration", "unwatched", "unwritable", "paused")
"""The facts in `Snapshot.present` that do not depend on the last run."""


class Findings(NamedTuple):
    """The result of the last look: the files, and the decision or outcome for each, by path."""

    files: Mapping[str, JournalFile]
    decided: Mapping[str, Doing]
    status: Status
    waits_for: str


class Tally(NamedTuple):
    """The sums of the actions since the service started; `last_us` is the time of the last one."""

    last_us: int = 0
    written_bytes: int = 0
    reclaimed_bytes: int = 0

    def add(self, outcome: Outcome, now_us: int) -> Tally:
        """Return the tally with the bytes of `outcome` added, and with `now_us` as the time of the last action."""
        return Tally(
            now_us, self.written_bytes + outcome.bytes_written, self.reclaimed_bytes + count_reclaimed_bytes(outcome)
        )


class Snapshot(NamedTuple):
    """The state of the service. `working` is True while files are worked on; `verdict` judges `present`.

    `counters` are the totals since the installation. `windows` are those of the last look at the flush timers.
    `budget_bytes` is the budget of a day, None without a limit.
    """

    directories: tuple[str, ...]
    missing: tuple[str, ...] = ()
    findings: Findings | None = None
    tally: Tally = Tally()
    working: bool = False
    intake_p99_us: int = 0
    counters: Counters | None = None
    windows: tuple[Window, ...] = ()
    next_flush_us: int = 0
    present: Present = Present(looked=False)
    verdict: Verdict = Verdict()
    budget_bytes: int | None = None

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.findings is None:
            return self.verdict.headline(f"{state(self)[1]}.")
        return self.verdict.headline(describe_files(self.findings.status.files, self.findings.waits_for))

    @property
    def status_line(self) -> str:
        """The line for `systemctl status`: the verdict, with the number of files before the remedy.

        The remedy stands at the end, so that a user can copy the command.
        """
        if not self.verdict.problems or self.findings is None:
            return self.headline
        worst = self.verdict.problems[0]
        counted = worst._replace(sentence=f"{worst.sentence} {describe_files(self.findings.status.files, '')}")
        return self.verdict._replace(findings=(counted,)).headline("")


def findings(host: Host, plan: Plan, outcomes: tuple[Outcome, ...], status: Status, watch: Watch) -> Findings:
    """Return the published findings of a run: the files, what was decided or done for each, and the waits.

    For a file with an outcome, the outcome replaces the decision.
    """
    everything: tuple[Doing, ...] = (*plan.skipped, *plan.actions, *outcomes)
    doing = {one.path: one for one in everything}
    live = {row.path: row for row in host.files}
    return Findings(live, doing, status, describe_waits(plan.skipped, live, watch))


def count_reclaimed_bytes(outcome: Outcome) -> int:
    """Return how many bytes on the disk the action freed.

    Return 0 if that is unknown, if the file grew, or if a snapshot keeps the old data.
    """
    before, after = outcome.disk_bytes_before, outcome.disk_bytes_after
    return 0 if before is None or after is None or outcome.unshared_bytes else max(0, before - after)


def state(snapshot: Snapshot) -> tuple[str, str]:
    """Return (word, sentence) for the state of the service: working, paused, degraded, waiting or idle."""
    found = snapshot.findings
    if snapshot.working:
        return "working", ""
    if snapshot.present.paused:
        return "paused", "a client asked for a pause; Resume ends it"
    if snapshot.present.problem:
        return "degraded", snapshot.present.problem
    if snapshot.missing:
        return "waiting", f"waiting for {' and '.join(snapshot.missing)} to appear"
    if found is None:
        foreign = snapshot.present.foreign
        return ("idle", describe_foreign([foreign])) if foreign else ("waiting", "the first look runs")
    return ("waiting", found.waits_for) if found.waits_for else ("idle", "")


def manager(snapshot: Snapshot) -> Manager:
    """Return the values of the service's D-Bus properties. Those about files are unknown before the first look."""
    word, reason = state(snapshot)
    total = snapshot.counters
    known = Manager(
        version=__version__,
        health=snapshot.verdict.health,
        health_reasons=snapshot.verdict.reasons,
        state=word,
        state_reason=reason,
        directories=list(snapshot.directories),
        last_run_us=snapshot.tally.last_us,
        bytes_written=snapshot.tally.written_bytes,
        bytes_reclaimed=snapshot.tally.reclaimed_bytes,
        intake_delay_p99_us=snapshot.intake_p99_us,
        budget_left_bytes=snapshot.budget_bytes,
        paused=snapshot.present.paused,
        bytes_reclaimed_total=None if total is None or total.bytes_reclaimed is None else max(0, total.bytes_reclaimed),
    )
    found = snapshot.findings
    if found is None:
        return known
    return known._replace(
        files=found.status.files,
        extents=found.status.sums["extents"],
        active_extents=found.status.active_extents,
        fragmented_files=found.status.fragmented_files,
        window_open=any(one.open for one in snapshot.windows),
        next_flush_us=snapshot.next_flush_us,
        budget_left_bytes=found.status.budget_left_bytes,
    )


# -- Messages of the worker --------------------------------------------------------------------


class Looked(NamedTuple):
    """A run over everything ended; `present` is the state that it left. Another plan can differ after `wait_s`."""

    findings: Findings
    missing: tuple[str, ...]
    intake_p99_us: int
    present: Present
    report: Report
    wait_s: float


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
    """A run made progress: that of `job`, or with 0 the service's own."""

    job: int
    progress: Progress


class FileDone(NamedTuple):
    """An action ended at `when_us`."""

    outcome: Outcome
    when_us: int


class FlushesLooked(NamedTuple):
    """The flush timers were read: the window of each instance, and when the first journald flushes."""

    windows: tuple[Window, ...]
    next_flush_us: int


class Checked(NamedTuple):
    """Changes were looked for that cause no event.

    `configuration` is why the running configuration is not the one on disk, "" while it is. `unwritable` are the
    directories that the service may not write to, each with the reason.
    """

    configuration: str
    unwritable: tuple[tuple[str, Obstacle], ...]


Message = Checked | FlushesLooked | Looked | Failed | FileDone | NotOnBtrfs | Progressed


def after(state: Snapshot, message: Message) -> Snapshot:
    """Return the state that follows from `state` and a message of the worker."""
    before = present = state.present
    standing = {name: getattr(before, name) for name in STANDING}
    match message:
        case Progressed(job, _):
            state = state._replace(working=state.working or not job)
        case Checked():
            present = before._replace(**message._asdict())
        case FlushesLooked():
            state = state._replace(**message._asdict())
        case FileDone(outcome, when_us):
            if outcome.result is Result.DONE:
                state = state._replace(tally=state.tally.add(outcome, when_us))
            failures = [one for one in before.failures if one.path != outcome.path] + find_failures([outcome])
            present = before._replace(failures=tuple(failures))
        case Looked(findings, missing, intake_p99_us, run, report):
            failing = {one.path: one for one in (*still_failing(before.failures, findings.decided), *run.failures)}
            present = run._replace(failures=tuple(failing.values()), **standing)
            counters = report.counters or state.counters
            state = state._replace(
                working=False, findings=findings, missing=missing, intake_p99_us=intake_p99_us, counters=counters
            )
        case NotOnBtrfs(path):
            present = Present(foreign=path, **standing)
            state = state._replace(working=False, findings=None)
        case Failed(problem, _, 0):
            present = before._replace(problem=problem, busy="")
            state = state._replace(working=False)
        case Failed(busy, when_us, limit_us):
            since_us = before.busy_since_us if before.busy else when_us
            present = before._replace(problem="", busy=busy, busy_since_us=since_us, busy_limit_us=limit_us)
            state = state._replace(working=False)
    return state._replace(present=present)
