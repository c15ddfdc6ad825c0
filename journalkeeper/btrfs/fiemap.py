# SPDX-License-Identifier: LGPL-2.1-or-later
"""FIEMAP: where a file's data lies on the volume, row by row.

`sync` is the caller's decision and has no default. With it the kernel first writes all dirty pages of the file and
waits; on an active journal that is a flush that journald did not choose. Without it the kernel reports the old place of
a dirty page, or DELALLOC over a hole or unwritten space. On a clean file the flag costs half a microsecond.

While the kernel maps a file it holds the inode's lock shared. The lock blocks write(2) but not stores into a mapping.
btrfs merges rows that are contiguous on the disk and have the same flags, so a file can have fewer rows than extent
items.

Source: linux/fiemap.h; Documentation/filesystems/fiemap.rst; fs/btrfs/fiemap.c.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from typing import NamedTuple

from journalkeeper.btrfs.kernel import ioctl
from journalkeeper.model import MIB
from journalkeeper.policy.window import adapt_amount

FS_IOC_FIEMAP = 0xC020660B

FIEMAP_FLAG_SYNC = 0x1

FIEMAP_EXTENT_UNKNOWN = 0x2
FIEMAP_EXTENT_DELALLOC = 0x4
FIEMAP_EXTENT_ENCODED = 0x8
FIEMAP_EXTENT_DATA_INLINE = 0x200
FIEMAP_EXTENT_UNWRITTEN = 0x800
FIEMAP_EXTENT_SHARED = 0x2000

HEADER = struct.Struct("=QQIIII")
"""struct fiemap: fm_start, fm_length, fm_flags, fm_mapped_extents, fm_extent_count, fm_reserved."""

ROW = struct.Struct("=QQQ16xI12x")
"""struct fiemap_extent: fe_logical, fe_physical, fe_length, two spare u64; fe_flags, three spare u32."""

FIRST_ROWS = 16
LEAST_ROWS = 4
BATCH_ROWS = 512
"""The rows of the first call, and of the smallest and the largest one. During a call, stores into a mapping of the file
can wait. Measured with 2,500 and 3,100 extents, median and longest call: on Linux 6.1 11 to 47 and 73 ms for 512 rows,
0.2 to 1 and 17 ms for 16; on 6.12 0.3 to 3 and 5 ms for 512 rows, 0.04 and 4 ms for 16.
"""

CALL_US = 2_000
"""The time that a call should not exceed: a longer call makes the next one smaller."""

REST_US = 500
"""After a longer call, rest as long as the call took, so that waiting stores come first."""

MOST_SKIPS = 32
"""The MiB of one file that `map_batches` may skip because the kernel repeats itself: journald allocates 8 MiB at a
time.
"""

NOT_PLACED = FIEMAP_EXTENT_UNWRITTEN | FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DATA_INLINE
"""The flags of rows that contain no data, or have no address of their own."""

EVERYTHING = 2**64 - 1


class Extent(NamedTuple):
    """One row of the map: offsets and length in bytes, and FIEMAP_EXTENT_* flags."""

    logical: int
    physical: int
    length: int
    flags: int


def map_batches(fd: int, *, sync: bool, start: int = 0, end: int = EVERYTHING) -> Iterator[list[Extent]]:
    """Yield the rows of the map of `fd` from `start` to `end`, in batches that each come from one call.

    Holes have no rows, and rows are not cut at `start` and `end`. With `sync` the file's dirty pages are written first.
    After a slow call the next batch is smaller, and the thread sleeps as long as the call took.

    The kernel (seen in 6.18) has a bug with an unwritten extent that has dirty pages. After every 128 rows, also
    within a call, it lists the rows of that extent from the first one again. The repeated rows are dropped. If
    the extent has more than BATCH_ROWS rows, a call can return repeated rows only. The search then continues at
    the next MiB, and the rows in between are missing.

    Raises: OSError: EOPNOTSUPP the filesystem has no FIEMAP; EIO, ENOSPC from the write-back that `sync` asks
    for; EINTR a signal came first; EIO a call returned no new row after MOST_SKIPS skips in this file.
    """
    if sync:
        write_back(fd)
    seen, skips, more, most = 0, 0, True, FIRST_ROWS
    while more and start < end:
        began_ns = time.monotonic_ns()
        rows = _read_rows(fd, start, end, most)
        took_us = (time.monotonic_ns() - began_ns) // 1000
        more, asked = len(rows) >= most, most
        most = adapt_amount(most, most, took_us, CALL_US, LEAST_ROWS, BATCH_ROWS)
        if more and took_us > REST_US:
            time.sleep(took_us / 1e6)
        if rows and (rows[0].logical < seen or rows != sorted(rows)):
            rows = _drop_repeats(rows, seen)
        reached = rows[-1].logical + rows[-1].length if rows else 0
        if reached > seen:
            seen, start = reached, max(start, reached)
            yield rows
        elif more and asked < BATCH_ROWS:
            most = BATCH_ROWS  # new rows can follow the repeated ones
        elif skips < MOST_SKIPS or not more:
            skips += 1
            start = (start | MIB - 1) + 1
        else:
            raise OSError(errno.EIO, "the kernel repeats the same part of the file's map")


def _drop_repeats(rows: list[Extent], seen: int) -> list[Extent]:
    """Return the rows without those that begin before `seen`, or before the end of the last row that was kept."""
    kept = []
    for row in rows:
        if row.logical >= seen:
            kept.append(row)
            seen = row.logical + row.length
    return kept


def _read_rows(fd: int, start: int, end: int, most: int) -> list[Extent]:
    """Return the first `most` rows, or fewer, from `start` to `end`, by one call without FIEMAP_FLAG_SYNC."""
    buffer = bytearray(HEADER.size + most * ROW.size)
    HEADER.pack_into(buffer, 0, start, end - start, 0, 0, most, 0)
    ioctl(fd, FS_IOC_FIEMAP, buffer)
    mapped = HEADER.unpack_from(buffer)[3]  # fm_mapped_extents
    return list(map(Extent._make, ROW.iter_unpack(buffer[HEADER.size : HEADER.size + mapped * ROW.size])))


def count_rows(fd: int) -> int:
    """Return the number of rows of the whole map, at least `extent_count.count`: 3,000 rows take 0.2 to 4 ms."""
    buffer = bytearray(HEADER.pack(0, EVERYTHING, 0, 0, 0, 0))
    ioctl(fd, FS_IOC_FIEMAP, buffer)
    return int(HEADER.unpack(buffer)[3])


def iterate_extents(fd: int, *, sync: bool, start: int = 0, end: int = EVERYTHING) -> Iterator[Extent]:
    """Yield the rows of the map from `start` to `end`, uncut, by file offset. A file can have a million of 300 bytes.

    Raises: as `map_batches`.
    """
    return chain.from_iterable(map_batches(fd, sync=sync, start=start, end=end))


def find_data(fd: int, *, sync: bool, start: int = 0, end: int = EVERYTHING) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of each run of data up to the end of the file, for a sparse copy.

    Runs are cut at `start` and `end`. Dirty pages count as data, unwritten space as a hole. SEEK_DATA and SEEK_HOLE
    need no search for shared extents (5,000 extents: 0.3 ms instead of 9 ms). The file offset of `fd` changes.

    Raises: with `sync` as `map_batches`; OSError: EINVAL the filesystem does not support SEEK_DATA.
    """
    if sync:
        write_back(fd)
    while start < end:
        try:
            offset = os.lseek(fd, start, os.SEEK_DATA)
            start = os.lseek(fd, offset, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        if offset < end:
            yield offset, min(start, end) - offset


def find_unwritten(fd: int, *, sync: bool) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of each run of the file that is allocated, not written and not dirty, in order.

    A run is part of one row of the map; adjacent runs are not joined. It can extend beyond the end of the file, and
    may be freed before the next one is taken. With `sync`, each run consists of whole blocks. The file offset of `fd`
    changes.

    Raises: as `find_data`, and as `map_batches` without `sync`.
    """
    start = 0
    for offset, length in chain(find_data(fd, sync=sync), [(EVERYTHING, 0)]):
        for row in iterate_extents(fd, sync=False, start=start, end=offset):
            first, last = max(row.logical, start), min(row.logical + row.length, offset)
            if row.flags & FIEMAP_EXTENT_UNWRITTEN and first < last:
                yield first, last - first
        start = offset + length


def write_back(fd: int) -> None:
    """Write the file's dirty pages and wait until btrfs has placed them on the disk, which fsync(2) does not guarantee.

    Raises: as `map_batches` with `sync`.
    """
    ioctl(fd, FS_IOC_FIEMAP, bytearray(HEADER.pack(0, 1, FIEMAP_FLAG_SYNC, 0, 0, 0)))


def is_shared_at(fd: int, offset: int) -> bool:
    """Return whether a snapshot or another file shares the extent at `offset`.

    Raises: as `map_batches` without `sync`.
    """
    return any(row.flags & FIEMAP_EXTENT_SHARED for row in _read_rows(fd, offset, offset + 1, 1))


def locate_byte(fd: int, offset: int) -> int | None:
    """Return the address on the volume of the byte at `offset`, or None in a hole.

    Compressed data and dirty pages without a place give a number that is no address, such as 0.

    Raises: as `map_batches` without `sync`.
    """
    rows = _read_rows(fd, offset, offset + 1, 1)
    return rows[0][1] + offset - rows[0][0] if rows else None


def has_same_extents(one: int, other: int) -> bool:
    """Write back both files, and return whether their maps, with flags, are equal. Sizes and SEEK_HOLE can differ.

    Raises: as `map_batches`.
    """
    return all(a == b for a, b in zip_longest(*(iterate_extents(fd, sync=True) for fd in (one, other))))


def find_same_places(before: Iterable[Extent], after: Iterable[Extent]) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of the data with the same file offset and address in both maps, in whole blocks.

    NOT_PLACED rows are left out. The address alone proves nothing, because btrfs can reuse the space of moved data.
    """
    old, new = (filter(lambda row: not row.flags & NOT_PLACED, rows) for rows in (before, after))
    one, other = next(old, None), next(new, None)
    while one is not None and other is not None:
        start = max(one.logical, other.logical)
        one_end, other_end = one.logical + one.length, other.logical + other.length
        if start < min(one_end, other_end) and _get_origin(one) == _get_origin(other):
            yield start, min(one_end, other_end) - start
        if one_end <= other_end:
            one = next(old, None)
        else:
            other = next(new, None)


def _get_origin(row: Extent) -> tuple[bool, int]:
    """Return whether a row is encoded, and its address; for a plain row, its address minus its offset in the file.

    FIEMAP gives the address of a compressed extent to each of its rows; other rows have their own addresses.
    """
    encoded = bool(row.flags & FIEMAP_EXTENT_ENCODED)
    return encoded, row.physical if encoded else row.physical - row.logical
