# SPDX-License-Identifier: LGPL-2.1-or-later
"""How an outcome looks, for the commands that show some. The same in each."""

from __future__ import annotations

from typing import Final

from journalkeeper.cli.table import GREEN, RED, YELLOW, Column
from journalkeeper.cli.text import shown
from journalkeeper.model import Outcome, Result
from journalkeeper.model.units import format_size, format_span

COLOURS = {Result.DONE: GREEN, Result.SKIPPED: YELLOW, Result.FAILED: RED}

COLUMNS: Final[tuple[Column[Outcome], ...]] = (
    Column("ACTION", lambda one: one.action),
    Column("RESULT", lambda one: one.result),
    Column("REASON", lambda one: one.reason),
    Column("EXTENTS", lambda one: f"{one.extents_before} -> {one.extents_after}", right=True),
    Column("DISK", lambda one: sizes(one.disk_bytes_before, one.disk_bytes_after), right=True),
    Column("WRITTEN", lambda one: format_size(one.bytes_written), right=True),
)
PATH: Final[Column[Outcome]] = Column("PATH", lambda one: shown(one.path), gives="path")


def sizes(before: int | None, after: int | None) -> str:
    """Disk bytes before and after, "-" where either is not known."""
    return "-" if before is None or after is None else f"{format_size(before)} -> {format_size(after)}"


def span(duration_s: float) -> str:
    """A duration to the millisecond."""
    return format_span(round(duration_s * 1000) * 1000, 1000)
