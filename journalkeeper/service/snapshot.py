# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service's state as the bus shows it: one immutable record. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from journalkeeper import __version__
from journalkeeper.health.evidence import Present
from journalkeeper.health.finding import TRY, Verdict
from journalkeeper.health.verdict import describe_files, describe_foreign, describe_waits
from journalkeeper.metrics.status import Status
from journalkeeper.model import Action, Host, JournalFile, Outcome, Plan, Skip, Window
from journalkeeper.model.manager import Manager
from journalkeeper.model.recorded import Counters

Doing = Action | Skip | Outcome


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
        """Return the sums with one more outcome."""
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
        """The headline; one with a remedy has the number of files before it, so that the remedy can be pasted."""
        sentence, separator, remedy = self.headline.rpartition(TRY)
        if not separator or self.findings is None:
            return self.headline
        return f"{sentence} {describe_files(self.findings.status.files, '')}{separator}{remedy}"


def findings(host: Host, plan: Plan, outcomes: tuple[Outcome, ...], status: Status, settle_us: int) -> Findings:
    """Return the result of a look, its plan, and the outcomes so far."""
    everything: tuple[Doing, ...] = (*plan.skipped, *plan.actions, *outcomes)
    doing = {one.path: one for one in everything}
    waiting = describe_waits(plan.skipped, settle_us)
    live = {row.path: row for row in host.files}
    return Findings(live, doing, status, waiting)


def count_reclaimed_bytes(outcome: Outcome) -> int:
    """Return how many bytes less a file occupies; 0 if unknown, if it grew, or if a snapshot keeps the old data."""
    before, after = outcome.disk_bytes_before, outcome.disk_bytes_after
    return 0 if before is None or after is None or outcome.unshared_bytes else max(0, before - after)


def state(snapshot: Snapshot) -> tuple[str, str]:
    """Return the state as one word, and a sentence about it."""
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
    """Return the properties of the service for clients."""
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
        limits=[*snapshot.present.limits, *filter(None, [snapshot.present.unwatched])],
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
