# SPDX-License-Identifier: LGPL-2.1-or-later
"""The time of a cold read of a whole file from its disk, measured on a sample of the file.

The kernel reads far ahead of a reader (4 MiB on btrfs). So the time of one request times the number of requests is a
hundred times too long on an SSD, and nearly right on a hard disk. The sample is read as the kernel reads ahead: all of
its requests are under way at once.

The measurement causes no write-back: POSIX_FADV_DONTNEED would start the write-back of dirty pages, so the sample
leaves them out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import islice
from mmap import PAGESIZE
from typing import Final

from journalkeeper.btrfs import fiemap, kernel

FIRST_UNITS: Final = 16
"""The requests of the first sample. Its time shows how large the second sample may be."""

LEAST_UNITS: Final = 3 * FIRST_UNITS
"""The least requests of the second sample: a limited disk answers the first 11 or so at once (blk-throttle)."""

MOST_UNITS: Final = 1024
MOST_S: Final = 0.4
"""The time for the second sample, unless LEAST_UNITS take longer: enough for 60 requests at 150 a second."""

UNIT_BYTES: Final = 512 << 10
"""The contiguous bytes that cost about as much as one seek: 0.1 to 8 ms at 5,000 to 60 MB/s."""

GROUPS: Final = 4
"""The number of places in the file from which a sample is taken, because a file's head is more fragmented than its
middle.
"""

MOST_ROWS: Final = 1 << 16
"""Twice the extents that a journal of 128 MiB can have. More would take 30 MiB."""

READ_BYTES: Final = 1 << 20

Piece = tuple[int, int, float]
"""The offset and length of written data, at most UNIT_BYTES, and its price in requests."""


def estimate_cold_read_s(fd: int) -> float | str:
    """Return the estimated seconds of a cold read of the whole file `fd`, measured on samples that take about MOST_S.

    Return a text with the cause if they cannot be measured. The second sample excludes the first, because the device
    may have cached it.

    Raises: OSError: EIO.
    """
    pieces = _list_pieces(fd)
    if len(pieces) > MOST_ROWS:
        return f"the file has more than {MOST_ROWS:,} extents"
    total = sum(units for _, _, units in pieces)
    try:
        clean = [one for one in pieces if not kernel.cachestat(fd, one[0], one[1])[1]]
    except OSError:  # ENOSYS, EPERM, EOPNOTSUPP
        return "this kernel does not show which pages are dirty (Linux 6.5 and later do)"
    goal = float(FIRST_UNITS)
    while True:
        chosen = _choose_sample(clean, goal)
        sample = _drop_pages(fd, chosen)
        units = sum(units for _, _, units in sample)
        least = min(total, FIRST_UNITS) / 2
        if not units or units < least:
            offered = sum(units for _, _, units in chosen)
            return "most of the data is not yet on the disk" if offered <= least else "a program has the data mapped"
        spent_s = _time_read_s(fd, sample)
        taken = set(chosen)
        clean = [one for one in clean if one not in taken]
        if goal > FIRST_UNITS or sum(units for _, _, units in clean) < FIRST_UNITS:
            return spent_s * total / units
        goal = min(max(units * MOST_S / spent_s, LEAST_UNITS), MOST_UNITS)


def _list_pieces(fd: int) -> list[Piece]:
    """Return (offset, length, cost in requests) of a file's written data, in pieces of at most UNIT_BYTES."""
    pieces: list[Piece] = []
    end = 0
    for row in islice(fiemap.iterate_extents(fd, sync=False), MOST_ROWS + 1):
        if row.flags & (fiemap.FIEMAP_EXTENT_UNWRITTEN | fiemap.FIEMAP_EXTENT_DELALLOC):
            continue
        # A compressed row has its uncompressed length, so the next row on the disk begins before its apparent end.
        encoded = row.flags & fiemap.FIEMAP_EXTENT_ENCODED and end - row.length < row.physical < end
        for offset in range(0, row.length, UNIT_BYTES):
            length = min(UNIT_BYTES, row.length - offset)
            goes_on = offset or encoded or row.physical == end
            pieces.append((row.logical + offset, length, length / UNIT_BYTES + (not goes_on)))
        end = row.physical + row.length
    return pieces


def _choose_sample(pieces: Sequence[Piece], goal: float) -> list[Piece]:
    """Return the first pieces of each of GROUPS equal parts of the list, until they cost `goal` / GROUPS requests."""
    chosen: list[Piece] = []
    for group in range(GROUPS):
        left = goal / GROUPS
        for piece in pieces[len(pieces) * group // GROUPS : len(pieces) * (group + 1) // GROUPS]:
            if left > 0:
                chosen.append(piece)
                left -= piece[2]
    return chosen


def _drop_pages(fd: int, pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces of which at most half is still cached: pages that a program has mapped stay in the cache."""
    for offset, length, _ in pieces:
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
    return [one for one in pieces if kernel.cachestat(fd, one[0], one[1])[0] * PAGESIZE <= one[1] / 2]


def _time_read_s(fd: int, pieces: Sequence[Piece]) -> float:
    """Return the elapsed seconds. All pieces are read ahead first, so that all requests are under way at once.

    Raises: OSError: EIO.
    """
    runs: list[tuple[int, int]] = []
    for offset, length, _ in pieces:
        begin = runs.pop()[0] if runs and runs[-1][1] == offset else offset
        runs.append((begin, offset + length))
    began_s = time.perf_counter()
    for begin, end in runs:
        os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_WILLNEED)
    for begin, end in runs:
        for offset in range(begin, end, READ_BYTES):
            os.pread(fd, min(READ_BYTES, end - offset), offset)
    return time.perf_counter() - began_s
