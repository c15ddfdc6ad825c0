# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names, numbers, tables and reasons as people read them."""

from __future__ import annotations

import os
from operator import itemgetter

import pytest

from journalkeeper.cli.table import Column, Table, elide, render
from journalkeeper.model.units import escape


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("日誌 a.journal", "日誌 a.journal"),
        ("a\x1b[31mred", r"a\x1b[31mred"),
        ("two\nlines\r\t", r"two\nlines\r\t"),
        ("c1\x9b31m", r"c1\x9b31m"),
        ("abc\u202egpj", r"abc\u202egpj"),
        ("line\u2028break", r"line\u2028break"),
        (os.fsdecode(b"\xff\x80x"), r"\udcff\udc80x"),
    ],
)
def test_a_name_cannot_steer_the_terminal(name: str, expected: str) -> None:
    assert escape(name) == expected
    assert escape(name).isprintable()


def test_no_two_names_look_alike() -> None:
    names = ["\x1b", r"\x1b", r"\\x1b", os.fsdecode(b"\xff"), r"\xff", "\xff", "\ud800", r"\ud800"]
    assert len({escape(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [("abcdefghij", 10, "abcdefghij"), ("abcdefghij", 9, "ab…efghij"), ("abcdefghij", 1, "…")],
)
def test_a_long_name_loses_its_middle(name: str, width: int, expected: str) -> None:
    assert elide(name, width) == expected
    assert len(elide(name, width)) <= width


Cells = tuple[str, ...]
COLUMNS: tuple[Column[Cells], ...] = (Column("EXTENTS", itemgetter(0), right=True), Column("PATH", itemgetter(1)))
ROWS: list[Cells] = [("7", "a"), ("12345678", "bb")]


def test_colours_enclose_the_line_and_change_no_width() -> None:
    table = Table(COLUMNS, ROWS, lambda row: "31" if row is ROWS[0] else "")
    lines = render(table, legend=True, colours=True)
    assert lines == ["\x1b[4m EXTENTS  PATH\x1b[0m", "\x1b[31m       7  a\x1b[0m", "12345678  bb"]


WIDE: tuple[Column[Cells], ...] = (
    Column("N", itemgetter(0), right=True),
    Column("DETAIL", itemgetter(1), gives="text"),
    Column("PATH", itemgetter(2), gives="path"),
)
LONG = (
    "/var/log/journal/31ea7ebf140d4c22b2e6ec12456206a3/system@33b4169a219a44a68e5d71bb199ed6c6-0000000000000671.journal"
)
SENTENCE = "changed 4s ago, and is left alone for another 56s because journald may still be at it"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_table_fits_its_width_with_paths_cut_and_sentences_wrapped(width: int) -> None:
    rows: list[Cells] = [("1", SENTENCE, LONG), ("2", "short", "/a/b.journal")]
    lines = render(Table(WIDE, rows), legend=True, colours=False, width=width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(line[3:].split("  ")[0].strip() for line in lines[1:]).split())
    assert text.startswith(SENTENCE.split(",", maxsplit=1)[0])
    assert "00000671.journal" in "\n".join(lines)  # the end tells archives from each other


def test_a_path_stands_below_its_row_where_even_a_short_one_does_not_fit() -> None:
    columns: tuple[Column[Cells], ...] = (*WIDE[:1], Column("FLAGS", itemgetter(1)), WIDE[2])
    rows: list[Cells] = [("1", "x" * 60, LONG)]
    lines = render(Table(columns, rows), legend=True, colours=False, width=80)
    assert lines[:2] == ["N  FLAGS", "  PATH"]
    assert lines[2] == f"1  {'x' * 60}"
    assert lines[3] == f"  …/{LONG.rpartition('/')[2]}"


def test_nothing_is_cut_where_a_program_reads() -> None:
    rows: list[Cells] = [("1", SENTENCE, LONG)]
    (line,) = render(Table(WIDE, rows), legend=False, colours=False, width=None)
    assert (SENTENCE in line, LONG in line) == (True, True)
