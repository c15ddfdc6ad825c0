# SPDX-License-Identifier: LGPL-2.1-or-later
"""The longest time that one recent piece of our work took on a disk.

The time is halved in intervals, so that one stall does not close windows for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

HALVED_S: Final = 600.0
"""The interval after which the time of a slow piece counts only half."""


class PieceTimes:
    """The longest time of a piece, by directory. Any thread may call `get_longest_us`."""

    def __init__(self) -> None:
        self._pieces: Mapping[str, tuple[int, float]] = {}

    def get_longest_us(self, directory: str | None = None) -> int:
        """Return the longest time in microseconds, of one directory or of all."""
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
        """Record the time of a piece, or the longest time of several pieces."""
        if took_us > self.get_longest_us(directory):
            self._pieces = {**self._pieces, directory: (took_us, time.monotonic())}  # another thread may read it
