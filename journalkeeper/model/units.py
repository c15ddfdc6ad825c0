# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sizes, time spans and booleans as systemd reads and writes them.

Every text that systemd accepts is accepted, with the same number, and every other is refused, so that journald.conf and
journalkeeper.conf follow the same rules.
Source: systemd 252, src/basic/parse-util.c, time-util.c, format-util.c; unchanged in 255.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

Number = TypeVar("Number", int, float)

U64_MAX = (1 << 64) - 1
INFINITY_US = U64_MAX
"""systemd's USEC_INFINITY: "infinity"."""

MS_US = 1000
SECOND_US = 1000 * MS_US
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US

TIME_LIMIT_US = 253_402_128_000 * SECOND_US
"""Two days before the year 10000, where datetime ends in every time zone."""

MAX_TEXT = 1000
"""The longest text that is parsed, because int() has its own limit with another message."""

SIZE_ALLOWED = "a size in bytes, or with K, M, G, T, P, E to the base 1024: 512K, 128M, 1.5G"
SPAN_ALLOWED = "a time span: 30s, 5min, 1h 30min, 500ms, infinity; a plain number is seconds"
BOOL_ALLOWED = "yes or no"

_SIZE_UNITS = (*((suffix, 1 << 10 * (6 - place)) for place, suffix in enumerate("EPTGMK")), ("B", 1), ("", 1))
# Patterns are compiled when first used (and kept by re): a tool that starts often prints more than it reads.
_SIZE_TERM = r"[ \t\n\r\v\f]*\+?([0-9]+)(?:\.([0-9]*))?[ \t\n\r]*"

_SPAN_UNITS = (
    ("y", 31_557_600 * SECOND_US),
    ("month", 2_629_800 * SECOND_US),
    ("w", 7 * DAY_US),
    ("d", DAY_US),
    ("h", HOUR_US),
    ("min", MINUTE_US),
    ("s", SECOND_US),
    ("ms", MS_US),
    ("us", 1),
)
_SPAN_WORDS = {
    **dict(_SPAN_UNITS),
    **dict.fromkeys(("years", "year"), 31_557_600 * SECOND_US),
    **dict.fromkeys(("months", "M"), 2_629_800 * SECOND_US),
    **dict.fromkeys(("weeks", "week"), 7 * DAY_US),
    **dict.fromkeys(("days", "day"), DAY_US),
    **dict.fromkeys(("hours", "hour", "hr"), HOUR_US),
    **dict.fromkeys(("minutes", "minute", "m"), MINUTE_US),
    **dict.fromkeys(("seconds", "second", "sec"), SECOND_US),
    "msec": MS_US,
    **dict.fromkeys(("usec", "\u03bcs", "\u00b5s"), 1),
}
# The longest word wins, as in systemd's table: "months" before "m", "msec" before "ms" before "m".
_SPAN_TERM = (
    r"[ \t\n\r\v\f]*(?:\+?([0-9]+)(?:\.([0-9]+))?|\.([0-9]+))(?P<gap>[ \t\n\r]*)(?P<word>"
    + "|".join(sorted(_SPAN_WORDS, key=len, reverse=True))
    + ")?"
)

_TRUE = frozenset(("1", "yes", "y", "true", "t", "on"))
_FALSE = frozenset(("0", "no", "n", "false", "f", "off"))


def parse_size(text: str) -> int:
    """Return the number of bytes of a size, base 1024; terms with falling suffixes add up ("1G 512M").

    Raises: ValueError with the permitted forms; also beyond 2^64-1. Source: parse_size().
    """
    pattern = re.compile(_SIZE_TERM)
    total, position, first_unit = 0, 0, 0
    while len(text) <= MAX_TEXT:
        term = pattern.match(text, position)
        unit = None if term is None else _size_unit(text, term.end(), first_unit)
        if term is None or unit is None:
            raise ValueError(SIZE_ALLOWED)
        suffix, factor = _SIZE_UNITS[unit]
        # A double divided once per digit, as systemd computes it: 1.1G must give the same byte.
        fraction = float(int(term[2] or 0))
        for _ in term[2] or "":
            fraction /= 10
        total += int(term[1]) * factor + int(fraction * factor)
        if max(total, int(term[1]), int(term[2] or 0)) > U64_MAX or int(term[1]) + (fraction > 0) > U64_MAX // factor:
            raise ValueError(SIZE_ALLOWED)
        position, first_unit = term.end() + len(suffix), unit + 1
        if position == len(text):
            return total
    raise ValueError(SIZE_ALLOWED)


