# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plain aligned tables in systemd's manner, and text that fits a width."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

RED, YELLOW, GREEN, GREY = "31", "33", "32", "90"
"""SGR colours of a row (ECMA-48)."""
_UNDERLINE = "4"

LEAST_PATH: Final = 24
"""The least width of a shortened path: it fits the end of an archive's name, which distinguishes it from others."""

LEAST_TEXT: Final = 8
"""The least width of a wrapped sentence."""

_GAP: Final = "  "


T = TypeVar("T")


class Column(NamedTuple, Generic[T]):
    """A column of a table: its heading, and `cell`, which returns the escaped text of a row.

    `right` aligns the cells to the right. `gives` is how cells are reduced in a table that is too wide: a "path" is
    shortened in its middle, a "text" is wrapped, and "" stays. The longest column should come last: it is not padded. A
    path in the last column is printed below its row if even the shortened path does not fit.
    """

    title: str
    cell: Callable[[T], str]
    right: bool = False
    gives: Literal["", "path", "text"] = ""


def elide(name: str, width: int) -> str:
    """Return `name` cut in its middle to `width` characters, but not below 1: its end distinguishes files."""
    if len(name) <= width:
        return name
    kept = max(0, width - 1)
    return f"{name[: kept // 3]}…{name[len(name) - (kept - kept // 3) :]}"


class Table(NamedTuple, Generic[T]):
    """Rows that become lines of a table. `colour` returns the colour of a row."""

    columns: tuple[Column[T], ...]
    rows: Sequence[T]
    colour: Callable[[T], str] = lambda _: ""


def paint(text: str, colour: str, *, enabled: bool) -> str:
    """Return `text` with the SGR parameters `colour`; unchanged if colours are not enabled or `colour` is ""."""
    return f"\x1b[{colour}m{text}\x1b[0m" if enabled and colour else text


def render(table: Table[Any], *, legend: bool, colours: bool, width: int | None = None) -> list[str]:
    """Return the lines of a table, in at most `width` characters if possible; None means no limit.

    In a table that is too wide, shorten paths and wrap sentences. If it is still too wide, put the path of the
    last column on a line of its own below its row. With `legend` headings come first, unless no column has a
    title. Without rows there are no lines, also no headings. With `colours`, each row has its colour.
    """
    columns, rows, colour = table
    if not rows:
        return []
    titles = tuple(column.title for column in columns)
    headings = [(titles, _UNDERLINE)] if legend and any(titles) else []
    everything = [*headings, *((tuple(column.cell(row) for column in columns), colour(row)) for row in rows)]
    longest = [max(map(len, cells)) for cells in zip(*(cells for cells, _ in everything), strict=True)]
    widths = _fit_widths(columns, longest, width)
    below = columns[-1].gives == "path" and len(columns) > 1 and _compute_excess(widths, width) > 0
    if below:
        widths = [*_fit_widths(columns[:-1], longest[:-1], width), (width or 0) - len(_GAP)]
    return [
        paint(line, painted, enabled=colours)
        for cells, painted in everything
        for line in _lay_out(columns, widths, cells, below=below)
    ]


def stack_blocks(blocks: list[list[str]]) -> list[str]:
    """Return the lines of all non-empty blocks, with an empty line between blocks."""
    lines: list[str] = []
    for block in blocks:
        lines += ["", *block] if lines and block else block
    return lines


def wrap_sentence(text: str, width: int | None, head: str = "") -> list[str]:
    """Return a sentence in lines of at most `width` characters, with `head` before the first and spaces before others.

    It is one line if `width` is None, or if it is indented by four spaces. A word that is too long stays whole.
    """
    if width is None or text.startswith("    "):
        return [f"{head}{text}"]
    wrap = partial(textwrap.wrap, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)
    return wrap(text, width, break_long_words=False) or [head]


def _compute_excess(widths: list[int], width: int | None) -> int:
    """Return by how many characters a line of columns and gaps exceeds `width`: 0 if it fits, or without a limit."""
    return 0 if width is None else max(0, sum(widths) + len(_GAP) * (len(widths) - 1) - width)


def _fit_widths(columns: tuple[Column[Any], ...], widths: list[int], width: int | None) -> list[int]:
    """Return the widths of a table's columns, reduced so that the table fits `width`: paths first, then sentences."""
    fitted = list(widths)
    for gives, least in (("path", LEAST_PATH), ("text", LEAST_TEXT)):
        for number, column in enumerate(columns):
            if column.gives == gives:
                fitted[number] = max(min(least, fitted[number]), fitted[number] - _compute_excess(fitted, width))
    return fitted


def _lay_out(columns: tuple[Column[Any], ...], widths: list[int], cells: tuple[str, ...], *, below: bool) -> list[str]:
    """Return the lines of one table row, each cell padded to its width. `below` puts the last cell below, indented."""
    parts = [_cut_cell(column, width, cell) for column, width, cell in zip(columns, widths, cells, strict=True)]
    paths = parts.pop() if below else []
    lines = [_GAP.join(map(_pad, columns, widths, texts)).rstrip() for texts in zip_longest(*parts, fillvalue="")]
    return lines + [f"{_GAP}{path}" for path in paths]


def _cut_cell(column: Column[Any], width: int, cell: str) -> list[str]:
    """Return the lines of a cell: a long text is wrapped, a long path loses its directory, then a part of its name."""
    if len(cell) <= width or not column.gives:
        return [cell]
    if column.gives == "text":
        return textwrap.wrap(cell, width) or [""]
    name = f"…/{cell.rpartition('/')[2]}"  # the directory, which is most often the same for all, goes first
    return [name if len(name) <= width else elide(name[2:], min(width, LEAST_PATH))]


def _pad(column: Column[Any], width: int, text: str) -> str:
    return text.rjust(width) if column.right else text.ljust(width)
