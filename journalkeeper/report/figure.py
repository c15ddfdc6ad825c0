# SPDX-License-Identifier: LGPL-2.1-or-later
"""A chart with its words and its table, and how its axes are labelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

from journalkeeper.model.units import DAY_US, HOUR_US, format_size
from journalkeeper.report import svg
from journalkeeper.report.text import day, hour

MOST_ROWS: Final = 12
"""Rows of a table below a chart; the newest, or sums."""

FIRST_US: Final = 1_293_840_000_000_000
"""2011 begins, and journald is not there yet."""


class Timed(Protocol):
    """A row with a time."""

    @property
    def when_us(self) -> int: ...


T = TypeVar("T", bound=Timed)


class Table(NamedTuple):
    """A caption, headings, and rows of cells; the first `left` columns are words, and the last if so said."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    words_last: bool = False

    def side(self, column: int) -> str:
        """Return the CSS classes that align a column."""
        if self.words_last and column == len(self.heads) - 1:
            return "left long"
        return "left" if column < self.left else "right"


class Figure(NamedTuple):
    """A chart with what is said of it; `chart` is None where there is nothing to draw, and `said` tells why.

    `key` are the layers that need a name. `notes` stand below the chart: what is missing in it.
    """

    name: str
    title: str
    said: str
    chart: svg.Chart | None = None
    key: tuple[tuple[svg.Boxes | svg.Line | svg.Ticks, str], ...] = ()
    table: Table | None = None
    notes: tuple[str, ...] = ()


def in_time(rows: Iterable[T], now_us: int) -> list[T]:
    """The rows that a clock that was right can have noted: none before journald was, none after now."""
    return [row for row in rows if FIRST_US <= row.when_us <= now_us + HOUR_US]


def left_out(number: int, noun: str) -> tuple[str, ...]:
    """What is said of the others."""
    rows = f"{number:,} {noun}{'' if number == 1 else 's'}"
    return (f"{rows} of a clock that was wrong, before 2011 or after now, left out.",) if number else ()


def number_label(number: float) -> str:
    """A whole number; nothing for others, which count nothing."""
    return f"{number:,.0f}" if number == int(number) else ""


def size_label(number: float) -> str:
    """A size, without a decimal that says nothing."""
    return format_size(int(number)).replace(".0", "")


def time_labels(low: int, high: int) -> tuple[tuple[float, str], ...]:
    """Return labels of an axis of time at ten even distances."""
    written = day if high - low > 4 * DAY_US else hour
    labels = [(low + (high - low) * tenth // 10) for tenth in range(11)]
    return tuple((at, written(at)) for at in labels)
