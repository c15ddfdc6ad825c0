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
from itertools import chain, islice
from mmap import PAGESIZE
from typing import Final

from journalkeeper.btrfs import fiemap, kernel

MOST_S: Final = 0.4
"""The time for all samples but the first: enough for 60 requests at 150 a second."""

UNIT_BYTES: Final = 512 << 10
"""The contiguous bytes that cost about as much as one seek: 0.1 to 8 ms at 5,000 to 60 MB/s."""

RUN, GROUPS = 12, 4
"""A sample has at least GROUPS runs of RUN neighbouring pieces, spread over the file, because a file's head is more
fragmented than its middle.
"""

MOST_ROWS: Final = 1 << 16
"""Twice the extents that a journal of 128 MiB can have. More would take 30 MiB."""

Piece = tuple[int, int, float]
"""The offset and length of written data, at most UNIT_BYTES, and its price in requests."""


def estimate_cold_read_s(fd: int) -> float | str:
    """Return the estimated seconds of a cold read of the whole file `fd`, measured on samples that take about MOST_S.

    Return a text with the cause if they cannot be measured, also for a file without data. Raises: OSError: EIO.
    """
    pieces = _list_pieces(fd)
    if len(pieces) > MOST_ROWS:
        return f"the file has more than {MOST_ROWS:,} extents"
    try:
        clean = [one for one in pieces if not kernel.cachestat(fd, one[0], one[1])[1]]
    except OSError:  # ENOSYS, EPERM, EOPNOTSUPP
        return "this kernel does not show which pages are dirty (Linux 6.5 and later do)"
    runs = [clean[at : at + RUN] for at in range(0, len(clean), RUN)]
    samples = max(1, len(runs) // GROUPS)
    spent_s = units = 0.0
    for number in range(samples):
        if number == 1:  # a limited disk answers the first requests at once
            spent_s = units = 0.0
        took_s, read_units = _time_cold_read(fd, list(chain.from_iterable(runs[number::samples])))
        spent_s, units = spent_s + took_s, units + read_units
        if number and spent_s > MOST_S:
            break
    total = _count_requests(pieces)
    least = min(total, RUN) / 2
    if units and units >= least:
        return spent_s * total / units
    is_on_disk = _count_requests(clean) > least
    return "a program has the data mapped" if is_on_disk else "most of the data is not yet on the disk"


def _list_pieces(fd: int) -> list[Piece]:
    """Return the written data of at most MOST_ROWS + 1 extents. A piece that needs a seek costs 1 request more."""
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


def _count_requests(pieces: Sequence[Piece]) -> float:
    return sum(units for _, _, units in pieces)


def _time_cold_read(fd: int, pieces: Sequence[Piece]) -> tuple[float, float]:
    """Drop `pieces` from the page cache and read them. Return the seconds of the reads, and the price in requests.

    Pieces of which more than half stays in the cache, as mapped pages do, are left out. All others are read ahead
    first, so that all requests are under way at once.

    Raises: OSError: EIO.
    """
    for offset, length, _ in pieces:
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
    cold = [one for one in pieces if kernel.cachestat(fd, one[0], one[1])[0] * PAGESIZE <= one[1] / 2]
    begins: dict[int, int] = {}
    """The beginning of each contiguous range, by its end."""
    for offset, length, _ in cold:
        begins[offset + length] = begins.pop(offset, offset)
    began_s = time.perf_counter()
    for end, begin in begins.items():
        os.posix_fadvise(fd, begin, end - begin, os.POSIX_FADV_WILLNEED)
    for offset, length, _ in cold:
        os.pread(fd, length, offset)
    return time.perf_counter() - began_s, _count_requests(cold)
