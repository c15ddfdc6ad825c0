# SPDX-License-Identifier: LGPL-2.1-or-later
"""How work on one file is cut into pieces, counted, and stopped.

Between two pieces everything is written back, so a stop there costs nothing,
and whoever waits for the disk waits for one piece at the most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from journalkeeper.model import KIB, Range, Reason

LEAST_BYTES: Final = 256 * KIB
"""The smallest piece: what the kernel defragments at a time (CLUSTER_SIZE, fs/btrfs/defrag.c)."""

AIM: Final = 0.5
"""What a piece is sized for, of the time that it may take: by the one before, and disks vary. At 500 IOPS
pieces sized for 50 ms took up to 64."""

GROWTH: Final = 2
"""A piece is at most this many times the one before: one quick piece is no proof of a quick disk."""


class Pace:
    """The pieces of one action.

    Pieces have at most `most_bytes`. With `piece_us` they begin small and follow the disk,
    so that one takes no longer than that. Before each, `ask` hears how long it will take, in
    microseconds, and may answer with a reason to end here: then `ended` is that reason.
    `tell` hears the bytes of each finished piece; `written_bytes` is their sum, before
    compression, and `slowest_us` the longest that one took.
    """

    def __init__(
        self,
        *,
        most_bytes: int,
        piece_us: int | None,
        ask: Callable[[int], Reason | None],
        tell: Callable[[int], None],
    ) -> None:
        self._most_bytes = most_bytes
        self._piece_us = piece_us
        self._ask = ask
        self._tell = tell
        self._length = most_bytes if piece_us is None else min(LEAST_BYTES, most_bytes)
        self._expected_us = 0
        self.ended: Reason | None = None
        self.written_bytes = 0
        self.slowest_us = 0

    def pieces(self, ranges: tuple[Range, ...], most_bytes: int | None = None) -> Iterator[tuple[int, int]]:
        """(offset, length) of each piece of `ranges`, of `most_bytes`; finished when the next is asked for."""
        for offset, length in self.reads(ranges, most_bytes):
            began = time.monotonic_ns()
            yield offset, length
            self._finished(length, (time.monotonic_ns() - began) // 1000)

    def reads(self, ranges: tuple[Range, ...], most_bytes: int | None = None) -> Iterator[tuple[int, int]]:
        """The same of what is only read: each piece is asked for, and none is counted."""
        for part in ranges:
            offset, end = part.offset, part.offset + part.length
            while offset < end:
                if not self.goes_on():
                    return
                length = min(self._length, end - offset, most_bytes or self._length)
                yield offset, length
                offset += length

    def goes_on(self) -> bool:
        """Ask for leave to go on, for what is neither read nor written; False: it `ended`."""
        self.ended = self._ask(self._expected_us)
        return self.ended is None

    def _finished(self, length: int, took_us: int) -> None:
        self.written_bytes += length
        self.slowest_us = max(self.slowest_us, took_us)
        if self._piece_us is not None:
            fitting = int(length * self._piece_us * AIM) // max(1, took_us)
            self._length = max(LEAST_BYTES, min(self._most_bytes, self._length * GROWTH, fitting))
            self._length -= self._length % LEAST_BYTES
        self._expected_us = took_us * self._length // length
        self._tell(length)
