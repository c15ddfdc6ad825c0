# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words for a compression in `Compress=` and `--compress=`.

Only a compression that btrfs supports is a value here, so it needs no further check.
"""

from __future__ import annotations

from typing import NamedTuple

HIGHEST_LEVEL = {"zlib": 9, "lzo": 0, "zstd": 15}
"""Each algorithm's highest level; lzo has none (fs/btrfs/{zlib,lzo,zstd}.c)."""

ALLOWED = "no, lzo, zlib, zlib:1 to zlib:9, zstd, or zstd:1 to zstd:15"


class Compression(NamedTuple):
    """An algorithm, "zlib", "lzo" or "zstd", and its level; None leaves the level to the kernel."""

    algorithm: str
    level: int | None = None

    def __str__(self) -> str:
        return self.algorithm if self.level is None else f"{self.algorithm}:{self.level}"


def explain_lost_level(asked: Compression, who: str) -> str:
    """Return the detail for a rewrite with the level of the mount, because `who` takes no level."""
    return f"as {asked.algorithm}, not {asked}: {who} takes no level"


def parse_compression(text: str) -> Compression | None:
    """Return the compression that `text` names, such as "zstd:3", or None for "no".

    Raises: ValueError with the permitted words for any other text.
    """
    if text == "no":
        return None
    algorithm, colon, digits = text.partition(":")
    level = int(digits) if digits.isascii() and digits.isdigit() else 0
    if algorithm in HIGHEST_LEVEL and (not colon or 1 <= level <= HIGHEST_LEVEL[algorithm]):
        return Compression(algorithm, level or None)
    raise ValueError(f"{text!r} is not a compression; allowed are {ALLOWED}")
