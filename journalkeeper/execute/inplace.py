# SPDX-License-Identifier: LGPL-2.1-or-later
"""Defragmentation of a datacow file in place; archives can be compressed, too.

The kernel moves the data under the inode's lock, so the content cannot change. This module leaves no dirty page behind
and keeps the file's times. The kernel reports success even for data that it did not move. So an archive's extents are
compared before and after, and the remaining data is moved again.

The new extents are not yet durable: executor._make_durable.
"""

from __future__ import annotations

import os
import signal
import time
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from journalkeeper.btrfs import defrag, fiemap, inode, writeback
from journalkeeper.execute.pace import LEAST_BYTES, Pace
from journalkeeper.execute.verified_file import Refused, VerifiedFile, open_for_writing
from journalkeeper.journald import opening
from journalkeeper.model import MIB, Action, Range, Reason
from journalkeeper.model.plans import join_ranges
from journalkeeper.model.units import Compression, parse_compression
from journalkeeper.policy.cost import count_least_extents, is_useless_rewrite

WORSE: Final = 1.1
"""If a file has more than this many times the expected extents, an error is likely."""

READ_BYTES: Final = MIB
HOLE_FLAGS: Final = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC

NEAR_BYTES: Final = LEAST_BYTES
"""Smaller holes do not end a piece. The kernel skips holes by itself, and a separate call for each run of 40 KiB costs
three times as much as the run (0.6 ms).
"""

PLACED_TRIES: Final = 6
PLACED_S: Final = 0.02
"""The pause before each look for the new extents. btrfs adds them to the file in a worker, milliseconds after the
write-back has ended (btrfs_finish_ordered_io). Only a sync of the whole file would wait for the worker.
"""

PASSES: Final = 3
"""The largest number of passes over an archive. What then is left is copied.

If a call begins inside a file's last extent item, the kernel finds the extent only if its map is in memory: it looks
one item back only if the item behind `start` belongs to the file. Without the map, everything after the extent's first
cluster stays. With it, the block that journald's last truncation dropped from memory stays. A later pass works by
clusters and writes each back, so that each begins at its own item. Two such passes moved everything (measured).

Source: fs/btrfs/defrag.c, defrag_get_extent (6.18: `not_found`) and defrag_collect_targets.
"""


def defragment(held: VerifiedFile, action: Action, pace: Pace) -> int:
    """Defragment ranges of an active file until `pace` ends, and wait a moment for the new extents in its map.

    Return the planned number of extents of the whole file, also after an early end. Of the dirty pages, only those of
    the ranges are written. The action's compression is used.

    Raises: OSError as btrfs.defrag; finished pieces stay finished.
    """
    before = fiemap.count_rows(held.fd)
    for offset, length in pace.iterate_pieces(action.ranges):
        # The kernel skips dirty pages: those of this piece go first, and only those.
        writeback.sync_file_range(held.fd, offset, length)
        _defragment_without_signals(held.fd, offset, length, parse_compression(action.compress))
        writeback.sync_file_range(held.fd, offset, length)
    if pace.written_bytes:
        _wait_for_extents(held.fd, before)
    return action.extents_expected


