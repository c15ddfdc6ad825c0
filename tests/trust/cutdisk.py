# SPDX-License-Identifier: LGPL-2.1-or-later
"""A disk that records all writes and flushes, and its content after a power cut at any moment.

    python -m tests.trust.cutdisk IMAGE LOG     # mounts itself over IMAGE until it is unmounted or stdin ends

The log contains every write and every flush, in the order in which they were answered. Writes before a flush are on
the disk. Of the writes after the last flush any part may be there, in blocks: a disk may write them in any order.
"""

from __future__ import annotations

import bisect
import mmap
import os
import random
import struct
import sys
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tests.slowdisk import READ_IN, Op, SlowDisk, serve

ENTRY: Final = struct.Struct("=qq")
"""Before each write: its offset and length. A flush has FLUSH as its offset."""

FLUSH: Final = -1
BLOCK: Final = 4096
"""What a disk writes wholly or not at all: btrfs needs that of its superblock."""


class RecordingDisk(SlowDisk):
    """A disk without delays, which appends its writes and flushes to the descriptor `log`."""

    def __init__(self, log: int, fuse: int, image: int) -> None:
        super().__init__(fuse, image)
        self._log = log

    def _do(self, operation: int, words: memoryview) -> bytes:
        if operation == Op.WRITE:
            _, offset, size, *_ = READ_IN.unpack_from(words)
            self._append(ENTRY.pack(offset, size), words[READ_IN.size : READ_IN.size + size])
        elif operation == Op.FSYNC:
            self._append(ENTRY.pack(FLUSH, 0), memoryview(b""))
        return super()._do(operation, words)

    def _append(self, entry: bytes, data: memoryview) -> None:
        if os.writev(self._log, [entry, data]) != len(entry) + len(data):
            raise RuntimeError("no room for the log")


class _Entry(NamedTuple):
    """A write of `length` bytes at `offset`, which are at `data` in the log; or a flush."""

    offset: int
    length: int
    data: int


class Recording:
    """The recording in the file `log` of a disk of `size` bytes that was empty at first."""

    def __init__(self, log: Path, size: int) -> None:
        self._size = size
        with open(log, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._entries: list[_Entry] = []
        self._ends: list[int] = []
        at = 0
        while at < len(self._bytes):
            offset, length = ENTRY.unpack_from(self._bytes, at)
            self._entries.append(_Entry(offset, length, at + ENTRY.size))
            at += ENTRY.size + length
            self._ends.append(at)

    def __len__(self) -> int:
        """The number of writes and flushes."""
        return len(self._entries)

    def number(self, log_bytes: int) -> int:
        """Return the number of writes and flushes in the first `log_bytes` of the log."""
        return bisect.bisect_right(self._ends, log_bytes)

    def next_flush(self, at: int) -> int:
        """Return the number of entries up to the first flush behind the first `at`; of all if there is none."""
        flushes = (number for number in range(at, len(self)) if self._entries[number].offset == FLUSH)
        return next(flushes, len(self) - 1) + 1

    def cut(self, image: Path, at: int, lost: random.Random | None) -> None:
        """Write into `image` the content of the disk if the power goes after the first `at` entries.

        Writes that were not flushed by then are there in full, or with `lost` only a random part of their blocks.
        """
        flushed = max((number for number in range(at) if self._entries[number].offset == FLUSH), default=0)
        kept_share = lost.random() if lost is not None else 1.0
        with open(image, "wb", buffering=0) as file:
            file.truncate(self._size)
            for number, entry in enumerate(self._entries[:at]):
                if entry.offset == FLUSH:
                    continue
                if number < flushed or lost is None:
                    self._write(file.fileno(), entry, 0, entry.length)
                    continue
                for begin in range(0, entry.length, BLOCK):
                    if lost.random() < kept_share:
                        self._write(file.fileno(), entry, begin, min(BLOCK, entry.length - begin))

    def _write(self, image: int, entry: _Entry, begin: int, length: int) -> None:
        with memoryview(self._bytes) as view:
            start = entry.data + begin
            os.pwrite(image, view[start : start + length], entry.offset + begin)


if __name__ == "__main__":
    written = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    serve(Path(sys.argv[1]), partial(RecordingDisk, written))
