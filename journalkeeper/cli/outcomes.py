# SPDX-License-Identifier: LGPL-2.1-or-later
"""How an outcome looks, for the commands that show some. The same in each."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from journalkeeper.cli.table import GREEN, RED, YELLOW, Column
from journalkeeper.cli.text import shown
from journalkeeper.model import Outcome, Result, Verb
from journalkeeper.model.units import counted, format_size, format_span

COLOURS = {Result.DONE: GREEN, Result.SKIPPED: YELLOW, Result.FAILED: RED}


def _extents(one: Outcome) -> str:
    return f"{one.extents_before} -> {one.extents_after}" if on_file(one.action) else "-"


COLUMNS: Final[tuple[Column[Outcome], ...]] = (
    Column("ACTION", lambda one: one.action),
    Column("RESULT", lambda one: one.result),
    Column("REASON", lambda one: one.reason),
    Column("EXTENTS", _extents, right=True),
    Column("DISK", lambda one: sizes(one.disk_bytes_before, one.disk_bytes_after), right=True),
    Column("WRITTEN", lambda one: format_size(one.bytes_written), right=True),
)
PATH: Final[Column[Outcome]] = Column("PATH", lambda one: shown(one.path), gives="path")


def on_file(action: str) -> bool:
    """Whether an action is on a file, which has extents, and not on a directory."""
    return action != Verb.SET_NOCOW


def subjects(actions: Collection[str]) -> str:
    """What actions are done to: "2 files", "1 directory", "1 file and 1 directory"."""
    files = sum(map(on_file, actions))
    numbers = ((files, "file"), (len(actions) - files, "directory"))
    return " and ".join(counted(number, noun) for number, noun in numbers if number)


def sizes(before: int | None, after: int | None) -> str:
    """Disk bytes before and after, "-" where either is not known."""
    return "-" if before is None or after is None else f"{format_size(before)} -> {format_size(after)}"


def span(duration_s: float) -> str:
    """A duration to the millisecond."""
    return format_span(round(duration_s * 1000) * 1000, 1000)
