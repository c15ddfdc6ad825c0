# SPDX-License-Identifier: LGPL-2.1-or-later
"""Times, spans and names in the words that findings, stories and pages share."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from journalkeeper.model.run import Counters
from journalkeeper.model.units import SECOND_US, TIME_LIMIT_US, pluralize, spell_size

UNKNOWN: Final = "unknown"


def format_minute(time_us: int) -> str:
    """Return a local time to the minute: "2026-11-21 10:00"; "unknown" for 0, below it, or from TIME_LIMIT_US."""
    return _format_local_time(time_us, "%Y-%m-%d %H:%M")


def format_moment(time_us: int) -> str:
    """Return a local time to the second: "2026-11-21 10:00:00"; "unknown" as for `format_minute`."""
    return _format_local_time(time_us, "%Y-%m-%d %H:%M:%S")


def format_day(time_us: int) -> str:
    """Return the local day: "2026-11-21"; "unknown" as for `format_minute`."""
    return _format_local_time(time_us, "%Y-%m-%d")


def format_axis_time(time_us: int) -> str:
    """Return local day and time without the year, for an axis: "11-21 10:00"; "unknown" as for `format_minute`."""
    return _format_local_time(time_us, "%m-%d %H:%M")


def _format_local_time(time_us: int, form: str) -> str:
    """Return the local time by strftime(3), or UNKNOWN for 0, below it, or from TIME_LIMIT_US."""
    if not 0 < time_us < TIME_LIMIT_US:
        return UNKNOWN
    return datetime.fromtimestamp(time_us // SECOND_US).strftime(form)


def describe_total_saving(counters: Counters) -> str:
    """Return "1.2 GiB on disk and 31,415 extents since 2026-11-01" without parts of 0, "" for none.

    It begins with "at least" if it has disk bytes and some rewrites are not measured.
    """
    size_bytes = max(0, counters.bytes_reclaimed or 0)
    least = "at least " if counters.unmeasured else ""
    parts = [f"{least}{spell_size(size_bytes)} on disk"] if size_bytes else []
    parts += [pluralize(counters.extents_removed, "extent")] if counters.extents_removed else []
    since = "the installation" if counters.since_us is None else format_day(counters.since_us)
    return f"{' and '.join(parts)} since {since}" if parts else ""