def compact(held: VerifiedFile, action: Action, pace: Pace) -> tuple[int, bool]:
    """Free the unwritten space of an archive, and rewrite its data in place, in several passes, until `pace` ends.

    Return the expected number of extents, and whether all data moved, also after an early end. Without compression the
    kernel keeps long extents: then a gain is enough, unless the reason is PINNED. The inode flags are restored, also
    after an error. The mtime stays, and the ctime changes. `pace.written_bytes` counts data, not holes.

    Raises: as `free_unwritten` and `defragment`; as `read_through`, called if data is left or extents exceed WORSE.
    """
    flags, compression = inode.get_flags(held.fd), parse_compression(action.compress)
    free_unwritten(held, pace)
    # Four numbers per extent take 32 bytes instead of 300, because a file can have a million extents.
    before = array("Q", chain.from_iterable(fiemap.iterate_extents(held.fd, sync=True)))
    least = count_least_extents(fiemap.find_data(held.fd, sync=False), compressed=compression is not None)
    expected = max(action.extents_expected, least)
    needs_all = compression is not None or action.reason is Reason.PINNED
    data = ranges = join_near(fiemap.find_data(held.fd, sync=False))
    try:
        for number in range(PASSES):
            written = pace.written_bytes
            # A later pass moves the rest, because it writes each cluster back before the next one.
            for offset, length in pace.iterate_pieces(ranges, most_bytes=LEAST_BYTES if number else None):
                _defragment_without_signals(held.fd, offset, length, compression)
                writeback.sync_file_range(held.fd, offset, length)
                runs = fiemap.find_data(held.fd, sync=False, start=offset, end=offset + length)
                written += sum(size for _, size in runs)
            pace.written_bytes = written
            extents = sum(map(len, fiemap.map_batches(held.fd, sync=True)))
            ranges = ()
            if needs_all or is_useless_rewrite(len(before) // 4, expected, extents):
                ranges = join_near(_find_unmoved(held.fd, before))
            if not ranges or pace.ended is not None:
                break
    finally:
        if inode.get_flags(held.fd) != flags:  # the kernel sets NOCOMPRESS when a piece did not become smaller
            inode.set_flags(held.fd, flags)
    if ranges or extents > expected * WORSE:
        read_through(held.fd, data, pace)
    return expected, not ranges


def _find_unmoved(fd: int, before: array[int]) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of all data that has the same place as in `before`, the four numbers of each Extent."""
    old = (fiemap.Extent(*before[at : at + 4]) for at in range(0, len(before), 4))
    return fiemap.find_same_places(old, fiemap.iterate_extents(fd, sync=False))


def join_near(runs: Iterable[tuple[int, int]]) -> tuple[Range, ...]:
    """Join sorted (offset, length) `runs` with holes of less than NEAR_BYTES to ranges with the extent count 0."""
    return join_ranges((Range(*run, 0) for run in runs), NEAR_BYTES)


def read_through(fd: int, ranges: tuple[Range, ...], pace: Pace) -> None:
    """Read `ranges` until `pace` ends, to find blocks that the kernel could not read.

    The rewrite does not report such a block: the kernel skips the rest of the piece and returns success.

    Raises: as `read_parts`; OSError: EIO a block cannot be read.
    """
    for offset, length in pace.iterate_reads(ranges):
        for _ in read_parts(fd, offset, length):
            pass


def read_parts(fd: int, offset: int, length: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, data) of a range, at most READ_BYTES at once. Raises: Refused if the file ends before; OSError."""
    end = offset + length
    while offset < end:
        data = os.pread(fd, min(READ_BYTES, end - offset), offset)
        if not data:
            raise Refused(Reason.CHANGED, "the file became shorter during the work")
        yield offset, data
        offset += len(data)


def _wait_for_extents(fd: int, before: int) -> None:
    """Wait at most PLACED_TRIES times until the map has fewer than `before` rows."""
    for _ in range(PLACED_TRIES):
        time.sleep(PLACED_S)
        if fiemap.count_rows(fd) < before:
            return


def _defragment_without_signals(fd: int, offset: int, length: int, compression: Compression | None) -> None:
    """Call `defrag_range` with all signals blocked until it returns. Raises: OSError as btrfs.defrag.

    A signal would make the kernel stop in the middle of a piece and return success. The caller writes the piece back.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        defrag.defrag_range(fd, offset, length, compress=compression)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def free_unwritten(held: VerifiedFile, pace: Pace) -> None:
    """Free the space of an archive that journald allocated and never wrote, until `pace` ends. Without any, do nothing.

    Even a small unwritten rest keeps its whole extent of 8 MiB allocated. Holes of a temporary file replace the ranges
    (`free_zeros`). This is safe while another process writes, as a journald may that archives in a process of its own.

    Raises: as `open_for_writing`, if there is such space; as `free_zeros`.
    """
    ranges = fiemap.find_unwritten(held.fd, sync=True)
    first = next(ranges, None)
    if first is None:
        return
    made = os.open(".", HOLE_FLAGS, 0o600, dir_fd=held.dir_fd)
    with opening.hold(made) as hole, open_for_writing(held) as fd:
        if inode.is_nocow(hole) and not inode.is_nocow(fd):
            inode.set_flags(hole, 0)
        for offset, length in chain([first], ranges):
            if not pace.can_go_on():
                break
            writeback.free_zeros(fd, hole, offset, length)
