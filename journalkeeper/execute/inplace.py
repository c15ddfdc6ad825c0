# SPDX-License-Identifier: LGPL-2.1-or-later
"""Defragmenting a datacow file where it is, compressed if it is an archive.

The kernel moves the data under the inode's lock, so the content cannot
change; all that is ours is to leave no dirty page behind, and the times as they were.
The kernel reports success for data that it left in place, so an archive's extents are
compared before and after, and what was left is done again.
No fsync: until the transaction ends a power cut leaves the old extents with the same content,
and the next look finds more of them than the record says (policy/rules.py, rewritten).
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from journalkeeper.btrfs import defrag, fiemap, inode, mtime_note, placement, writeback
from journalkeeper.btrfs.fiemap import Extent
from journalkeeper.execute.pace import LEAST_BYTES, Pace
from journalkeeper.execute.verified_file import VerifiedFile, writable
from journalkeeper.model import MIB, Action, Range, Reason
from journalkeeper.model.compression import Compression, parse_compression
from journalkeeper.policy.gain import is_useless_rewrite, least_extents

FREEZER_TRIES: Final = 3
"""How often a piece is begun that a suspending machine's freezer refuses (EAGAIN), for which it needs no signal."""

WORSE: Final = 1.1
"""With more than this many times the extents expected something went wrong."""

READ_BYTES: Final = MIB

NEAR_BYTES: Final = LEAST_BYTES
"""Runs of data with a shorter hole between them go to the kernel in one piece: it passes over holes
by itself, and a call of its own for each run of 40 KiB costs three times what the run does (0.6 ms)."""

PLACED_TRIES: Final = 20
PLACED_S: Final = 0.005
"""btrfs puts written extents into the file in a worker, milliseconds after their write-back is
over (btrfs_finish_ordered_io); only a sync of the whole file would wait for that."""


NOT_PLACED: Final = fiemap.FIEMAP_EXTENT_UNWRITTEN | fiemap.FIEMAP_EXTENT_UNKNOWN | fiemap.FIEMAP_EXTENT_DATA_INLINE
"""Flags of rows that hold no data, or have no address of their own."""

PASSES: Final = 6
"""How often an archive is gone through at the most; a pass that moves nothing is the last in any case.

From the middle of a file's last extent item on, the kernel finds an extent only if its map is in memory:
it looks one item back only where the item behind `start` is the file's own. With nothing in memory that leaves
all but the first cluster of the extent, else the block that journald's last truncation dropped from memory.
A pass by clusters, each written back, begins each at an item of its own: two moved everything (measured).

Source: fs/btrfs/defrag.c, defrag_get_extent (6.18: `not_found`) and defrag_collect_targets.
"""


class Moved(NamedTuple):
    """What a pass over an archive achieved.

    `left` are the (offset, length) that still lie where they lay and should not;
    `extents_expected` what can be expected of data with these holes.
    """

    left: list[tuple[int, int]]
    extents_expected: int


def defragment(held: VerifiedFile, action: Action, pace: Pace) -> int:
    """Rewrite the ranges of an active file as far as `pace` goes; the extents that can be expected.

    Raises: OSError as btrfs.defrag says; what was finished before stays finished.
    """
    before = placement.count(held.fd, sync=False)
    for offset, length in pace.pieces(action.ranges):
        # The kernel skips dirty pages: those of this piece go first, and only those.
        writeback.sync_file_range(held.fd, offset, length)
        _piece(held.fd, offset, length, parse_compression(action.compress))
    if pace.written_bytes:
        _wait_until_placed(held.fd, before)
    return action.extents_expected


def compact(held: VerifiedFile, action: Action, pace: Pace) -> Moved:
    """Rewrite all that is data in an archive, again where the kernel left it, as far as `pace` goes.

    Raises: as `defragment`.
    """
    flags, compression = inode.get_flags(held.fd), parse_compression(action.compress)
    punch_unwritten(held, pace)
    # A hole that ends within a block dirtied the rest of it, and the kernel skips what is dirty.
    before = fiemap.list_extents(held.fd, sync=True)
    runs = fiemap.find_data(held.fd, sync=False)
    expected = max(action.extents_expected, least_extents(runs, compressed=compression is not None))
    ranges, left, undone_bytes = near(runs), runs, 0
    for number in range(PASSES):
        done_before, reached = pace.written_bytes, 0
        # A later pass goes cluster by cluster, each written back before the next: that is what moves them.
        for offset, length in pace.pieces(ranges, most_bytes=LEAST_BYTES if number else None):
            _piece(held.fd, offset, length, compression)
            reached = offset + length
        pace.written_bytes = done_before + sum(min(size, reached - at) for at, size in left if at < reached)
        after = fiemap.list_extents(held.fd, sync=True)
        left = _left(action, expected, before, after)
        last_undone_bytes, undone_bytes = undone_bytes, sum(length for _, length in left)
        if not left or pace.ended is not None or (number and undone_bytes >= last_undone_bytes):
            break
        ranges = near(left)
    if inode.get_flags(held.fd) != flags:  # NOCOMPRESS, the kernel's note that a piece did not become smaller
        inode.set_flags(held.fd, flags)
    if pace.ended is None and (left or len(after) > expected * WORSE):
        read_through(held.fd, near(runs), pace)
    return Moved(left, expected)


