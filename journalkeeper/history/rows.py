# SPDX-License-Identifier: LGPL-2.1-or-later
"""The values of the rows of the history: how they are stored, counted from a look at the host, and dated."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from journalkeeper.model import Host, JournalFile, Kind, Sums
from journalkeeper.model.history import Sample, Totals
from journalkeeper.model.units import HOUR_US

CONFIRM_US: Final = 12 * HOUR_US
"""A clock that a later run finds this much later is trusted: it was not set ahead for a moment."""


def encode(column: str, value: object) -> object:
    """Return a value as SQLite stores it in the column `column`: paths as bytes, other texts as valid UTF-8."""
    if not isinstance(value, str):
        return value
    return os.fsencode(value) if column == "path" else value.encode(errors="backslashreplace").decode()


def confirm_clock(moments: Mapping[str, int], now_us: int) -> dict[str, int]:
    """Return the moments "clock" and "confirmed" for the present time `now_us`. `moments` stays unchanged.

    "confirmed" is a time that the clock showed at least CONFIRM_US before a later call. No moment exceeds `now_us`.
    """
    clock_us, confirmed_us = moments.get("clock", now_us), moments.get("confirmed")
    if now_us - clock_us >= CONFIRM_US:
        clock_us, confirmed_us = now_us, clock_us
    clock_us = min(clock_us, now_us)  # the clock was ahead, and was set back
    return {"clock": clock_us} | ({} if confirmed_us is None else {"confirmed": min(confirmed_us, now_us)})


def list_rows(now_us: int, host: Host) -> list[tuple[str, str, Totals | Sample]]:
    """Return the rows to store about files without a problem, each as (table, column of the subject, row)."""
    below: dict[str, list[JournalFile]] = {}
    for file in host.files:
        if file.problem is None:
            below.setdefault(file.instance, []).append(file)
    active = [file for files in below.values() for file in files if file.kind is Kind.ACTIVE]
    return [
        *(("totals", "instance", sum_files(now_us, name, below[name])) for name in sorted(below)),
        *(("samples", "path", _measure_active(now_us, file)) for file in active),
    ]


def _measure_active(now_us: int, file: JournalFile) -> Sample:
    return Sample(now_us, file.path, file.extents.total, file.ideal_extents, file.size_bytes, file.allocated_bytes)


def sum_files(now_us: int, instance: str, files: Sequence[JournalFile]) -> Totals:
    """Return the totals of `instance` at the time `now_us`, as sums over all `files`, also those with a problem."""
    every = Sums.of(files)
    active = sum(file.extents.total for file in files if file.kind is Kind.ACTIVE)
    counts = (every.files, every.extents, every.ideal_extents, active)
    return Totals(now_us, instance, *counts, every.size_bytes, every.allocated_bytes)
