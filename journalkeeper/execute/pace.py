# SPDX-License-Identifier: LGPL-2.1-or-later
"""How work on one file is cut into pieces, counted, and stopped.

The one rule: between two pieces everything is written back, so a stop there costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from journalkeeper.model import Range


class Pace:
    """The pieces of an action. `written_bytes` counts what was finished, before compression."""

    def __init__(self, chunk_bytes: int, on_bytes: Callable[[int], None], stop: Callable[[], bool]) -> None:
        self._chunk_bytes = chunk_bytes
        self._on_bytes = on_bytes
        self.stop = stop
        self.written_bytes = 0

    def pieces(self, ranges: tuple[Range, ...]) -> Iterator[tuple[int, int]]:
        """(offset, length) of each piece of `ranges`, at most the chunk size each."""
        for part in ranges:
            end = part.offset + part.length
            for offset in range(part.offset, end, self._chunk_bytes):
                yield offset, min(self._chunk_bytes, end - offset)

    def finished(self, length: int) -> None:
        """A piece of `length` bytes is on the disk."""
        self.written_bytes += length
        self._on_bytes(length)
