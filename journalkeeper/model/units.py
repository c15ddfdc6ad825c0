# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sizes and time spans as systemd reads and writes them, compressions, and names as a terminal shows them.

Every text that systemd accepts is accepted, with the same number, and other texts are refused, so that journald.conf
and journalkeeper.conf follow the same rules. Spans of more than 292,000 years are accepted, too.
Source: systemd 252, src/basic/parse-util.c, time-util.c, format-util.c; unchanged in 255.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final, NamedTuple, TypeVar

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

SIZE_UNITS = {**{suffix: 1 << 10 * (6 - place) for place, suffix in enumerate("EPTGMK")}, "B": 1, "": 1}
# Patterns are compiled when first used (and kept by re): a tool that starts often prints more than it reads.
_SIZE_TERM = r"[ \t\n\r\v\f]*\+?([0-9]+)(?:\.([0-9]*))?[ \t\n\r]*([EPTGMKB]?)"

SPAN_UNITS = (
    (31_557_600 * SECOND_US, ("y", "years", "year")),
    (2_629_800 * SECOND_US, ("month", "months", "M")),
    (7 * DAY_US, ("w", "weeks", "week")),
    (DAY_US, ("d", "days", "day")),
    (HOUR_US, ("h", "hours", "hour", "hr")),
    (MINUTE_US, ("min", "minutes", "minute", "m")),
    (SECOND_US, ("s", "seconds", "second", "sec")),
    (MS_US, ("ms", "msec")),
    (1, ("us", "usec", "\u03bcs", "\u00b5s")),
)
"""Each unit with its words; the first word is written, and all are read."""

SHORT_UNITS: Final = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_SPAN_WORDS = {word: unit for unit, words in SPAN_UNITS for word in words}
# A number without a unit is followed by a space or the end: "12.34.56" is refused, "12.34 .56" is two terms.
# The longest word wins, as in systemd's table: "months" before "m", "msec" before "ms" before "m".
_SPAN_TERM = (
    r"[ \t\n\r\v\f]*(?:\+?([0-9]+)(?:\.([0-9]+))?|\.([0-9]+))(?:[ \t\n\r]*("
    + "|".join(sorted(_SPAN_WORDS, key=len, reverse=True))
    + r")|[ \t\n\r]+|\Z)"
)


def parse_size(text: str) -> int:
    """Return the number of bytes of a size such as "1G 512M" or "1.5G", larger units first. K is 1024 bytes.

    Raises: ValueError with the permitted forms, also for a sum beyond 2^64-1. Source: systemd's parse_size().
    """
    total, units = 0, list(SIZE_UNITS)
    for whole, decimals, unit in split_terms(_SIZE_TERM, text, SIZE_ALLOWED):
        total += int(Fraction(f"{whole}.{decimals}0") * SIZE_UNITS[unit])
        if total > U64_MAX or unit not in units:
            raise ValueError(SIZE_ALLOWED)
        units = units[units.index(unit) + 1 :]
    return total


def split_terms(term: str, text: str, allowed: str) -> list[tuple[str, ...]]:
    """Return the groups of the matches of `term` that make up `text`. A group that did not match is "".

    Raises: ValueError with `allowed` for any other text, also if it is empty or longer than MAX_TEXT.
    """
    terms = list(re.finditer(term, text)) if len(text) <= MAX_TEXT else []
    if not terms or "".join(found[0] for found in terms) != text:
        raise ValueError(allowed)
    return [found.groups("") for found in terms]


def parse_span_us(text: str) -> int:
    """Return the number of microseconds of a time span such as "1h 30min" or "1.5h"; INFINITY_US for "infinity".

    A number without a unit is in seconds. Raises: ValueError with the permitted forms. Source: systemd's parse_sec().
    """
    if text.strip(" \t\n\r") == "infinity":
        return INFINITY_US
    total = 0
    for whole, decimals, only_decimals, word in split_terms(_SPAN_TERM, text.rstrip(" \t\n\r"), SPAN_ALLOWED):
        total += int(Fraction(f"{whole or 0}.{decimals or only_decimals}0") * _SPAN_WORDS[word or "s"])
        if total >= INFINITY_US:
            raise ValueError(SPAN_ALLOWED)
    return total


def format_size(size_bytes: int) -> str:
    """Return a size as systemd prints it: 89.0M with one decimal, truncated, base 1024; 512B below 1K.

    Source: FORMAT_BYTES().
    """
    for suffix, factor in list(SIZE_UNITS.items())[:6]:
        if size_bytes >= factor:
            # systemd cuts to the next smaller unit first, and so do we: the same digit on both screens.
            finer = size_bytes // (factor >> 10) if factor > 1024 else size_bytes
            return f"{size_bytes // factor}.{finer * 10 // 1024 % 10}{suffix}"
    return f"{size_bytes}B"


