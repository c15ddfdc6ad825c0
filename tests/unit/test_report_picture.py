# SPDX-License-Identifier: LGPL-2.1-or-later
"""The picture of one file: its heights for extents, its letters for kinds of data, and its width."""

from __future__ import annotations

import pytest

from journalkeeper.model import MIB, Stretch
from journalkeeper.report import story


def data(extents: int, *, at: int = 0, length: int = MIB) -> Stretch:
    return Stretch(at * MIB, length, extents, data_bytes=length)


@pytest.mark.parametrize(
    ("extents", "step"),
    [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (7, 2), (8, 3), (127, 6), (128, 7), (256, 7), (4000, 7)],
)
def test_each_step_is_twice_the_one_before(extents: int, step: int) -> None:
    assert story.choose_height(extents, MIB) == step


@pytest.mark.parametrize(
    ("held", "letter"),
    [
        ({"data_bytes": MIB}, "d"),
        ({"compressed_bytes": MIB}, "c"),
        ({"shared_bytes": MIB}, "s"),
        ({"both_bytes": MIB}, "b"),
        ({"unwritten_bytes": MIB}, "u"),
        ({"hole_bytes": MIB}, "h"),
        ({"data_bytes": MIB // 2 - 1, "hole_bytes": MIB // 2 + 1}, "h"),
        ({"data_bytes": MIB // 2, "hole_bytes": MIB // 2}, "d"),
    ],
)
def test_the_letter_is_of_what_holds_most_bytes(held: dict[str, int], letter: str) -> None:
    assert story.choose_letter(Stretch(0, MIB, 1, **held)) == letter


@pytest.mark.parametrize(("parts", "columns", "drawn"), [(8, 80, 8), (80, 80, 80), (81, 80, 41), (4096, 78, 78)])
def test_the_picture_fits_and_loses_nothing(parts: int, columns: int, drawn: int) -> None:
    merge = story.merge_stretches([data(3, at=number) for number in range(parts)], columns)
    assert len(merge) == drawn <= columns
    assert sum(part.extents for part in merge) == 3 * parts
    assert sum(part.length for part in merge) == parts * MIB
    assert [part.offset for part in merge] == sorted({part.offset for part in merge})


def test_heights_letters_and_a_key_of_what_occurs() -> None:
    parts = [data(200), Stretch(MIB, MIB, 9, compressed_bytes=MIB), Stretch(2 * MIB, MIB, 0, hole_bytes=MIB)]
    lines = story.draw_picture(parts, 80)
    assert lines[:2] == ["█▄ ", "dch"]
    assert lines[2] == f"each column 1 MiB; extents per MiB: {story.SCALE}"
    assert lines[3:] == ["d plain data, 1 MiB", "c compressed data, 1 MiB", "h hole, 1 MiB"]
