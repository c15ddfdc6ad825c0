# SPDX-License-Identifier: LGPL-2.1-or-later
"""How an outcome looks, for the commands that show some. The one rule: the same in each."""

from __future__ import annotations

from journalkeeper.cli.table import GREEN, RED, YELLOW
from journalkeeper.model import Result
from journalkeeper.model.units import format_size, format_span

COLOURS = {Result.DONE: GREEN, Result.SKIPPED: YELLOW, Result.FAILED: RED}


def sizes(before: int | None, after: int | None) -> str:
    """Disk bytes before and after, "-" where either is not known."""
    return "-" if before is None or after is None else f"{format_size(before)} -> {format_size(after)}"


def span(duration_s: float) -> str:
    """A duration to the millisecond."""
    return format_span(round(duration_s * 1000) * 1000, 1000)
