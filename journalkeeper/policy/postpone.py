# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why an action that pays is left for later.

The one rule: only what would be done is postponed, so that nobody wakes for a file that is
whole. Each answer names the moment at which to think again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from journalkeeper.config import Config
from journalkeeper.model import Action, Host, Kind, Reason, Skip
from journalkeeper.values import format_span

MINUTE_US: Final = 60 * 1_000_000
AGAIN_US: Final = 60 * MINUTE_US
"""When to try again what failed, was refused, or found no space or budget: neither ends by itself soon."""

PRESSURE_US: Final = MINUTE_US
MAINTENANCE_US: Final = 10 * MINUTE_US

Rule = Callable[[Action, Host, Config], Skip | None]


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


def maintained(action: Action, host: Host, _config: Config) -> Skip | None:
    """A balance or scrub and our work would be in each other's way."""
    doing = next((volume.maintenance for volume in host.volumes if volume.device == action.file.device), "")
    if not doing:
        return None
    return Skip(action.path, Reason.PRESSURE, f"busy with the volume: {doing}", until_us=host.now_us + MAINTENANCE_US)


def pressed(action: Action, host: Host, config: Config) -> Skip | None:
    """Others use the disk of this volume already."""
    most = config.window.pressure_max_percent
    share = next((volume.busy_percent for volume in host.volumes if volume.device == action.file.device), None)
    if share is None or share <= most or most == 100:
        return None
    detail = f"others kept the disk busy {share}% of the time, PressureMax={most}%"
    return Skip(action.path, Reason.PRESSURE, detail, until_us=host.now_us + PRESSURE_US)


RULES: tuple[Rule, ...] = (refused, maintained, pressed)


def postponed(action: Action, host: Host, config: Config) -> Skip | None:
    """The first rule's answer, or None if nothing speaks against doing it now."""
    return next((skip for rule in RULES if (skip := rule(action, host, config)) is not None), None)
