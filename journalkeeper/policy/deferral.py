# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reasons to postpone an action that pays. The caller sets `puts_off` in the Skips.

Only an action that would otherwise run is postponed, so a file in good order never causes a wake-up. Each answer names
the time of the next attempt, if that time is known.
"""

from __future__ import annotations

from typing import Final

from journalkeeper.config import Config
from journalkeeper.config.weekly import find_weekly_end
from journalkeeper.model import Action, JournalFile, Outcome, Reason, Refusal, Request, Result, Skip, Volume, Window
from journalkeeper.model.units import MINUTE_US, SECOND_US, format_span
from journalkeeper.policy.case import Case

AGAIN_US: Final = 60 * MINUTE_US
"""The delay before an action is retried that failed, was refused, or lacked budget: such causes last."""

OUTAGES: Final = frozenset({Reason.IO_ERROR, Reason.FREE_SPACE, Reason.QUOTA, Reason.READ_ONLY})
"""Reasons of failures that end when an admin mends the volume."""

SOON_US: Final = MINUTE_US
"""The delay before free space or a busy disk is looked at again: no event announces their end.

It is also the delay after the first failure in an outage, which doubles with each further failure, up to AGAIN_US.
"""

LATER_US: Final = 15 * MINUTE_US
"""The delay before a battery or a volume's maintenance is looked at again: an event of the battery would need a netlink
socket, which the unit forbids.
"""

PASSING: Final = frozenset(
    {Reason.INTERRUPTED, Reason.WINDOW_CLOSED, Reason.PRESSURE, Reason.VANISHED, Reason.CHANGED, Reason.SHARED}
)
"""Reasons for a failed action that end without an administrator, or that the next look sees.

Such an action is retried soon, and its failure is neither remembered nor logged.
"""


def ignores_budget(request: Request, budget: int) -> bool:
    """Return whether `request` may exceed `budget` of a day: if it hurries, except at a shutdown with a budget of 0."""
    return request.hurries and not (request.before_shutdown and budget == 0)


def remember(refused: dict[tuple[int, int], Refusal], action: Action, outcome: Outcome, now_us: int) -> None:
    """Store a failed or skipped action in `refused` by (device, inode), with a file's size and mtime, to delay a retry.

    Its tries count up, whatever the reasons, until a success removes the entry. NO_GAIN and PASSING change nothing.
    """
    target = action.target
    key = target.device, target.inode
    if outcome.result is Result.DONE:
        refused.pop(key, None)
    elif outcome.reason not in PASSING and outcome.reason is not Reason.NO_GAIN:  # the history stores NO_GAIN
        seen = (target.size_bytes, target.mtime_ns) if isinstance(target, JournalFile) else (0, 0)
        tries = refused[key].tries + 1 if key in refused else 1
        refused[key] = Refusal(now_us, *seen, outcome.reason, outcome.detail or outcome.reason, tries)


def postpone_retry(path: str, last: Refusal | None, now_us: int) -> Skip | None:
    """Return a Skip with the `last` failure until AGAIN_US after it; else None, also for a failure in the future.

    In OUTAGES the delay begins with SOON_US, and doubles with each further try up to AGAIN_US.
    """
    if last is None:
        return None
    delay_us = min(AGAIN_US, SOON_US << last.tries - 1) if last.reason in OUTAGES else AGAIN_US
    if not 0 <= now_us - last.when_us < delay_us:
        return None
    detail = f"tried {format_span(now_us - last.when_us)} ago: {last.detail}"
    return Skip(path, last.reason, detail, until_us=last.when_us + delay_us)


def find_rest(now_us: int, request: Request, config: Config, *, on_battery: bool) -> tuple[Reason, str, int] | None:
    """Return (reason, detail, until_us) if the service rests on battery, for LATER_US, or in quiet hours, else None.

    A request that hurries, or that a user asked for, never rests.
    """
    if request.hurries or request.asked:
        return None
    if on_battery and not config.window.on_battery:
        return Reason.BATTERY, "the host runs on battery (OnBattery=no)", now_us + LATER_US
    if (end := find_weekly_end(now_us, config.window.quiet_hours)) is None:
        return None
    return Reason.QUIET_HOURS, f"until {end:%a %H:%M} (QuietHours=)", int(end.timestamp()) * SECOND_US


def wait_for_window(path: str, window: Window) -> Skip | None:
    """Postpone work on active files while the flush window is closed, until it opens if that is known; else None."""
    if window.open:
        return None
    short = "SyncIntervalSec= leaves too little time between two flushes" if window.reason == "too-short" else ""
    detail = short or "journald has not yet written its newest messages to the disk"
    return Skip(path, Reason.WINDOW_CLOSED, detail, until_us=window.opens_at_us)


def wait_for_disk(path: str, volume: Volume | None, now_us: int, config: Config) -> Skip | None:
    """Postpone work (PRESSURE): for LATER_US during any maintenance of the volume, for SOON_US above PressureMax=."""
    if volume is None:
        return None
    if volume.maintenance:
        return Skip(path, Reason.PRESSURE, f"a {volume.maintenance} of the volume runs", now_us + LATER_US)
    share, most = volume.busy_percent, config.window.pressure_max_percent
    if share is None or share <= most:
        return None
    detail = f"others kept the disk busy {share}% of the time, PressureMax={most}%"
    return Skip(path, Reason.PRESSURE, detail, until_us=now_us + SOON_US)


def postpone(case: Case) -> Skip | None:
    """Return a Skip if a rewrite that does not hurry waits after a failure, or for maintenance or load, else None.

    A new size or mtime ends the failure of a file at rest; until one, INTERNAL_ERROR and FOREIGN_OWNER have no time.
    """
    if case.request.hurries:
        return None
    file, last = case.file, case.refused
    changed = last is not None and (last.size_bytes, last.mtime_ns) != (file.size_bytes, file.mtime_ns)
    if last is not None and not (changed and case.is_at_rest):
        for_good = last.reason is Reason.INTERNAL_ERROR or (last.reason is Reason.FOREIGN_OWNER and file.uid != 0)
        if for_good and not changed:
            return Skip(file.path, last.reason, last.detail)
        if (later := postpone_retry(file.path, last, case.now_us)) is not None:
            return later
    return wait_for_disk(file.path, case.volume, case.now_us, case.config)
