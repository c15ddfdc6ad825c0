# SPDX-License-Identifier: LGPL-2.1-or-later
"""The form of an outcome, the same in all commands that show outcomes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from journalkeeper.cli.table import GREEN, LEAST_PATH, RED, YELLOW
from journalkeeper.cli.text import elide, shown
from journalkeeper.model import Outcome, Result, Verb
from journalkeeper.model.reasons import describe_outcome, short_name
from journalkeeper.model.units import counted, format_span, spell_size
from journalkeeper.wire.documents import disk_sums

COLOURS = {Result.DONE: GREEN, Result.SKIPPED: YELLOW, Result.FAILED: RED}


def describe(outcome: Outcome, width: int | None) -> str:
    """Return the sentence on an outcome for a terminal of `width` columns, which shortens long names."""
    name = short_name(outcome.path) if on_file(outcome.action) else outcome.path
    return shown(describe_outcome(outcome, name if width is None else elide(name, LEAST_PATH)))


def on_file(action: str) -> bool:
    """Return whether an action is on a file, which has extents, and not on a directory."""
    return action != Verb.SET_NOCOW


def subjects(actions: Collection[str]) -> str:
    """Return the number of files and directories that `actions` are on: "2 files", "1 file and 1 directory"."""
    files = sum(map(on_file, actions))
    numbers = ((files, "file"), (len(actions) - files, "directory"))
    return " and ".join(counted(number, noun) for number, noun in numbers if number)


def describe_sums(outcomes: Sequence[Outcome]) -> str:
    """Return the extents and, where all were measured, the disk bytes of files before and after: "; 9 to 1 extents"."""
    before, after = sum(one.extents_before for one in outcomes), sum(one.extents_after for one in outcomes)
    disk_before, disk_after = disk_sums(outcomes)
    text = f"{before:,} to {counted(after, 'extent')}"
    if disk_before is None or disk_after is None:
        return text
    return f"{text}, {spell_size(disk_before)} to {spell_size(disk_after)} on disk"


def format_duration(duration_s: float) -> str:
    """Return a duration to the millisecond."""
    return format_span(round(duration_s * 1000) * 1000, 1000)
