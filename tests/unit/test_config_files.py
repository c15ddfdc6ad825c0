# SPDX-License-Identifier: LGPL-2.1-or-later
"""The syntax of a configuration file, as systemd parses it."""

from __future__ import annotations

import pytest

from journalkeeper.config.files import MAX_LINE_BYTES, Assignment, parse

FILE = "x.conf"


def read(text: str | bytes) -> list[tuple[int, str, str, str]]:
    rows = parse(text.encode() if isinstance(text, str) else text, FILE)
    assert not [row for row in rows if row.problem]
    return [(row.line, row.section, row.key, row.value) for row in rows]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("\n\n  \t\n# a=1\n; b=2\n  # c=3\n", []),
        ("[J]\n  a  =  1 2  \t\n", [(2, "J", "a", "1 2")]),
        ("[J]\na=\n", [(2, "J", "a", "")]),
        ("[J]\na=b=c\n", [(2, "J", "a", "b=c")]),
        ("[J]\na=1 # no comment\n", [(2, "J", "a", "1 # no comment")]),
        ("[J]\na=1\n[K]\nb=2\n[J]\nc=3\n", [(2, "J", "a", "1"), (4, "K", "b", "2"), (6, "J", "c", "3")]),
        ("  [J]  \na=1\n", [(2, "J", "a", "1")]),
        ("\ufeff[J]\na=\u00e4\n", [(2, "J", "a", "\u00e4")]),
        # an odd backslash at the end continues a line
        ("[J]\na=1\\\n2\n", [(3, "J", "a", "1 2")]),
        ("[J]\na=1\\\n  2\\\n  3\n", [(4, "J", "a", "1   2   3")]),
        ("[J]\na=1\\\n# between\n2\n", [(4, "J", "a", "1 2")]),
        ("[J]\na=1\\\n\nb=2\n", [(3, "J", "a", "1"), (4, "J", "b", "2")]),
        ("[J]\na=1\\\\\nb=2\n", [(2, "J", "a", "1\\\\"), (3, "J", "b", "2")]),
        ("[J]\na=1\\\\\\\n2\n", [(3, "J", "a", "1\\\\ 2")]),
        ("[J]\na=1\\", [(2, "J", "a", "1")]),
        ("# not continued \\\n[J]\na=1\n", [(3, "J", "a", "1")]),
        (f"[J]\na={'x' * (MAX_LINE_BYTES - 3)}\n", [(2, "J", "a", "x" * (MAX_LINE_BYTES - 3))]),  # the longest line
    ],
)
def test_assignments_come_with_their_line_and_section(text: str, rows: list[tuple[int, str, str, str]]) -> None:
    assert read(text) == rows


@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n\r", b"\0", b"\r\n\0"])
def test_every_line_end_of_systemd_ends_one_line(end: bytes) -> None:
    assert read(end.join((b"[J]", b"a=1", b"", b"b=2", b""))) == [(2, "J", "a", "1"), (4, "J", "b", "2")]


@pytest.mark.parametrize(
    ("text", "line", "fatal"),
    [
        (b"a=1\n[J]\nb=2\n", 1, False),
        (b"[J]\nnonsense\na=1\n", 2, False),
        (b"[J]\n=1\na=1\n", 2, False),
        (b"[]\na=1\n", 2, False),
        (b"[J]\na=1\n[J\nb=2\nnonsense\n", 3, True),
        (b"[J]x\n", 1, True),
        (b'["J"]\n', 1, True),
        (b"[J\tx]\n", 1, True),
        (b"[J]\na=\xff\nnonsense\n", 2, True),
        (b"[J]\na=" + b"x" * (MAX_LINE_BYTES - 2) + b"\nnonsense\n", 2, True),
        (b"[J]\na=" + b"x" * (MAX_LINE_BYTES - 10) + b"\\\n" + b"x" * 20 + b"\nnonsense\n", 3, True),
    ],
)
def test_a_wrong_line_is_reported_and_reading_stops_where_systemd_stops(text: bytes, line: int, *, fatal: bool) -> None:
    rows = parse(text, FILE)
    assert [(row.line, row.fatal) for row in rows if row.problem] == [(line, fatal)]


def test_a_wrong_line_keeps_file_section_and_text() -> None:
    problem = "expected KEY=VALUE, [SECTION], or a comment after # or ;"
    assert parse(b"[J]\nnonsense \n", FILE) == [Assignment(FILE, 2, "J", "", "nonsense", problem)]
    (row,) = parse(b"a\xffb=1\n", FILE)
    assert row.value == "a\\xffb=1", "bytes that are no text are escaped"