def _size_unit(text: str, position: int, first: int) -> int | None:
    """Return the index of the first unit, from `first` on, that the text has at `position`; None if there is none."""
    for index in range(first, len(_SIZE_UNITS)):
        if text.startswith(_SIZE_UNITS[index][0], position):
            return index
    return None


def parse_span_us(text: str) -> int:
    """Return the number of microseconds of a time span; INFINITY_US for "infinity".

    A number without a unit is in seconds; terms add up ("1h 30min").
    Raises: ValueError with the permitted forms; also from 2^64-1 on. Source: parse_sec().
    """
    if text.strip(" \t\n\r") == "infinity":
        return INFINITY_US
    pattern = re.compile(_SPAN_TERM)
    text = text.rstrip(" \t\n\r")
    total, position = 0, 0
    while position < len(text) or position == 0:
        term = pattern.match(text, position) if len(text) <= MAX_TEXT else None
        if term is None:
            raise ValueError(SPAN_ALLOWED)
        position = term.end()
        if not term["word"] and not term["gap"] and position < len(text):
            raise ValueError(SPAN_ALLOWED)  # "12.34.56" or "5parsecs"; but "12.34 .56" is two terms
        unit = _SPAN_WORDS[term["word"] or "s"]
        whole = int(term[1] or 0)
        total += whole * unit + _fraction_us(term[2] or term[3] or "", unit)
        if whole >> 63 or whole >= INFINITY_US // unit or total >= INFINITY_US:
            raise ValueError(SPAN_ALLOWED)
    return total


def _fraction_us(digits: str, unit: int) -> int:
    """Return the microseconds of decimals; each digit's unit is truncated, as systemd does."""
    total = 0
    for digit in digits:
        unit //= 10
        total += int(digit) * unit
    return total


def parse_bool(text: str) -> bool:
    """Return the boolean for one of systemd's words, in any case.

    Raises: ValueError with the permitted words. Source: parse_boolean().
    """
    word = text.lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(BOOL_ALLOWED)


def format_size(size_bytes: int) -> str:
    """Return a size as systemd prints it: 89.0M with one decimal, truncated, base 1024; 512B below 1K.

    Source: FORMAT_BYTES().
    """
    for suffix, factor in _SIZE_UNITS[:6]:
        if size_bytes >= factor:
            # systemd cuts to the next smaller unit first, and so do we: the same digit on both screens.
            finer = size_bytes // (factor >> 10) if factor > 1024 else size_bytes
            return f"{size_bytes // factor}.{finer * 10 // 1024 % 10}{suffix}"
    return f"{size_bytes}B"


def spell_size(size_bytes: int) -> str:
    """Return a size for a sentence: 3.7 MiB, 576 KiB, 12 B; the number is that of `format_size`."""
    number, unit = format_size(size_bytes)[:-1], format_size(size_bytes)[-1]
    return f"{number.removesuffix('.0')} {'B' if unit == 'B' else f'{unit}iB'}"


def format_span(span_us: int, accuracy_us: int = SECOND_US) -> str:
    """Return a time span for people in at most two units: "1h 2min", "10min 14s", "infinity".

    The text is systemd's, cut after two units, the second without decimals. Parts shorter than `accuracy_us`, a power
    of ten or a unit, are left out unless nothing would remain. With an accuracy of 1 ms, 1.5 s is "1.500s". Source:
    format_timespan().
    """
    if span_us == INFINITY_US:
        return "infinity"
    if span_us <= 0:
        return "0"
    parts: list[str] = []
    left = span_us
    for word, unit in _SPAN_UNITS:
        if left <= 0 or len(parts) == 2 or (left < accuracy_us and parts):
            break
        if left < unit:
            continue
        whole, rest = divmod(left, unit)
        decimals = len(str(unit)) - len(str(accuracy_us))
        if not parts and left < MINUTE_US and rest and decimals > 0:
            return f"{whole}.{rest // accuracy_us:0{decimals}d}{word}"
        parts.append(f"{whole}{word}")
        left = rest
    return " ".join(parts)


def counted(number: int, singular: str) -> str:
    """Return a number with its noun in the right form: "1 file", "9,447 extents", "2 directories"."""
    plural = f"{singular[:-1]}ies" if singular.endswith("ry") else f"{singular}s"
    return f"{number:,} {singular if number == 1 else plural}"


def quantile(ordered: Sequence[Number], per_mille: int) -> Number | int:
    """Return the smallest value that is not exceeded by `per_mille` of a thousand values; 0 if there are no values."""
    return ordered[-(-len(ordered) * per_mille // 1000) - 1] if ordered else 0
