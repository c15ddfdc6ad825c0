# SPDX-License-Identifier: LGPL-2.1-or-later
"""Convert the extent counts of a host to rows of the history, if they changed."""

from __future__ import annotations

import os
from collections.abc import Iterable

from journalkeeper.history.database import Connection
from journalkeeper.model import Host, JournalFile, Kind, Sums


def find_new_rows(
    connection: Connection, now_us: int, host: Host, every_us: int
) -> list[tuple[str, tuple[object, ...]]]:
    """Return the rows of `totals` and `samples` that differ from the last stored row, each with its table."""
    fresh: list[tuple[str, tuple[object, ...]]] = []
    files = [file for file in host.files if file.problem is None]
    observed: list[tuple[str, str, str | bytes, tuple[int, ...]]] = [
        ("totals", "instance", name, totals(one for one in files if one.instance == name))
        for name in sorted({file.instance for file in files})
    ]
    observed += [
        ("samples", "path", os.fsencode(file.path), _numbers(file)) for file in files if file.kind is Kind.ACTIVE
    ]
    for table, column, name, numbers in observed:
        last = connection.execute(
            f"SELECT * FROM {table} WHERE {column} = ? AND typeof(when_us) = 'integer' ORDER BY id DESC LIMIT 1",  # noqa: S608 - our tables
            (name,),
        ).fetchone()
        if last is None or (last[3:] != numbers and not 0 <= now_us - last[1] < every_us):
            fresh.append((table, (None, now_us, name, *numbers)))
    return fresh


def totals(files: Iterable[JournalFile]) -> tuple[int, ...]:
    """Return the columns of a row of `totals` that follow its instance."""
    files = tuple(files)
    every = Sums.of(files)
    active = Sums.of(file for file in files if file.kind is Kind.ACTIVE)
    return every.files, every.extents, every.ideal_extents, active.extents, every.size_bytes, every.allocated_bytes


def _numbers(file: JournalFile) -> tuple[int, ...]:
    return file.extents.total, file.ideal_extents, file.size_bytes, file.allocated_bytes
