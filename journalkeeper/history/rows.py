# SPDX-License-Identifier: LGPL-2.1-or-later
"""Convert records to rows of the history and back, and check each value.

A newer version knows other words, and a bad disk flips bits. An impossible value is a ValueError here, and `Record`
skips that row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from journalkeeper.model import Host, JournalFile, Kind, Outcome, Sums
from journalkeeper.model.record import column, split_hint, to_columns
from journalkeeper.model.units import HOUR_US, TIME_LIMIT_US

CONFIRM_US: Final = 12 * HOUR_US
"""A clock that a later run finds this much later is trusted: it was not set ahead for a moment."""

COUNT_LIMIT: Final = 1 << 50
"""The largest number of bytes or extents: a thousand times what one file may have, and the sum of two fits."""

ANY_NUMBER: Final = frozenset({"mtime_ns", "bytes_reclaimed"})
"""Fields whose values may be negative or larger."""

T = TypeVar("T")


class Ever(NamedTuple):
    """A row of the table `ever`: sums over all outcomes of one kind since the history began."""

    what: str
    times: int
    bytes_written: int
    extents_removed: int
    bytes_reclaimed: int
    reclaims_known: int
    unmeasured: int


@cache
def _describe(kind: Any) -> tuple[Callable[[object], Any], list[int], list[tuple[int, str, int]]]:
    """Return what `parse_row` needs for a record class: its validator, its path columns, and its number columns.

    The path columns are indexes into the fields. The number columns are (index, name, limit): a valid number is from 0
    to below the limit.
    """
    types = [split_hint(hint)[0] for hint in get_type_hints(kind, include_extras=True).values()]
    numbers = [
        (place, name, TIME_LIMIT_US if name.endswith("_us") else COUNT_LIMIT)
        for place, (name, one) in enumerate(zip(kind._fields, types, strict=True))
        if one in {int, float} and name not in ANY_NUMBER
    ]
    paths = [place for place, name in enumerate(kind._fields) if name == "path"]
    return TypeAdapter(kind).validate_python, paths, numbers


def parse_row(kind: type[T], row: Sequence[object]) -> T:
    """Return the record of class `kind` for a database row, which has one column for each field in the same order.

    Paths are decoded from bytes. Numbers stay as they are stored, so a time span is a number of microseconds.

    Raises: ValueError for a value of a wrong type, a negative number, or a number beyond its limit.
    """
    validate, paths, numbers = _describe(cast("Any", kind))
    values = list(row)
    for place in paths:
        if not isinstance(path := values[place], bytes):
            raise ValueError(f"{path!r:.40} is not a path")
        values[place] = os.fsdecode(path)
    try:
        parsed: T = validate(values)
    except ValidationError as error:
        raise ValueError(f"{error.errors()[0]['input']!r:.40} is not possible") from error
    for place, name, limit in numbers:
        number = parsed[place]  # type: ignore[index]
        if number is not None and not 0 <= number < limit:
            raise ValueError(f"{name}: {number} is not possible")
    return parsed


def confirm_clock(moments: Mapping[str, int], now_us: int) -> dict[str, int]:
    """Return the moments "clock" and "confirmed", updated for the present time `now_us`.

    "clock" is a time that the clock showed. When CONFIRM_US have passed since, this time becomes "confirmed" and
    `now_us` becomes "clock". A clock that jumped ahead is usually set back before that. If `now_us` is earlier than
    either moment, this moment becomes `now_us`.
    """
    clock_us, confirmed_us = moments.get("clock", now_us), moments.get("confirmed")
    if now_us - clock_us >= CONFIRM_US:
        clock_us, confirmed_us = now_us, clock_us
    clock_us = min(clock_us, now_us)  # the clock was ahead, and was set back
    return {"clock": clock_us} | ({} if confirmed_us is None else {"confirmed": min(confirmed_us, now_us)})


def columns(kind: Any) -> str:
    """Return the column names of a record's fields, separated by commas, for an SQL statement."""
    return ", ".join(map(column, kind._fields))


def outcome_values(outcome: Outcome) -> list[Any]:
    """Return the values of an outcome in the order of its columns."""
    return list((to_columns(outcome) | {"path": os.fsencode(outcome.path)}).values())


def encodable(value: object) -> object:
    """Return a value that SQLite can store. In a text, bytes that are not UTF-8 are escaped as in Python."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def count_extents(host: Host) -> list[tuple[str, str | bytes, tuple[int, ...]]]:
    """Return (table, name, numbers) for each row to store: the totals of an instance, or the extents of an active file.

    Files with a problem are left out.
    """
    files = [file for file in host.files if file.problem is None]
    instances = sorted({file.instance for file in files})
    actives = [file for file in files if file.kind is Kind.ACTIVE]
    return [
        *(("totals", name, totals(one for one in files if one.instance == name)) for name in instances),
        *(
            (
                "samples",
                os.fsencode(one.path),
                (one.extents.total, one.ideal_extents, one.size_bytes, one.allocated_bytes),
            )
            for one in actives
        ),
    ]


def totals(files: Iterable[JournalFile]) -> tuple[int, ...]:
    """Return the sums over `files`, in the order of the columns of the table `totals` after its instance."""
    files = tuple(files)
    every = Sums.of(files)
    active = Sums.of(file for file in files if file.kind is Kind.ACTIVE)
    return every.files, every.extents, every.ideal_extents, active.extents, every.size_bytes, every.allocated_bytes
