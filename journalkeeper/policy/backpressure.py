# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether to go on with the next piece of a file, as things are just now.

Whoever waits for the disk comes first. Rules are asked in their order and
the first that answers counts; what they have to go by is measured between two pieces.

What journald's users feel is its intake delay, so that pauses us wherever it comes from.
The time in which the disk was busy while we rested is somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple

from journalkeeper.config import Config
from journalkeeper.model.units import MINUTE_US
from journalkeeper.policy.rule_table import first

PATIENCE_US: Final = MINUTE_US
"""The longest that one file waits in pauses: what keeps a disk busy for longer is no moment's matter."""


class Advice(StrEnum):
    """What to do before the next piece: SLOW_DOWN rests first, PAUSE asks again after a while."""

    GO_ON = "go-on"
    SLOW_DOWN = "slow-down"
    PAUSE = "pause"
    GIVE_UP = "give-up"


class Reading(NamedTuple):
    """What was measured since the piece before, and what is allowed.

    `flush_due`: a journald's flush is near or under way. `intake_delay_us`: the longest that
    a message waited for journald to take it; None where none came, or none says. `others_busy_percent`:
    the share of our last rest in which the disk was busy; None where nobody can tell.
    `maintenance`: what btrfs does with the volume ("balance", "scrub"), "" nothing.
    `paused_us`: how long this file's work has been paused so far.
    """

    config: Config
    flush_due: bool = False
    intake_delay_us: int | None = None
    others_busy_percent: int | None = None
    maintenance: str = ""
    paused_us: int = 0


Rule = Callable[[Reading], Advice | None]


def maintenance(reading: Reading) -> Advice | None:
    """A balance or scrub takes hours and would do with us what we do with it: move extents, seek."""
    return Advice.GIVE_UP if reading.maintenance else None


def impatience(reading: Reading) -> Advice | None:
    """The file is left for another time, and the next one's pauses are its own."""
    return Advice.GIVE_UP if reading.paused_us > PATIENCE_US else None


def flush(reading: Reading) -> Advice | None:
    """Nothing else is begun on a disk that journald is about to wait for."""
    return Advice.PAUSE if reading.flush_due else None


def intake(reading: Reading) -> Advice | None:
    """journald's users had to wait; half as long is a warning."""
    delay_us, most_us = reading.intake_delay_us, reading.config.window.intake_delay_max_us
    if delay_us is None or 2 * delay_us <= most_us:
        return None
    return Advice.PAUSE if delay_us > most_us else Advice.SLOW_DOWN


def busy(reading: Reading) -> Advice | None:
    """Others use the disk while we rest; half as much is a reason to take turns."""
    share, most = reading.others_busy_percent, reading.config.window.pressure_max_percent
    if share is None or 2 * share <= most or most == 100:
        return None
    return Advice.PAUSE if share > most else Advice.SLOW_DOWN


RULES: tuple[Rule, ...] = (maintenance, impatience, flush, intake, busy)


def advice(reading: Reading) -> Advice:
    """The first rule's answer."""
    return first(RULES, reading) or Advice.GO_ON
