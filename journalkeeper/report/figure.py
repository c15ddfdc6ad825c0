# SPDX-License-Identifier: LGPL-2.1-or-later
"""A chart with its texts and its table, and the labels of its axes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

from journalkeeper.model.units import DAY_US, HOUR_US, format_size
from journalkeeper.report import svg
from journalkeeper.report.text import day, hour

MOST_ROWS: Final = 12
"""The most rows of a table below a chart: the newest rows, or sums."""

FIRST_US: Final = 1_293_840_000_000_000
"""The beginning of 2011, before which journald did not exist."""


class Timed(Protocol):
    """A row with a time."""

    @property
    def when_us(self) -> int: ...


T = TypeVar("T", bound=Timed)


class Table(NamedTuple):
    """A caption, headings, and rows of cells. The first `left` columns are text, with `words_last` also the last."""

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
    """A chart with its texts; `chart` is None if there is nothing to draw.

    The text below the title is a summary or the reason why there is no chart.

    `key` has the layers that need a name. `notes` below the chart describe missing data.
    """

    name: str
    title: str
    said: str
    chart: svg.Chart | None = None
    key: tuple[tuple[svg.Boxes | svg.Line | svg.Ticks, str], ...] = ()
    table: Table | None = None
    notes: tuple[str, ...] = ()


def in_time(rows: Iterable[T], now_us: int) -> list[T]:
    """Return the rows with a plausible time: neither before journald existed nor after now."""
    return [row for row in rows if FIRST_US <= row.when_us <= now_us + HOUR_US]


def describe_omission(number: int, noun: str) -> tuple[str, ...]:
    """Return a note on the rows that `in_time` left out."""
    rows = f"{number:,} {noun}{'' if number == 1 else 's'}"
    return (f"{rows} dated before 2011 or after now by a wrong clock, left out.",) if number else ()


def number_label(number: float) -> str:
    """Return the label of a whole number; "" for a fraction, which counts nothing."""
    return f"{number:,.0f}" if number == int(number) else ""


def size_label(number: float) -> str:
    """Return the label of a size, without ".0"."""
    return format_size(int(number)).replace(".0", "")


def time_labels(low: int, high: int) -> tuple[tuple[float, str], ...]:
    """Return eleven labels at even distances on an axis of time."""
    written = day if high - low > 4 * DAY_US else hour
    labels = [(low + (high - low) * tenth // 10) for tenth in range(11)]
    return tuple((at, written(at)) for at in labels)
