# SPDX-License-Identifier: LGPL-2.1-or-later
"""Weekly spans of local time, as in QuietHours=: their text, and when the present one ends."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Final

from journalkeeper.model.units import MINUTE_US, SECOND_US, TIME_LIMIT_US, split_terms

ALLOWED: Final = "spans of a day such as Mon..Fri 08:00..12:00 13:00..18:00 Sat,Sun 22:00..07:30, not the whole week"
_NAMES: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS: Final = {name[:length]: number for number, name in enumerate(_NAMES) for length in (3, len(name))}
_CLOCK: Final = r"([01]?[0-9]|2[0-3]):([0-5][0-9])"
_TERM: Final = rf"[ \t]*(?:([A-Za-z.,]+)[ \t]+)?{_CLOCK}\.\.(?:{_CLOCK}|24:00)(?=[ \t]|\Z)"
_DAY_MINUTES: Final = 24 * 60
_WEEK_MINUTES: Final = 7 * _DAY_MINUTES


@cache
def parse_weekly(text: str) -> frozenset[int]:
    """Return the minutes of the week in "Mon..Fri 08:00..18:00 Sat,Sun 22:00..07:30"; 0 is on Monday at 00:00.

    Weekdays (in the form of systemd.time(7)) apply to the spans after them; spans at the beginning are on each day. A
    span whose end is not after its beginning ends on the next day; 24:00 may end a span.

    Raises: ValueError with the permitted form, also if `text` is empty or contains the whole week.
    """
    minutes, days = set[int](), set(range(7))
    for names, hour, minute, end_hour, end_minute in split_terms(_TERM, text, ALLOWED):
        days = _parse_days(names) if names else days
        begin, end = int(hour) * 60 + int(minute), int(end_hour or 24) * 60 + int(end_minute or 0)
        length = (end - begin - 1) % _DAY_MINUTES + 1
        minutes |= {(day * _DAY_MINUTES + begin + one) % _WEEK_MINUTES for day in days for one in range(length)}
    if len(minutes) == _WEEK_MINUTES:
        raise ValueError(ALLOWED)
    return frozenset(minutes)


def _parse_days(word: str) -> set[int]:
    """Return the weekdays in "Mon..friday,SUN", from 0 for Monday. A range may pass Sunday. Raises: ValueError."""
    days = set[int]()
    for part in word.lower().split(","):
        ends = [_DAYS.get(name, -1) for name in part.split("..", 1)]
        if min(ends) < 0:
            raise ValueError(ALLOWED)
        days |= {(ends[0] + one) % 7 for one in range((ends[-1] - ends[0]) % 7 + 1)}
    return days


def find_weekly_end(now_us: int, spans: str) -> datetime | None:
    """Return when the weekly `spans` of now end, a whole minute as naive local time; None outside of them or for "".

    Each minute is looked up by the wall clock, so that a switch to or from summer time needs no rule.
    """
    minutes = parse_weekly(spans) if spans else frozenset[int]()
    for begin_s in range(now_us // MINUTE_US * 60, TIME_LIMIT_US // SECOND_US, 60):
        now = datetime.fromtimestamp(begin_s)
        if now.weekday() * _DAY_MINUTES + now.hour * 60 + now.minute not in minutes:
            return now if begin_s * SECOND_US > now_us else None
    return None