def format_exact(number: int, units: Mapping[str, int] = SIZE_UNITS) -> str:
    """Return a number in the largest of `units` that divides it: "4G", "512M", "100K", "7B"; "0"."""
    suffix, unit = next((one for one in units.items() if number and number % one[1] == 0), ("", 1))
    return f"{number // unit}{suffix}"


def spell_size(size_bytes: int) -> str:
    """Return a size for a sentence: 3.7 MiB, 576 KiB, 12 B; the number is that of `format_size`, without ".0"."""
    number, unit = format_size(size_bytes)[:-1], format_size(size_bytes)[-1]
    return f"{number.removesuffix('.0')} {'B' if unit == 'B' else f'{unit}iB'}"


def format_span(span_us: int, accuracy_us: int = SECOND_US) -> str:
    """Return a time span in its two largest units, from y to us, that are not 0: "1w 2d", "1d 5s"; "infinity"; "0".

    The rest and a second unit below `accuracy_us` are cut off: 1.5 s is "1s", 0.5 s is "500ms". systemd accepts them.
    """
    if span_us == INFINITY_US:
        return "infinity"
    parts: list[str] = []
    for unit, (word, *_) in SPAN_UNITS:
        if len(parts) == 2 or (parts and unit < accuracy_us):
            break
        if span_us >= unit:
            parts.append(f"{span_us // unit}{word}")
            span_us %= unit
    return " ".join(parts) or "0"


def spell_time(seconds: float) -> str:
    """Return a duration with up to three digits, in s, ms, us or ns: "1.05s", "12us", "0ns"; from 60 s "3min 12s"."""
    if seconds >= 60:
        return format_span(round(seconds) * SECOND_US)
    rounded = float(f"{seconds:.3g}")
    unit, size = next((one for one in SHORT_UNITS if rounded >= one[1]), SHORT_UNITS[-1])
    return f"{rounded / size:.3g}{unit}"


def pluralize(number: int, singular: str) -> str:
    """Return a number with its noun: "1 file", "9,447 extents", "2 directories". A plural has -s, or -ries for -ry."""
    plural = f"{singular[:-1]}ies" if singular.endswith("ry") else f"{singular}s"
    return f"{number:,} {singular if number == 1 else plural}"


def quantile(ordered: Sequence[Number], per_mille: int) -> Number | int:
    """Return the least value that `per_mille` (1 to 1000) in a thousand `ordered` values do not exceed; 0 for none."""
    return ordered[-(-len(ordered) * per_mille // 1000) - 1] if ordered else 0


def escape(name: str) -> str:
    r"""Return `name` with each character escaped that is not printable, so that it cannot control a terminal.

    These are all characters for which str.isprintable() is False: control characters, line separators, text
    direction overrides, every space but " ", and the bytes that are not UTF-8 (surrogates, see os.fsdecode). They
    become Python's escapes, such as `\n`, `\x1b` or `\u202e`. A backslash is doubled, so that no two names look alike.

    >>> escape("a\x1b[31m.journal")
    'a\\x1b[31m.journal'
    """
    return "".join(one if one.isprintable() and one != "\\" else repr(one)[1:-1] for one in name)


HIGHEST_LEVEL = {"zlib": 9, "lzo": 0, "zstd": 15}
"""Each algorithm's highest level; lzo has none (fs/btrfs/{zlib,lzo,zstd}.c)."""

COMPRESSION_ALLOWED = "no, lzo, zlib, zlib:1 to zlib:9, zstd, or zstd:1 to zstd:15"


class Compression(NamedTuple):
    """An algorithm, "zlib", "lzo" or "zstd", and its level; None leaves the level to the kernel."""

    algorithm: str
    level: int | None = None

    def __str__(self) -> str:
        return self.algorithm if self.level is None else f"{self.algorithm}:{self.level}"


def explain_lost_level(asked: Compression, tool: str) -> str:
    """Return the detail for a rewrite without the level of `asked`: "as zstd, not zstd:3: TOOL takes no level"."""
    return f"as {asked.algorithm}, not {asked}: {tool} takes no level"


def parse_compression(text: str) -> Compression | None:
    """Return the compression that `text` names, such as "zstd:3", or None for "no".

    Raises: ValueError with the permitted words for any other text.
    """
    if text == "no":
        return None
    algorithm, colon, digits = text.partition(":")
    level = int(digits) if digits.isascii() and digits.isdigit() else 0
    if algorithm in HIGHEST_LEVEL and (not colon or 1 <= level <= HIGHEST_LEVEL[algorithm]):
        return Compression(algorithm, level or None)
    raise ValueError(f"{text!r} is not a compression; allowed are {COMPRESSION_ALLOWED}")
