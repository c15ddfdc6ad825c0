# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the service knows of itself: the immutable state that the bus shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from journalkeeper import __version__
from journalkeeper.metrics.status import Status
from journalkeeper.model import Action, Host, JournalFile, Outcome, Plan, Skip, Window
from journalkeeper.model.manager import Manager
from journalkeeper.model.recorded import Counters

Doing = Action | Skip | Outcome


class Findings(NamedTuple):
    """What the last look found and came to: files, and what is done with each, by path."""

    files: Mapping[str, JournalFile]
    decided: Mapping[str, Doing]
    status: Status
    waits_for: str


class Tally(NamedTuple):
    """What was done since the service started; `last_us` is when the last of it was."""

    last_us: int = 0
    written_bytes: int = 0
    reclaimed_bytes: int = 0

    def add(self, outcome: Outcome, now_us: int) -> Tally:
        """With one more outcome."""
        return Tally(
            now_us, self.written_bytes + outcome.bytes_written, self.reclaimed_bytes + reclaimed_bytes(outcome)
        )


class Snapshot(NamedTuple):
    """What the service knows of itself. `problem` is why the last look failed, `working` whether files are at work.

    `limits` says in words which limits are reached: of inotify, of the files that are looked at. `counters` are the
    totals since the installation. `windows` are those of the last look at the flush timers.
    """

    directories: tuple[str, ...]
    missing: tuple[str, ...] = ()
    findings: Findings | None = None
    tally: Tally = Tally()
    problem: str = ""
    working: bool = False
    paused: bool = False
    intake_p99_us: int = 0
    limits: tuple[str, ...] = ()
    counters: Counters | None = None
    windows: tuple[Window, ...] = ()
    next_flush_us: int = 0


def findings(host: Host, plan: Plan, outcomes: tuple[Outcome, ...], status: Status, long: str = "") -> Findings:
    """Of a look and what came of it; `long` says what has waited for more than a day."""
    everything: tuple[Doing, ...] = (*plan.skipped, *plan.actions, *outcomes)
    doing = {one.path: one for one in everything}
    waiting = "; ".join(words for words in (long, waits_for(plan)) if words)
    live = {row.path: row for row in host.files}
    return Findings(live, doing, status, waiting)


def waits_for(plan: Plan) -> str:
    """What has to be over before something more can be done; "" if nothing is waited for."""
    reasons = sorted({str(skip.reason) for skip in plan.skipped if skip.puts_off})
    return f"waiting because of {', '.join(reasons)}" if reasons else ""


def reclaimed_bytes(outcome: Outcome) -> int:
    """Return by how much less a file occupies; 0 if that is unknown, if it occupies more, or next to a snapshot."""
    before, after = outcome.disk_bytes_before, outcome.disk_bytes_after
    return 0 if before is None or after is None or outcome.unshared_bytes else max(0, before - after)


def state(snapshot: Snapshot) -> tuple[str, str]:
    """The state in one word, and a sentence about it."""
    found = snapshot.findings
    if snapshot.working:
        return "working", ""
    if snapshot.paused:
        return "paused", "somebody asked for a pause; Resume ends it"
    if snapshot.problem:
        return "degraded", snapshot.problem
    if snapshot.missing:
        return "waiting", f"waiting for {' and '.join(snapshot.missing)} to appear"
    if found is None:
        return "waiting", "nothing was looked at yet"
    return ("waiting", found.waits_for) if found.waits_for else ("idle", "")


def manager(snapshot: Snapshot) -> Manager:
    """What clients are shown of it."""
    word, reason = state(snapshot)
    total = snapshot.counters
    known = Manager(
        version=__version__,
        state=word,
        state_reason=reason,
        directories=list(snapshot.directories),
        last_run_us=snapshot.tally.last_us,
        bytes_written=snapshot.tally.written_bytes,
        bytes_reclaimed=snapshot.tally.reclaimed_bytes,
        intake_delay_p99_us=snapshot.intake_p99_us,
        paused=snapshot.paused,
        limits=list(snapshot.limits),
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
