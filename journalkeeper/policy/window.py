# SPDX-License-Identifier: LGPL-2.1-or-later
"""The time window in which work on an instance's active files does not disturb journald.

A window is closed unless there is evidence that it is open.

journald arms its sync timer at the first append after a sync, SyncIntervalSec ahead, and later appends do not move it
(systemd, journald-server.c, server_schedule_sync). That append also makes the state byte ONLINE. With `t` the moment of
that change:

    OFFLINE      open: nothing is dirty. An append makes journald sync in its main thread
                 first, and that sync writes the dirty pages of our last piece, no more.
    ONLINE at t  open until t + SyncIntervalSec - margin: the sync of the flip is over,
                 the next is not due.
    due          closed from there until the flush was seen.

The margin is that of `compose_margin_us`. If `t` is unknown (a command looks only once), a flush may come at any moment
until the file was left alone for a whole interval. A window is too short if two margins use up the interval.

`advise` says whether to continue with the next piece under the present load, because other users of the disk come
first. Intake delay is what users of journald feel, so a long one pauses the work whatever its cause. Disk time that was
busy while this service rested was used by other processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from journalkeeper.config.directives import WindowSection
from journalkeeper.model import Instance, JournalFile, Kind, Reason, State, Window
from journalkeeper.model.units import INFINITY_US, MINUTE_US


def compose_margin_us(configured_us: int, slowest_piece_us: int) -> int:
    """Return how long before a flush work stops: the configured margin plus the slowest recent piece."""
    return configured_us + slowest_piece_us


def find_closing_us(since_us: int, interval_us: int, margin_us: int) -> int | None:
    """Return when the window of a timer started at `since_us` closes; None if the interval is at most two margins."""
    return None if interval_us <= 2 * margin_us else since_us + interval_us - margin_us


def find_windows(
    instances: Iterable[Instance], files: Sequence[JournalFile], now_us: int, *, margin_us: int, now: bool = False
) -> dict[str, Window]:
    """Return the flush window of each instance at `now_us`, by its directory. With `now`, every window is open."""
    if now:
        return {one.directory: Window(one.name, open=True, closes_at_us=None, reason="now") for one in instances}
    unknown = {file.directory for file in files if file.problem is Reason.UNKNOWN_FORMAT}
    online = [file for file in files if file.kind is Kind.ACTIVE and file.state is State.ONLINE]
    found = {}
    for one in instances:
        seen = [file for file in online if file.directory == one.directory]
        calm = "unknown-format" if one.directory in unknown else "flushed"
        found[one.directory] = _find_window(one, seen, calm, now_us, margin_us)
    return found


def update_window(seen: Window, now_us: int) -> Window:
    """Return the window `seen`, computed earlier, as it is at `now_us`: its time to open or close may have come.

    A window that changes loses both times. Its new reason is "flush-due" if it closes, and "stale" if it opens.
    """
    if seen.open and seen.closes_at_us is not None and now_us >= seen.closes_at_us:
        return Window(seen.instance, open=False, closes_at_us=None, reason="flush-due")
    if not seen.open and seen.opens_at_us is not None and now_us >= seen.opens_at_us:
        return Window(seen.instance, open=True, closes_at_us=None, reason="stale")
    return seen


def _find_window(instance: Instance, online: Sequence[JournalFile], calm: str, now_us: int, margin_us: int) -> Window:
    """Return the flush window of `instance`, whose unsynced files are `online`; without any, its reason is `calm`.

    Without a timer it is open. Only the reason "online" has a time to close. Only "unsynced" has a time to open: a
    whole interval after the last change, the window is open and "stale".
    """
    name, interval_us = instance.name, instance.sync_interval_us
    if not online:
        return Window(name, open=True, closes_at_us=None, reason=calm)
    if interval_us in {0, INFINITY_US}:
        return Window(name, open=True, closes_at_us=None, reason="no-timer")
    since_us = instance.online_since_us
    if since_us is None or since_us > now_us:  # later than now: the clock was set back
        flushed_by_us = max(file.mtime_ns for file in online) // 1000 + interval_us
        if now_us > flushed_by_us:
            return Window(name, open=True, closes_at_us=None, reason="stale")
        opens_at_us = flushed_by_us + 1 if since_us is None else min(since_us, flushed_by_us + 1)
        return Window(name, open=False, closes_at_us=None, reason="unsynced", opens_at_us=opens_at_us)
    closes_at_us = find_closing_us(since_us, interval_us, margin_us)
    if closes_at_us is None:
        return Window(name, open=False, closes_at_us=None, reason="too-short")
    return update_window(Window(name, open=True, closes_at_us=closes_at_us, reason="online"), now_us)


def next_flush_us(instances: Iterable[Instance]) -> int:
    """Return the earliest time (CLOCK_REALTIME) at which any journald is expected to flush, 0 if unknown."""
    ends_us = ((one.online_since_us or INFINITY_US) + one.sync_interval_us for one in instances if one.sync_interval_us)
    return min((end_us for end_us in ends_us if end_us < INFINITY_US), default=0)


PATIENCE_US: Final = MINUTE_US
"""The longest total pause during the work on one file: a disk that stays busy for longer is not free soon."""

AIM: Final = 0.5
"""The part of the allowed time that a piece should take, judged by the piece before, because disks vary. At 500 IOPS,
pieces sized for 50 ms took up to 64 ms.
"""

GROWTH: Final = 2
"""The largest growth from one piece to the next: one quick piece does not prove that the disk is quick."""


def adapt_amount(amount: int, done: int, took_us: int, allowed_us: int, least: int, most: int) -> int:  # noqa: PLR0917
    """Return the amount for AIM of `allowed_us` at this speed, `least` (0 done) to `most`, up to GROWTH * `amount`."""
    return max(least, min(most, amount * GROWTH, int(done * allowed_us * AIM) // max(1, took_us)))


class Advice(StrEnum):
    """The advice before a piece: SLOW_DOWN means to rest first, PAUSE to ask again later, GIVE_UP to stop this file."""

    GO_ON = "go-on"
    SLOW_DOWN = "slow-down"
    PAUSE = "pause"
    GIVE_UP = "give-up"


class Reading(NamedTuple):
    """The load since the last piece.

    `flush_due`: a journald's flush is near or under way. `intake_delay_us`: the longest that a message waited for
    journald; None if no message arrived with a send time. `others_busy_percent`: the share of the last rest in which
    the disk was busy; None if unknown. `maintenance`: the btrfs operation on the volume, such as "scrub", or "" if
    none. `paused_us`: the total pause so far during the work on this file.
    """

    flush_due: bool = False
    intake_delay_us: int | None = None
    others_busy_percent: int | None = None
    maintenance: str = ""
    paused_us: int = 0


def advise(reading: Reading, limits: WindowSection) -> Advice:
    """Return the advice for the load in `reading` under `limits`, IntakeDelayMaxSec= and PressureMax=.

    A due flush or a load above a limit gives PAUSE, a load above half of it SLOW_DOWN. Maintenance, or pauses of more
    than PATIENCE_US, give GIVE_UP. An unknown value exceeds no limit, and PressureMax=100% is no limit.
    """
    if reading.maintenance or reading.paused_us > PATIENCE_US:
        return Advice.GIVE_UP
    loads = [(reading.intake_delay_us or 0, limits.intake_delay_max_us)]
    if limits.pressure_max_percent < 100:
        loads.append((reading.others_busy_percent or 0, limits.pressure_max_percent))
    if reading.flush_due or any(value > most for value, most in loads):
        return Advice.PAUSE
    return Advice.SLOW_DOWN if any(2 * value > most for value, most in loads) else Advice.GO_ON
