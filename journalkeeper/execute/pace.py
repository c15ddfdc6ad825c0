# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pieces of the work on one file: their size, their count, their times, and stops between them.

Everything is written back between two pieces. So a stop there costs nothing, and other users of the disk wait for one
piece at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from journalkeeper.model import KIB, Range, Reason
from journalkeeper.policy.backpressure import adapt_amount

LEAST_BYTES: Final = 256 * KIB
"""The smallest piece: the unit in which the kernel defragments (CLUSTER_SIZE, fs/btrfs/defrag.c)."""

HALVED_S: Final = 600.0
"""The interval after which the time of a slow piece counts only half."""


@dataclass
class Pace:
    """The pieces of one action.

    A piece has at most `most_bytes`. With `piece_us` the pieces start small and then follow the disk's speed, so that
    none takes longer than that. Before each piece, `ask` receives its expected time in microseconds and may return a
    reason to end; `ended` then is that reason. `tell` receives the bytes of each finished piece. `written_bytes` is
    their sum before compression, and `slowest_us` the longest time of a piece.
    """

    most_bytes: int
    piece_us: int | None
    ask: Callable[[int], Reason | None]
    tell: Callable[[int], None]
    ended: Reason | None = None
    written_bytes: int = 0
    slowest_us: int = 0

    def __post_init__(self) -> None:
        self._length = self.most_bytes if self.piece_us is None else min(LEAST_BYTES, self.most_bytes)
        self._expected_us = 0

    def iterate_pieces(self, ranges: Iterable[Range], most_bytes: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) in bytes of each piece of `ranges`, for a caller that rewrites it.

        A piece has at most `most_bytes`, or the length that fits the disk's speed if that is shorter. When the caller
        takes the next piece, the one before is timed, counted as written, and reported to `tell`. The iteration ends
        early when `ask` returns a reason; `ended` is then that reason.
        """
        for offset, length in self.iterate_reads(ranges, most_bytes):
            began = time.monotonic_ns()
            yield offset, length
            self._count_piece(length, (time.monotonic_ns() - began) // 1000)

    def iterate_reads(self, ranges: Iterable[Range], most_bytes: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) of each piece of `ranges`, for a caller that only reads.

        The pieces are as long as those of `iterate_pieces`. Before each piece `ask` is called, which may sleep. The
        iteration ends early when `ask` returns a reason; `ended` is then that reason. No piece is timed or counted as
        written.
        """
        for part in ranges:
            offset, end = part.offset, part.offset + part.length
            while offset < end:
                if not self.can_go_on():
                    return
                length = min(self._length, end - offset, most_bytes or self._length)
                yield offset, length
                offset += length

    def can_go_on(self) -> bool:
        """Call `ask`, which may sleep, and return whether the next piece may begin.

        `ask` receives the expected time of the piece, computed from the written piece before it; 0 if there is none.
        Store its reason against the piece in `ended`, or None if the piece may begin.
        """
        self.ended = self.ask(self._expected_us)
        return self.ended is None

    def _count_piece(self, length: int, took_us: int) -> None:
        self.written_bytes += length
        self.slowest_us = max(self.slowest_us, took_us)
        if self.piece_us is not None:
            self._length = adapt_amount(self._length, length, took_us, self.piece_us, LEAST_BYTES, self.most_bytes)
            self._length -= self._length % LEAST_BYTES
        self._expected_us = took_us * self._length // length
        self.tell(length)


class PieceTimes:
    """The longest time of a recent piece, by directory. Any thread may call `get_longest_us`.

    After each HALVED_S a time counts half as much, so that one stall does not close windows for ever.
    """

    def __init__(self) -> None:
        self._pieces: Mapping[str, tuple[int, float]] = {}

    def get_longest_us(self, directory: str | None = None) -> int:
        """Return the longest time of a recent piece in microseconds, in `directory`, or in any directory if it is None.

        Return 0 if there is none. After each HALVED_S a time counts half as much as before.
        """
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
        """Store that a piece in `directory` took `took_us`, unless a recent piece there took as long.

        See `get_longest_us`.
        """
        if took_us > self.get_longest_us(directory):
            self._pieces = {**self._pieces, directory: (took_us, time.monotonic())}  # another thread may read it
