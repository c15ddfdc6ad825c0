# SPDX-License-Identifier: LGPL-2.1-or-later
"""The number of extents of a file, as filefrag(8) counts them, and the bytes of each kind.

Each extent costs a reader one seek. Without `sync`, dirty pages count as a write-back at this moment would leave them,
so the count is the same before and after a flush.

Source: e2fsprogs 1.47, misc/filefrag.c; fs/btrfs/inode.c, run_delalloc_nocow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from operator import add, and_, ne, or_, sub

from journalkeeper.btrfs import inode, writeback
from journalkeeper.btrfs.fiemap import (
    FIEMAP_EXTENT_DELALLOC,
    FIEMAP_EXTENT_ENCODED,
    FIEMAP_EXTENT_LAST,
    FIEMAP_EXTENT_SHARED,
    FIEMAP_EXTENT_UNWRITTEN,
    Columns,
    Extent,
    map_batches,
)
from journalkeeper.model import MAX_FILE_BYTES, MIB, Extents, Stretch

NEW_PLACES = 2**63
"""An address beyond the end of every volume."""


def _mark_beginnings(fd: int, *, sync: bool) -> Iterator[tuple[Columns, list[bool]]]:
    """Yield the map of `fd` in batches, with a flag for each row that an extent begins with it.

    As in filefrag(8), a row continues an extent if it directly follows the row before on the disk. It also does if both
    rows are as far apart on the disk as in the file. Flags do not matter: alternating written and unwritten blocks are
    one extent. A compressed row has its uncompressed length, so the next row seldom follows it.
    """
    end: int | None = None
    shift: int | None = None
    moving = [] if sync else writeback.find_dirty_runs(fd) or []
    nocow = bool(moving) and inode.is_nocow(fd)
    for listed in map_batches(fd, sync=sync):
        dirty = moving or any(flags & FIEMAP_EXTENT_DELALLOC for flags in listed.flags)
        columns = _predict_places(listed, moving, nocow=nocow) if dirty else listed
        ends = list(map(add, columns.physical, columns.length))
        shifts = list(map(sub, columns.physical, columns.logical))
        shifted, apart = map(ne, shifts, [shift, *shifts]), map(ne, columns.physical, [end, *ends])
        yield columns, list(map(and_, shifted, apart))
        end, shift = ends[-1], shifts[-1]


def _predict_places(columns: Columns, moving: Sequence[tuple[int, int]], *, nocow: bool) -> Columns:
    """Return the rows as a write-back of the dirty runs `moving` would leave them.

    A dirty page over unwritten space (DELALLOC) takes the place below it, which continues the row that it touches.
    A dirty page over data stays in place in a NOCOW file. Every other dirty run moves to a new place as a whole.
    """
    rows = list(map(Extent, *columns))
    predicted: list[Extent] = []
    run = 0
    for number, row in enumerate(rows):
        start, end, flags = row.logical, row.logical + row.length, row.flags
        shift = row.physical - start
        if flags & FIEMAP_EXTENT_DELALLOC:
            neighbours = [*rows[number + 1 : number + 2], *predicted[-1:]]
            touching = [one for one in neighbours if end == one.logical or one.logical + one.length == start]
            if touching and not touching[0].flags & FIEMAP_EXTENT_SHARED:
                shift = touching[0].physical - touching[0].logical
        elif flags & FIEMAP_EXTENT_SHARED or not (nocow or flags & FIEMAP_EXTENT_UNWRITTEN):
            while run < len(moving) and moving[run][0] < end:
                first, last = max(moving[run][0], start), min(moving[run][1], end)
                if start < first:
                    predicted.append(Extent(start, start + shift, first - start, flags))
                if first < last:
                    predicted.append(Extent(first, NEW_PLACES + moving[run][0] + first, last - first, flags))
                    start = last
                if moving[run][1] > end:
                    break
                run += 1
        if start < end or not row.length:
            predicted.append(Extent(start, start + shift, end - start, flags))
    return Columns(*map(list, zip(*predicted, strict=True)))


def _clip(columns: Columns, size: int) -> None:
    """Cut lengths off at `size`: the last block extends beyond it, and fallocate may have reserved space there."""
    logical, length = columns.logical, columns.length
    row = len(logical) - 1
    while row >= 0 and logical[row] + length[row] > size:
        length[row] = max(0, size - logical[row])
        row -= 1


def survey(fd: int, *, sync: bool, per_mib: bool = False) -> Extents:
    """Return the number of extents of `fd` and its bytes of each kind.

    `total` includes extents behind the end of the file; the byte counts end there. Dirty pages without a place count as
    data. `per_mib` and `left_per_mib` stay empty for files larger than MAX_FILE_BYTES, because of the memory.

    Raises: as `fiemap.map_batches`.
    """
    size = os.fstat(fd).st_size
    total = 0
    bytes_by_flags: dict[int, int] = {}
    counts: list[int] = []
    left: list[int] = []
    was_unwritten = 0
    for columns, begins in _mark_beginnings(fd, sync=sync):
        total += sum(begins)
        _clip(columns, size)
        _add_bytes(bytes_by_flags, columns)
        if per_mib and size <= MAX_FILE_BYTES:
            unwritten_rows = [flags & FIEMAP_EXTENT_UNWRITTEN for flags in columns.flags]
            next_to_unwritten = map(or_, unwritten_rows, [was_unwritten, *unwritten_rows])
            _add_counts(counts, columns, begins, size)
            _add_counts(left, columns, [a and bool(b) for a, b in zip(begins, next_to_unwritten, strict=True)], size)
            was_unwritten = unwritten_rows[-1]
    unwritten = _sum_bytes_with(bytes_by_flags, FIEMAP_EXTENT_UNWRITTEN)
    return Extents(
        total=total,
        data_bytes=sum(bytes_by_flags.values()) - unwritten,
        unwritten_bytes=unwritten,
        encoded_bytes=_sum_bytes_with(bytes_by_flags, FIEMAP_EXTENT_ENCODED),
        shared_bytes=_sum_bytes_with(bytes_by_flags, FIEMAP_EXTENT_SHARED),
        per_mib=tuple(counts),
        left_per_mib=tuple(left),
    )


def _add_bytes(totals: dict[int, int], columns: Columns) -> None:
    """Add the length of each row to the total of its combination of flags, ignoring FIEMAP_EXTENT_LAST."""
    flags = columns.flags
    flags[-1] &= ~FIEMAP_EXTENT_LAST
    distinct = set(flags)
    if len(distinct) == 1:
        totals[flags[0]] = totals.get(flags[0], 0) + sum(columns.length)
        return
    for flag in distinct:
        totals.setdefault(flag, 0)
    for flag, length in zip(flags, columns.length, strict=True):
        totals[flag] += length


def _sum_bytes_with(bytes_by_flags: dict[int, int], flag: int) -> int:
    return sum(length for flags, length in bytes_by_flags.items() if flags & flag)


def _add_counts(counts: list[int], columns: Columns, begins: list[bool], size: int) -> None:
    """Add the number of extents that begin in each MiB of the file to `counts`, up to the end of the file."""
    rows = zip(columns.logical, columns.length, begins, strict=True)
    inside = [logical >> 20 for logical, length, begin in rows if begin and length and logical < size]
    if inside:
        counts += [0] * (max(inside) + 1 - len(counts))
    for mib in inside:
        counts[mib] += 1


def list_stretches(fd: int, *, sync: bool) -> tuple[Stretch, ...]:
    """Return, for each MiB of the file, the bytes of each kind and the number of extents that begin there.

    The result is () for files larger than MAX_FILE_BYTES.

    Raises: as `survey`.
    """
    size = os.fstat(fd).st_size
    if size > MAX_FILE_BYTES:
        return ()
    starts = range(0, size, MIB)
    counts = [0] * len(starts)
    held = [[0] * 5 for _ in starts]
    for columns, begins in _mark_beginnings(fd, sync=sync):
        _clip(columns, size)
        rows = zip(columns.logical, columns.length, columns.flags, begins, strict=True)
        for logical, length, flags, begin in rows:
            kind, place, end = _choose_column(flags), logical, logical + length
            if begin and length:
                counts[logical // MIB] += 1
            while place < end:
                upto = min(end, (place | MIB - 1) + 1)
                held[place // MIB][kind] += upto - place
                place = upto
    lengths = [min(MIB, size - start) for start in starts]
    return tuple(
        Stretch._make([start, length, begun, *kinds, length - sum(kinds)])
        for start, length, begun, kinds in zip(starts, lengths, counts, held, strict=True)
    )


def _choose_column(flags: int) -> int:
    """Return the index of the byte count in Stretch to which a row with `flags` adds its length; 0 is data_bytes."""
    if flags & FIEMAP_EXTENT_UNWRITTEN:
        return 4
    return bool(flags & FIEMAP_EXTENT_ENCODED) + 2 * bool(flags & FIEMAP_EXTENT_SHARED)


def count(fd: int, *, sync: bool) -> int:
    """Return the number of extents of `fd`.

    With `sync`, dirty pages are written first. Otherwise the places are predicted that a write-back would give them.

    A FIEMAP call that only counts (fm_extent_count 0) would take a fifth of the time. But it counts adjacent written
    and unwritten extents separately, and each dirty page.

    Raises: as `survey`.
    """
    return sum(sum(begins) for _, begins in _mark_beginnings(fd, sync=sync))
