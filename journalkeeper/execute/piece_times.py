# SPDX-License-Identifier: LGPL-2.1-or-later
"""How slow this disk can be: the longest that one piece of our work took.

It is forgotten by halves, so that one stall does not close windows for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

HALVED_S: Final = 600.0
"""In this time a slow piece comes to count for half: one stall must not close windows for ever."""


class PieceTimes:
    """The longest that a piece took, by directory, forgotten by halves. `longest_us` may be called from any thread."""

    def __init__(self) -> None:
        self._pieces: Mapping[str, tuple[int, float]] = {}

    def longest_us(self, directory: str | None = None) -> int:
        """Microseconds, of one directory or the most of all."""
        now_s = time.monotonic()
        return max(
            (
                took_us >> int((now_s - at_s) / HALVED_S)
                for where, (took_us, at_s) in self._pieces.items()
                if directory in {None, where}
            ),
            default=0,
        )

    def add(self, directory: str, took_us: int) -> None:
        """One more piece, or several of which the longest took so long."""
        if took_us > self.longest_us(directory):
            self._pieces = {**self._pieces, directory: (took_us, time.monotonic())}  # another thread may read it
