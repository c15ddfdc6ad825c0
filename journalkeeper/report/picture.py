# SPDX-License-Identifier: LGPL-2.1-or-later
"""A picture of a file in text: the number of extents that begin in each MiB, and the kind of data there.

The height shows extents per MiB on a fixed scale, so that files can be compared. Each step is twice the one before,
from one extent to the 128 and more that blocks of 4 KiB permit. The letter below names the most frequent kind of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from journalkeeper.model import MIB, Stretch
from journalkeeper.model.units import spell_size

HEIGHTS: Final = "▁▂▃▄▅▆▇█"
SCALE: Final = "▁ at most 1, ▂ 2, ▃ 4, ▄ 8, ▅ 16, ▆ 32, ▇ 64, █ 128 or more"
"""The fewest extents of each height, as `level` computes it."""

KINDS: Final = {
    "data_bytes": "d plain data",
    "compressed_bytes": "c compressed data",
    "shared_bytes": "s shared with a snapshot or a copy",
    "both_bytes": "b shared and compressed",
    "unwritten_bytes": "u unwritten: allocated, and reads as zeros",
    "hole_bytes": "h hole",
}
"""The letter and the name of each kind of bytes, by the field of a Stretch."""


def level(extents: int, length: int) -> int:
    """Return the index in HEIGHTS for `extents` in `length` bytes. Each doubling of the extents per MiB adds one step.

    >>> [level(extents, MIB) for extents in (0, 1, 2, 3, 4, 127, 128, 256)]
    [0, 0, 1, 1, 2, 6, 7, 7]
    """
    per_mib = extents * MIB // max(1, length)
    return min(max(per_mib.bit_length() - 1, 0), len(HEIGHTS) - 1)


def letter(part: Stretch) -> str:
    """Return the letter for the kind of data that has the most bytes in `part`; a space for a part of length 0."""
    return KINDS[max(KINDS, key=lambda field: getattr(part, field))][0] if part.length else " "


def merge(parts: Sequence[Stretch], columns: int) -> list[Stretch]:
    """Return `parts` reduced to at most `columns` by adding up neighbours; [] without parts."""
    each = -(-len(parts) // max(1, columns)) or 1
    return [_sum(parts[start : start + each]) for start in range(0, len(parts), each)]


def draw_lines(parts: Sequence[Stretch], width: int) -> list[str]:
    """Return the lines of a file's picture: extents per MiB, the most frequent kind of data below, and a key.

    The picture has at most `width` columns; the lines of the key can be longer. There must be parts.
    """
    columns, whole = merge(parts, width), _sum(parts)
    drawn = "".join(
        " " if part.hole_bytes == part.length else HEIGHTS[level(part.extents, part.length)] for part in columns
    )
    wide = f"each column {spell_size(columns[0].length)}" if len(columns) > 1 else "one column"
    held = [(kind, getattr(whole, field)) for field, kind in KINDS.items()]
    kinds = [f"{kind}, {spell_size(size_bytes)}" for kind, size_bytes in held if size_bytes]
    return [drawn, "".join(map(letter, columns)), f"{wide}; extents per MiB: {SCALE}", *kinds]


def _sum(parts: Sequence[Stretch]) -> Stretch:
    """Return the sum of neighbouring parts, which begins where the first one begins. There must be parts."""
    columns = list(zip(*parts, strict=True))
    return Stretch(columns[0][0], *map(sum, columns[1:]))
