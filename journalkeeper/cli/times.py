# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parse points in time as systemd writes them, for --since and --until.

Pure: "now" is an argument. Times are local unless they end in UTC. Source: systemd.time(7), "Parsing Timestamps";
fractions below the microsecond are dropped.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from journalkeeper.model.units import SECOND_US, parse_span_us

_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_DATE = r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_TIME = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?"
_STAMP = re.compile(rf"(?:{_DATE}(?:[ T](?!$)|$))?(?:{_TIME})?", re.ASCII)
_EPOCH = re.compile(r"@(\d{1,12})(?:\.(\d{1,9}))?", re.ASCII)

ALLOWED = "2026-11-21, 2026-11-21 10:00, 10:00, today, yesterday, now, -3d, 3 days ago or @1795255200"


def parse_time_us(text: str, now_us: int) -> int:
    """Return `text` as microseconds since the epoch.

    Raises: ValueError with the allowed forms.
    """
    try:
        found = _parse(text.strip(), now_us)
    except (ValueError, OverflowError) as error:  # no such day, or out of datetime's range
        raise ValueError(f"{text!r} is not a time; allowed are {ALLOWED}") from error
    if found is None or found >= 1 << 63:  # SQLite's integers end there
        raise ValueError(f"{text!r} is not a time; allowed are {ALLOWED}")
    return max(found, 0)


def format_time(time_us: int) -> str:
    """Return a time for people: local, to the second."""
    return datetime.fromtimestamp(time_us // SECOND_US).strftime("%Y-%m-%d %H:%M:%S")


def _parse(text: str, now_us: int) -> int | None:
    if text == "now":
        return now_us
    if epoch := _EPOCH.fullmatch(text):
        return int(epoch[1]) * SECOND_US + _micros(epoch[2])
    if text[:1] in {"-", "+"}:
        return now_us + (1 if text[0] == "+" else -1) * parse_span_us(text[1:].strip())
    for word, sign in ((" ago", -1), (" left", 1)):
        if text.endswith(word):
            return now_us + sign * parse_span_us(text.removesuffix(word).strip())
    return _calendar(text, now_us)


def _calendar(text: str, now_us: int) -> int | None:
    """Parse a date, a time of today, or both. Seconds and time default to zero; None for another form."""
    utc = text.endswith((" UTC", "Z"))
    bare = text.removesuffix(" UTC").removesuffix("Z") if utc else text
    now = datetime.fromtimestamp(now_us // SECOND_US, tz=UTC if utc else None)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if bare in _DAYS:
        return _epoch_us(midnight + timedelta(days=_DAYS[bare]))
    match = _STAMP.fullmatch(bare)
    if match is None or not bare:
        return None
    date = {part: int(match[part]) for part in ("year", "month", "day") if match[part]}
    time = {part: int(match[part] or 0) for part in ("hour", "minute", "second")}
    return _epoch_us(midnight.replace(**date, **time)) + _micros(match["fraction"])  # type: ignore[arg-type] # only ints


def _micros(fraction: str | None) -> int:
    return int((fraction or "0").ljust(6, "0")[:6])


def _epoch_us(moment: datetime) -> int:
    """Return microseconds since the epoch. A naive time is local (datetime.timestamp)."""
    return round(moment.timestamp()) * SECOND_US