def _left(action: Action, expected: int, before: list[Extent], after: list[Extent]) -> list[tuple[int, int]]:
    """What should lie elsewhere now and does not.

    Compression moves everything. Without it the kernel leaves long extents on purpose, which matters
    where they pin space, or where too many are left.
    """
    everything = parse_compression(action.compress) is not None or action.reason is Reason.PINNED
    return unmoved(before, after) if everything or is_useless_rewrite(len(before), expected, len(after)) else []


def unmoved(before: list[Extent], after: list[Extent]) -> list[tuple[int, int]]:
    """The (offset, length) of written data that is at the same place on the volume in both maps, in whole blocks.

    The same place for the same offset: an address alone proves nothing, because the space of
    what was moved first may be given to what is moved later.
    """
    found: list[tuple[int, int]] = []
    old, new = (iter([row for row in rows if not row.flags & NOT_PLACED]) for rows in (before, after))
    one, other = next(old, None), next(new, None)
    while one is not None and other is not None:
        start = max(one.logical, other.logical)
        one_end, other_end = one.logical + one.length, other.logical + other.length
        if start < min(one_end, other_end) and _origin(one) == _origin(other):
            found.append((start, min(one_end, other_end) - start))
        if one_end <= other_end:
            one = next(old, None)
        else:
            other = next(new, None)
    return found


def _origin(row: Extent) -> tuple[bool, int]:
    """What two rows of one extent have in common; of a compressed one FIEMAP gives the beginning for every part."""
    encoded = bool(row.flags & fiemap.FIEMAP_EXTENT_ENCODED)
    return encoded, row.physical if encoded else row.physical - row.logical


def near(runs: list[tuple[int, int]]) -> tuple[Range, ...]:
    """The (offset, length) of `runs` with those joined that lie less than NEAR_BYTES apart."""
    ranges: list[Range] = []
    for offset, length in runs:
        if ranges and offset - (ranges[-1].offset + ranges[-1].length) < NEAR_BYTES:
            first = ranges.pop().offset
            ranges.append(Range(first, offset + length - first, 0))
        else:
            ranges.append(Range(offset, length, 0))
    return tuple(ranges)


def read_through(fd: int, ranges: tuple[Range, ...], pace: Pace) -> None:
    """Read what was rewritten, most of it from memory, unless `pace` ends before.

    The kernel leaves the rest of a piece when it cannot read a block of it, and calls that success.

    Raises: OSError: EIO.
    """
    for start, length in pace.reads(ranges):
        offset, end = start, start + length
        while offset < end and (data := os.pread(fd, min(READ_BYTES, end - offset), offset)):
            offset += len(data)


def _wait_until_placed(fd: int, before: int) -> None:
    """Wait a moment, until there are fewer extents than `before` and no longer fewer and fewer."""
    last = before
    for _ in range(PLACED_TRIES):
        count = placement.count(fd, sync=False)
        if count == last < before:
            return
        last = count
        time.sleep(PLACED_S)


def _piece(fd: int, offset: int, length: int, compression: Compression | None) -> None:
    """One piece, written back; the rest of the file is not, which in an active file is journald's to flush."""
    with _undisturbed():
        for attempt in range(FREEZER_TRIES):
            try:
                defrag.defrag_range(fd, offset, length, compress=compression, start_io=False)
                break
            except OSError as error:
                if error.errno != errno.EAGAIN or attempt == FREEZER_TRIES - 1:
                    raise
    writeback.sync_file_range(fd, offset, length)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait: the kernel stops in the middle of a piece for any of them, and calls that success."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def punch_unwritten(held: VerifiedFile, pace: Pace) -> None:
    """Free what journald allocated ahead and never wrote, as far as `pace` goes; each remnant pins its whole 8 MiB.

    It reads as zeros before and after. Nobody writes to an archive, so no range can have
    been written since it was listed; the times are put back, by the next run if this one is killed.
    """
    ranges = fiemap.find_unwritten(held.fd, sync=True)
    if not ranges:
        return
    with writable(held) as fd:
        mtime_note.make(fd, held.status)
        try:
            for offset, length in ranges:
                if not pace.goes_on():
                    break
                writeback.punch_hole(fd, offset, length)
        finally:
            mtime_note.restore(fd, held.status)
