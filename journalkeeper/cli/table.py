# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plain aligned tables in systemd's manner.

A table is text; whoever prints it decides about colour, legend and pager.
"""

from __future__ import annotations

from typing import NamedTuple

RED, YELLOW, GREEN, GREY = "31", "33", "32", "90"
"""SGR colours of a row (ECMA-48)."""
_UNDERLINE = "4"


class Column(NamedTuple):
    """A heading and the side that its cells lean to. The longest column should come last: it is not padded."""

    title: str
    right: bool = False


class Row(NamedTuple):
    """One line's cells, already escaped, and the colour it has on a terminal."""

    cells: tuple[str, ...]
    colour: str = ""


def paint(text: str, colour: str, *, enabled: bool) -> str:
    """`text` in a colour, when colours are enabled and one is given."""
    return f"\x1b[{colour}m{text}\x1b[0m" if enabled and colour else text


def render(columns: tuple[Column, ...], rows: list[Row], *, legend: bool, colours: bool) -> list[str]:
    """The lines of a table, its headings first if there is a legend."""
    titles = tuple(column.title for column in columns)
    everything = [titles, *(row.cells for row in rows)] if legend else [row.cells for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*everything, strict=True)]
    lines = [paint(_line(columns, widths, titles), _UNDERLINE, enabled=colours)] if legend else []
    lines += [paint(_line(columns, widths, row.cells), row.colour, enabled=colours) for row in rows]
    return lines


def stacked(blocks: list[list[str]]) -> list[str]:
    """The lines of all blocks that have any, with an empty line between blocks."""
    lines: list[str] = []
    for block in blocks:
        lines += ["", *block] if lines and block else block
    return lines


def _line(columns: tuple[Column, ...], widths: list[int], cells: tuple[str, ...]) -> str:
    padded = [
        cell.rjust(width) if column.right else cell.ljust(width)
        for column, width, cell in zip(columns, widths, cells, strict=True)
    ]
    return "  ".join(padded).rstrip()
