# SPDX-License-Identifier: LGPL-2.1-or-later
"""Times, spans and names in the words that findings, stories and pages share."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from journalkeeper.model.reasons import describe_saving
from journalkeeper.model.recorded import Counters
from journalkeeper.model.units import SECOND_US, TIME_LIMIT_US, format_span

UNKNOWN: Final = "unknown"


def when(time_us: int) -> str:
    """Return a local time to the minute; "unknown" if no clock can have shown it."""
    return _time(time_us, "%Y-%m-%d %H:%M")


def day(time_us: int) -> str:
    """Return the local day."""
    return _time(time_us, "%Y-%m-%d")


def hour(time_us: int) -> str:
    """Return day and hour without the year, for an axis."""
    return _time(time_us, "%m-%d %H:%M")


def _time(time_us: int, form: str) -> str:
    if not 0 <= time_us < TIME_LIMIT_US:
        return UNKNOWN
    return datetime.fromtimestamp(time_us // SECOND_US).strftime(form)


def seconds(number: float) -> str:
    """Return seconds for people, with three decimals below 0.1 s and one below a minute: 0.004s, 0.5s, 3min 12s."""
    if number >= 60:
        return format_span(round(number) * SECOND_US)
    return f"{number:.3f}s" if number < 0.0995 else f"{number:.1f}s"


def describe_total_saving(counters: Counters) -> str:
    """Return the saving since the installation, with its day if that is known; "" if there is none."""
    return describe_saving(counters, "the installation" if counters.since_us is None else day(counters.since_us))
