# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide whether to continue with the next piece of a file under the present load.

Other users of the disk come first. The rules are asked in order and the first answer counts; their input is measured
between two pieces.

Intake delay is what users of journald feel, so a long one pauses the work whatever its cause. Disk time that was busy
while this service rested was used by other processes.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from journalkeeper.config import Config
from journalkeeper.model.units import MINUTE_US
from journalkeeper.policy.case import first

PATIENCE_US: Final = MINUTE_US
"""The longest total pause during the work on one file: a disk that stays busy for longer is not free soon."""


class Advice(StrEnum):
    """The advice before the next piece:

    SLOW_DOWN means to rest first, PAUSE to ask again later, GIVE_UP to stop this file.
    """

    GO_ON = "go-on"
    SLOW_DOWN = "slow-down"
    PAUSE = "pause"
    GIVE_UP = "give-up"


class Reading(NamedTuple):
    """The load since the last piece, and the configuration with its limits.

    `flush_due`: a journald's flush is near or under way. `intake_delay_us`: the longest that a message waited for
    journald; None if no message arrived with a send time. `others_busy_percent`: the share of the last rest in which
    the disk was busy; None if unknown. `maintenance`: the btrfs operation on the volume ("balance", "scrub"), "" if
    none. `paused_us`: the total pause so far during the work on this file.
    """

    config: Config
    flush_due: bool = False
    intake_delay_us: int | None = None
    others_busy_percent: int | None = None
    maintenance: str = ""
    paused_us: int = 0


Rule = Callable[[Reading], Advice | None]


def maintenance(reading: Reading) -> Advice | None:
    """Return GIVE_UP during a balance or scrub, which takes hours and competes for the same extents, else None."""
    return Advice.GIVE_UP if reading.maintenance else None


def impatience(reading: Reading) -> Advice | None:
    """Return GIVE_UP if the pauses for a file add up to more than PATIENCE_US, else None. The next file starts at 0."""
    return Advice.GIVE_UP if reading.paused_us > PATIENCE_US else None


def flush(reading: Reading) -> Advice | None:
    """Return PAUSE while a flush of journald is near or under way, else None."""
    return Advice.PAUSE if reading.flush_due else None


def intake(reading: Reading) -> Advice | None:
    """Return PAUSE if the intake delay exceeds IntakeDelayMax=, SLOW_DOWN if it exceeds half of that, else None."""
    return _compare(reading.intake_delay_us, reading.config.window.intake_delay_max_us)


def busy(reading: Reading) -> Advice | None:
    """Return PAUSE if other processes keep the disk busier than PressureMax=, SLOW_DOWN above half of that, else None.

    With PressureMax=100% or without a measurement, return None.
    """
    most = reading.config.window.pressure_max_percent
    return None if most == 100 else _compare(reading.others_busy_percent, most)


def _compare(value: int | None, most: int) -> Advice | None:
    """Return PAUSE for a value above `most`, SLOW_DOWN for one above half of that, and None for others or None."""
    if value is None or 2 * value <= most:
        return None
    return Advice.PAUSE if value > most else Advice.SLOW_DOWN


RULES: tuple[Rule, ...] = (maintenance, impatience, flush, intake, busy)


def advice(reading: Reading) -> Advice:
    """Return the advice of the first rule that applies to `reading`, or GO_ON if none does."""
    return first(RULES, reading) or Advice.GO_ON
