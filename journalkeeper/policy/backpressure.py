# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide whether to continue with the next piece of a file under the present load.

Other users of the disk come first. Intake delay is what users of journald feel, so a long one pauses the work whatever
its cause. Disk time that was busy while this service rested was used by other processes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from journalkeeper.config.directives import WindowSection
from journalkeeper.model.units import MINUTE_US

PATIENCE_US: Final = MINUTE_US
"""The longest total pause during the work on one file: a disk that stays busy for longer is not free soon."""

AIM: Final = 0.5
"""The part of the allowed time that a piece should take, judged by the piece before, because disks vary. At 500 IOPS,
pieces sized for 50 ms took up to 64 ms.
"""

GROWTH: Final = 2
"""The largest growth from one piece to the next: one quick piece does not prove that the disk is quick."""


def adapt_amount(amount: int, done: int, took_us: int, allowed_us: int, least: int, most: int) -> int:  # noqa: PLR0917
    """Return an amount from `least` to `most`, at most GROWTH times the last, for AIM of `allowed_us` at that speed."""
    return max(least, min(most, amount * GROWTH, int(done * allowed_us * AIM) // max(1, took_us)))


class Advice(StrEnum):
    """The advice before the next piece:

    SLOW_DOWN means to rest first, PAUSE to ask again later, GIVE_UP to stop this file.
    """

    GO_ON = "go-on"
    SLOW_DOWN = "slow-down"
    PAUSE = "pause"
    GIVE_UP = "give-up"


class Reading(NamedTuple):
    """The load since the last piece.

    `flush_due`: a journald's flush is near or under way. `intake_delay_us`: the longest that a message waited for
    journald; None if no message arrived with a send time. `others_busy_percent`: the share of the last rest in which
    the disk was busy; None if unknown. `maintenance`: the btrfs operation on the volume ("balance", "scrub"), "" if
    none. `paused_us`: the total pause so far during the work on this file.
    """

    flush_due: bool = False
    intake_delay_us: int | None = None
    others_busy_percent: int | None = None
    maintenance: str = ""
    paused_us: int = 0


def advise(reading: Reading, limits: WindowSection) -> Advice:
    """Return the advice for the load in `reading` under `limits`, IntakeDelayMaxSec= and PressureMax=.

    An unknown value exceeds no limit, and PressureMax=100% is no limit.
    """
    if reading.maintenance or reading.paused_us > PATIENCE_US:
        return Advice.GIVE_UP
    loads = [(reading.intake_delay_us or 0, limits.intake_delay_max_us)]
    if limits.pressure_max_percent < 100:
        loads.append((reading.others_busy_percent or 0, limits.pressure_max_percent))
    if reading.flush_due or any(value > most for value, most in loads):
        return Advice.PAUSE
    return Advice.SLOW_DOWN if any(2 * value > most for value, most in loads) else Advice.GO_ON
