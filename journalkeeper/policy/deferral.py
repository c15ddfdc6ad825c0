# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why an action that pays is left for later.

Only what would be done is postponed, so that nobody wakes for a file that is
whole. Each answer names the moment at which to think again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from journalkeeper.config import Config
from journalkeeper.model import Action, JournalFile, Outcome, Reason, Refusal, Request, Result, Skip, Volume, Window
from journalkeeper.model.units import HOUR_US, MINUTE_US, format_span
from journalkeeper.policy.case import Case

AGAIN_US: Final = HOUR_US
"""When to try again what failed, was refused, or found no space or budget: neither ends by itself soon."""

PASSING: Final = frozenset({Reason.INTERRUPTED, Reason.WINDOW_CLOSED, Reason.PRESSURE}) | {
    *(Reason.VANISHED, Reason.CHANGED, Reason.SHARED)
}
"""Why an action came to nothing where that ends by itself, or is seen by the next look: it is tried again soon, and
neither remembered nor logged."""

PRESSURE_US: Final = MINUTE_US
MAINTENANCE_US: Final = 10 * MINUTE_US

Rule = Callable[[Case], Skip | None]


def ignores_budget(request: Request, budget: int) -> bool:
    """Whether a day's budget does not count. That of 0 is a no, which a shutdown does not override."""
    return request.now and not (request.ending and budget == 0)


def remember(refused: dict[tuple[int, int], Refusal], action: Action, outcome: Outcome, now_us: int) -> None:
    """Keep in `refused`, by (device, inode), what came to nothing, for the next plan not to try it at once."""
    target = action.target
    key = target.device, target.inode
    if outcome.result is Result.DONE:
        refused.pop(key, None)
    elif outcome.reason not in PASSING and outcome.reason is not Reason.NO_GAIN:  # of that the record knows more
        seen = (target.size_bytes, target.mtime_ns) if isinstance(target, JournalFile) else (0, 0)
        refused[key] = Refusal(now_us, *seen, outcome.reason, outcome.detail or outcome.reason)


def tried_before(path: str, last: Refusal | None, now_us: int) -> Skip | None:
    """What failed for this file or directory fails again, until somebody had the time to mend it."""
    if last is None or not 0 <= now_us - last.when_us < AGAIN_US:
        return None
    detail = f"tried {format_span(now_us - last.when_us)} ago: {last.detail}"
    return Skip(path, last.reason, detail, until_us=last.when_us + AGAIN_US)


def window_closed(path: str, window: Window) -> Skip | None:
    """What journald writes is touched only while no flush is near."""
    if window.open:
        return None
    detail = f"journald has messages that it has not synced ({window.reason})"
    return Skip(path, Reason.WINDOW_CLOSED, detail, until_us=window.opens_at_us)


def disk_busy(path: str, volume: Volume | None, now_us: int, config: Config) -> Skip | None:
    """Others are at work on the volume: a balance or scrub, which ours would be in the way of, or whoever needs it."""
    if volume is None:
        return None
    if volume.maintenance:
        what = f"busy with the volume: {volume.maintenance}"
        return Skip(path, Reason.PRESSURE, what, until_us=now_us + MAINTENANCE_US)
    share, most = volume.busy_percent, config.window.pressure_max_percent
    if share is None or share <= most or most == 100:
        return None
    detail = f"others kept the disk busy {share}% of the time, PressureMax={most}%"
    return Skip(path, Reason.PRESSURE, detail, until_us=now_us + PRESSURE_US)


def refused(case: Case) -> Skip | None:
    """What failed is not tried again at once, unless the archive changed.

    A mistake of ours nobody mends before the next start, nor does the process get a right: no time is long enough.
    """
    file, last = case.file, case.refused
    if last is None:
        return None
    changed = (last.size_bytes, last.mtime_ns) != (file.size_bytes, file.mtime_ns)
    if changed and case.at_rest:
        return None
    for_good = last.reason is Reason.INTERNAL_ERROR or (last.reason is Reason.FOREIGN_OWNER and file.uid != 0)
    if for_good and not changed:
        return Skip(file.path, last.reason, last.detail)
    return tried_before(file.path, last, case.now_us)


def busy(case: Case) -> Skip | None:
    """Others need the volume now."""
    return disk_busy(case.file.path, case.volume, case.now_us, case.config)


RULES: tuple[Rule, ...] = (refused, busy)
