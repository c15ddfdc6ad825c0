# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rows of the record, and what is made of those that SQLite gives.

A row is believed only after a look at it. A column of SQLite's takes any type, a newer
version knows other words, a bad disk flips bits: what cannot be is a ValueError here, and the reader of
the record leaves that one row out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from journalkeeper.model import Kind, Outcome, Past, Verb
from journalkeeper.model.recorded import Entry, Run, Sample, Totals
from journalkeeper.model.units import HOUR_US, TIME_LIMIT_US
from journalkeeper.model.waiting import Wait
from journalkeeper.wire.field import SECONDS, Field, Fields, column, stored
from journalkeeper.wire.records import KEPT_OUTCOME

CONFIRM_US = 12 * HOUR_US
"""A clock that a later run finds so much later was not set ahead for a moment."""

COUNT_LIMIT = 1 << 50
"""Of bytes and extents: a thousand times what one file may have, and two of them fit a sum."""


def past(row: tuple[Any, ...]) -> tuple[int, Past]:
    """An inode and its last rewrite, of (inode, verb, when_us, size_bytes, mtime_ns, four counts, compress, kind)."""
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


def ran(row: tuple[Any, ...]) -> Run:
    """One run, of (id, origin, began_us, ended_us, four numbers)."""
    number, origin, began_us, ended_us, *numbers = row
    return Run(number, str(origin), _time(began_us), None if ended_us is None else _time(ended_us), *numbers)


def counted(row: tuple[Any, ...]) -> tuple[str, list[int]]:
    """What is counted, and its numbers, of the columns of ever."""
    what, *numbers = row
    return str(what), [_integer(number) for number in numbers]


def moment(row: tuple[Any, ...]) -> tuple[str, int]:
    """Return the name and the time of a row of moments."""
    return str(row[0]), _time(row[1])


def confirm_clock(moments: Mapping[str, int], now_us: int) -> dict[str, int]:
    """Return the moments "clock" and "confirmed" as they are after a look at a clock that shows `now_us`."""
    clock_us, confirmed_us = moments.get("clock", now_us), moments.get("confirmed")
    if now_us - clock_us >= CONFIRM_US:
        clock_us, confirmed_us = now_us, clock_us
    clock_us = min(clock_us, now_us)  # the clock was ahead, and was set back
    return {"clock": clock_us} | ({} if confirmed_us is None else {"confirmed": min(confirmed_us, now_us)})


def columns(fields: Fields) -> str:
    """The columns of these fields, for a statement."""
    return ", ".join(map(column, fields))


def outcome_values(outcome: Outcome) -> list[Any]:
    """What the columns of an outcome keep."""
    return [os.fsencode(outcome.path) if row.key == "path" else stored(row, outcome) for row in KEPT_OUTCOME]


def entry(row: tuple[Any, ...]) -> Entry:
    """One outcome, of (when_us, origin) and the columns of KEPT_OUTCOME."""
    when_us, origin, *values = row
    known = {field.key: _believed(field, value) for field, value in zip(KEPT_OUTCOME, values, strict=True)}
    return Entry(_time(when_us), str(origin), Outcome(**known))


def _believed(field: Field, value: object) -> Any:
    """A column's value, if it can be."""
    if value is None and field.type.optional:
        return None
    if field.key == "path":
        return _path(value)
    if field.type is SECONDS:
        return _count(value) / 1e6
    return _count(value) if field.type.signature == "t" else field.type.read(value)


def named(row: tuple[Any, ...]) -> str:
    """A path, of (path,)."""
    return _path(row[0])


def waited(row: tuple[Any, ...]) -> Wait:
    """A file that waits, of (path, since_us, reason)."""
    path, since_us, reason = row
    return Wait(_path(path), _time(since_us), str(reason))


def sample(row: tuple[Any, ...]) -> Sample:
    """One active file, of the columns of samples."""
    when_us, path, *numbers = row
    return Sample(_time(when_us), _path(path), *_counts(numbers))


def totals(row: tuple[Any, ...]) -> Totals:
    """One instance, of the columns of totals."""
    when_us, instance, *numbers = row
    return Totals(_time(when_us), str(instance), *_counts(numbers))


def encodable(text: str) -> str:
    """Text as SQLite takes it: bytes of a name that are no text are written as in Python."""
    return text.encode(errors="backslashreplace").decode()


def _counts(values: Iterable[object]) -> list[int]:
    return [_count(value) for value in values]


def _path(value: object) -> str:
    if not isinstance(value, bytes):
        raise ValueError(f"{value!r:.40} is no path")
    return os.fsdecode(value)


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"{value!r:.40} is no integer")
    return value


def _count(value: object) -> int:
    number = _integer(value)
    if not 0 <= number <= COUNT_LIMIT:
        raise ValueError(f"{number} is no number of bytes, extents or microseconds")
    return number


def _time(value: object) -> int:
    number = _integer(value)
    if not 0 <= number < TIME_LIMIT_US:
        raise ValueError(f"{number} is no time")
    return number
