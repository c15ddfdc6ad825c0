# SPDX-License-Identifier: LGPL-2.1-or-later
"""A chart with its words and its table, and how its axes are labelled."""

from __future__ import annotations

from typing import Final, NamedTuple

from journalkeeper.report import svg
from journalkeeper.values import format_size

MOST_ROWS: Final = 12
"""Rows of a table below a chart; the newest, or sums."""

HOUR_US: Final = 3600 * 1_000_000
DAY_US: Final = 24 * HOUR_US


class Table(NamedTuple):
    """A caption, headings, and rows of cells; the first `left` columns are words, and the last if so said."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    words_last: bool = False


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


def number_label(number: float) -> str:
    """A whole number; nothing for others, which count nothing."""
    return f"{number:,.0f}" if number == int(number) else ""


def size_label(number: float) -> str:
    """A size, without a decimal that says nothing."""
    return format_size(int(number)).replace(".0", "")
