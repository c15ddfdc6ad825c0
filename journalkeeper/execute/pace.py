# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pieces of the work on one file: their size, their count, their times, and stops between them.

Everything is written back between two pieces. So a stop there costs nothing, and other users of the disk wait for one
piece at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from journalkeeper.model import KIB, Range, Reason
from journalkeeper.policy.window import adapt_amount

LEAST_BYTES: Final = 256 * KIB
"""The smallest piece: the unit in which the kernel defragments (CLUSTER_SIZE, fs/btrfs/defrag.c)."""

HALVED_S: Final = 600.0
"""The interval after which the time of a slow piece counts only half."""


@dataclass
class Pace:
    """The pieces of one action, of at most `most_bytes` each, and of about `piece_us` if that is given.

    Before each piece, `ask` receives its expected time in microseconds, 0 before the first, until it returns a reason.
    This is then `ended`: no piece begins. `tell` gets each rewritten piece's bytes, `slowest_us` the longest time.
    """

    most_bytes: int
    piece_us: int | None
    ask: Callable[[int], Reason | None]
    tell: Callable[[int], None]
    ended: Reason | None = None
    written_bytes: int = 0
    slowest_us: int = 0

    def __post_init__(self) -> None:
        """Begin with a piece of LEAST_BYTES if pieces have a time, else of `most_bytes`."""
        self._length = self.most_bytes if self.piece_us is None else LEAST_BYTES
        self._expected_us = 0

    def iterate_pieces(self, ranges: Iterable[Range], most_bytes: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) in bytes of each piece to rewrite, until the pace has ended.

        No piece is longer than the argument `most_bytes`, either. A piece counts as written, and its time adapts the
        next length, when the caller takes the next one.
        """
        for offset, length in self.iterate_reads(ranges, most_bytes):
            began = time.monotonic_ns()
            yield offset, length
            took_us = (time.monotonic_ns() - began) // 1000
            self.written_bytes += length
            self.slowest_us = max(self.slowest_us, took_us)
            if self.piece_us is not None:
                self._length = adapt_amount(self._length, length, took_us, self.piece_us, LEAST_BYTES, self.most_bytes)
                self._length -= self._length % LEAST_BYTES
            self._expected_us = took_us * self._length // length
            self.tell(length)

    def iterate_reads(self, ranges: Iterable[Range], most_bytes: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) of pieces to read, as `iterate_pieces`. They do not count or change the length."""
        for part in ranges:
            offset, end = part.offset, part.offset + part.length
            while offset < end:
                if not self.can_go_on():
                    return
                length = min(self._length, end - offset, most_bytes or self._length)
                yield offset, length
                offset += length

    def can_go_on(self) -> bool:
        """Return whether the next piece may begin: call `ask`, which may sleep, unless the pace has ended."""
        if self.ended is None:
            self.ended = self.ask(self._expected_us)
        return self.ended is None


class SlowestPiece:
    """The time of the slowest recent piece, on any disk: a piece on one device can hold up the flush of each.

    After each HALVED_S it counts half as much, so that one stall does not close windows for ever.
    """

    def __init__(self) -> None:
        self._took_us, self._at_s = 0, 0.0

    def get_us(self) -> int:
        """Return the time of the slowest piece (us), halved each HALVED_S; 0 before the first piece."""
        return self._took_us >> int((time.monotonic() - self._at_s) / HALVED_S)

    def add(self, took_us: int) -> None:
        """Store that a piece took `took_us` now, unless `get_us()` is as long."""
        if took_us > self.get_us():
            self._took_us, self._at_s = took_us, time.monotonic()
