# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why an action that pays is left for later.

Only what would be done is postponed, so that nobody wakes for a file that is
whole. Each answer names the moment at which to think again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from journalkeeper.config import Config
from journalkeeper.model import Action, Host, Kind, Reason, Request, Skip
from journalkeeper.model.units import HOUR_US, MINUTE_US, format_span

AGAIN_US: Final = HOUR_US
"""When to try again what failed, was refused, or found no space or budget: neither ends by itself soon."""

PRESSURE_US: Final = MINUTE_US
MAINTENANCE_US: Final = 10 * MINUTE_US

Rule = Callable[[Action, Host, Config], Skip | None]


def ignores_budget(request: Request, budget: int) -> bool:
    """Whether a day's budget does not count. That of 0 is a no, which a shutdown does not override."""
    return request.now and not (request.ending and budget == 0)


def refused(action: Action, host: Host, _config: Config) -> Skip | None:
    """What failed fails again, until the file changes or somebody had the time to mend it.

    A mistake of ours nobody mends before the next start, nor does the process get a right: no time is long enough.
    """
    file = action.file
    last = host.refused.get((file.device, file.inode))
    changed = last is not None and (last.size_bytes, last.mtime_ns) != (file.size_bytes, file.mtime_ns)
    if last is None or (changed and file.kind is not Kind.ACTIVE):
        return None
    for_good = last.reason is Reason.INTERNAL_ERROR or (last.reason is Reason.FOREIGN_OWNER and file.uid != 0)
    if for_good and not changed:
        return Skip(action.path, last.reason, last.detail)
    age_us = host.now_us - last.when_us
    if not 0 <= age_us < AGAIN_US:
        return None
    detail = f"tried {format_span(age_us)} ago: {last.detail}"
    return Skip(action.path, last.reason, detail, until_us=last.when_us + AGAIN_US)


def volume_busy(path: str, device: int, host: Host, config: Config) -> Skip | None:
    """Others are at work on the volume: a balance or scrub, which ours would be in the way of, or whoever needs it."""
    volume = next((volume for volume in host.volumes if volume.device == device), None)
    if volume is None:
        return None
    if volume.maintenance:
        what = f"busy with the volume: {volume.maintenance}"
        return Skip(path, Reason.PRESSURE, what, until_us=host.now_us + MAINTENANCE_US)
    share, most = volume.busy_percent, config.window.pressure_max_percent
    if share is None or share <= most or most == 100:
        return None
    detail = f"others kept the disk busy {share}% of the time, PressureMax={most}%"
    return Skip(path, Reason.PRESSURE, detail, until_us=host.now_us + PRESSURE_US)


def busy(action: Action, host: Host, config: Config) -> Skip | None:
    """Others need the volume now."""
    return volume_busy(action.path, action.file.device, host, config)


RULES: tuple[Rule, ...] = (refused, busy)


def postponed(action: Action, host: Host, config: Config) -> Skip | None:
    """The first rule's answer, or None if nothing speaks against doing it now."""
    return next((skip for rule in RULES if (skip := rule(action, host, config)) is not None), None)
