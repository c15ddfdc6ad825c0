# SPDX-License-Identifier: LGPL-2.1-or-later
"""Convert the rows of the history to records, and check each value.

A column of SQLite takes any type, a newer version knows other words, and a bad disk flips bits. An impossible value is
a ValueError here, and `Record` skips that row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from journalkeeper.model import Kind, Outcome, Past, Verb
from journalkeeper.model.record import column, parse_record, to_columns
from journalkeeper.model.recorded import Entry, Run, Sample, Totals
from journalkeeper.model.units import HOUR_US, TIME_LIMIT_US
from journalkeeper.model.waiting import Wait

CONFIRM_US = 12 * HOUR_US
"""A clock that a later run finds this much later is trusted: it was not set ahead for a moment."""

COUNT_LIMIT = 1 << 50
"""The largest number of bytes or extents: a thousand times what one file may have, and the sum of two fits."""


def parse_past(row: tuple[Any, ...]) -> tuple[int, Past]:
    """Return an inode and its last rewrite.

    The columns are inode, verb, when_us, size_bytes, mtime_ns, four counts, compress and kind.
    """
    inode, verb, when_us, size_bytes, mtime_ns, *counts, compress, kind = row
    extents, before, expected, written = _counts(counts)
    return _integer(inode), Past(
        verb=Verb(verb),
        when_us=_time(when_us),
        size_bytes=_count(size_bytes),
        mtime_ns=_integer(mtime_ns),
        extents=extents,
        extents_before=before,
        extents_expected=expected,
        bytes_written=written,
        compress=None if compress is None else str(compress),
        kind=None if kind is None else Kind(kind),
    )


def parse_run(row: tuple[Any, ...]) -> Run:
    """Return a run from (id, origin, began_us, ended_us, four numbers)."""
    number, origin, began_us, ended_us, *numbers = row
    return Run(number, str(origin), _time(began_us), None if ended_us is None else _time(ended_us), *numbers)


def parse_counters(row: tuple[Any, ...]) -> tuple[str, list[int]]:
    """Return the name and the numbers of a row of the table `ever`."""
    what, *numbers = row
    return str(what), [_integer(number) for number in numbers]


def parse_moment(row: tuple[Any, ...]) -> tuple[str, int]:
    """Return the name and the time of a row of the table `moments`."""
    return str(row[0]), _time(row[1])


def confirm_clock(moments: Mapping[str, int], now_us: int) -> dict[str, int]:
    """Return the moments "clock" and "confirmed", updated for a clock that now shows `now_us`."""
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


def parse_entry(row: tuple[Any, ...]) -> Entry:
    """Return an outcome from (when_us, origin) and the columns of an outcome."""
    when_us, origin, *values = row
    known = dict(zip(Outcome._fields, values, strict=True))
    _counts(value for value in values if isinstance(value, int))
    known |= {"path": _path(known["path"]), "duration_s": _count(known["duration_s"]) / 1e6}
    return Entry(_time(when_us), str(origin), parse_record(Outcome, known))


def parse_path(row: tuple[Any, ...]) -> str:
    """Return a path from (path,)."""
    return _path(row[0])


def parse_wait(row: tuple[Any, ...]) -> Wait:
    """Return a file that waits from (path, since_us, reason)."""
    path, since_us, reason = row
    return Wait(_path(path), _time(since_us), str(reason))


def parse_sample(row: tuple[Any, ...]) -> Sample:
    """Return the extent counts of an active file from the columns of `samples`."""
    when_us, path, *numbers = row
    return Sample(_time(when_us), _path(path), *_counts(numbers))


def parse_totals(row: tuple[Any, ...]) -> Totals:
    """Return the totals of an instance from the columns of `totals`."""
    when_us, instance, *numbers = row
    return Totals(_time(when_us), str(instance), *_counts(numbers))


def encodable(text: str) -> str:
    """Return text that SQLite accepts: bytes of a name that are not UTF-8 are escaped as in Python."""
    return text.encode(errors="backslashreplace").decode()


def _counts(values: Iterable[object]) -> list[int]:
    return [_count(value) for value in values]


def _path(value: object) -> str:
    if not isinstance(value, bytes):
        raise ValueError(f"{value!r:.40} is not a path")
    return os.fsdecode(value)


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r:.40} is not an integer")
    return value


def _count(value: object) -> int:
    number = _integer(value)
    if not 0 <= number <= COUNT_LIMIT:
        raise ValueError(f"{number} is not a number of bytes, extents or microseconds")
    return number


def _time(value: object) -> int:
    number = _integer(value)
    if not 0 <= number < TIME_LIMIT_US:
        raise ValueError(f"{number} is not a time")
    return number
