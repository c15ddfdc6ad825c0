# SPDX-License-Identifier: LGPL-2.1-or-later
"""Defragmenting a datacow file where it is, compressed if it is an archive.

The one rule: the kernel moves the data under the inode's lock, so the content cannot
change; all that is ours is to leave no dirty page behind, and the times as they were.
No fsync: until the transaction ends a power cut leaves the old extents with the same content,
and the next look finds more of them than the record says (policy/rules.py, recorded).
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from journalkeeper.btrfs import defrag, fiemap, inode, writeback
from journalkeeper.compression import Compression, parse_compression
from journalkeeper.execute.held import Held, writable
from journalkeeper.execute.pace import LEAST_BYTES, Pace
from journalkeeper.model import MIB, Action, Kind, Range

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


def defragment(held: Held, action: Action, pace: Pace) -> None:
    """Rewrite the ranges of `action`, of an archive what is data in it, as far as `pace` goes.

    Raises: OSError as btrfs.defrag says; what was finished before stays finished.
    """
    at_rest = action.file.kind is not Kind.ACTIVE
    ranges, runs, before, flags = action.ranges, [], 0, inode.get_flags(held.fd)
    if at_rest:
        punch_unwritten(held)
        # A hole that ends within a block dirtied the rest of it, and the kernel skips what is dirty.
        runs = fiemap.data(held.fd, sync=True)
        ranges = near(runs)
    else:
        before = fiemap.count(held.fd, sync=False)
    compression, reached = parse_compression(action.compress), 0
    for offset, length in pace.pieces(ranges):
        if not at_rest:
            # The kernel skips dirty pages: those of this piece go first, and only those.
            writeback.sync_file_range(held.fd, offset, length)
        _piece(held.fd, offset, length, compression)
        reached = offset + length
    if at_rest:
        pace.written_bytes = sum(min(length, reached - offset) for offset, length in runs if offset < reached)
        extents = fiemap.count(held.fd, sync=True)
        if inode.get_flags(held.fd) != flags:  # NOCOMPRESS, the kernel's note that a piece did not become smaller
            inode.set_flags(held.fd, flags)
        if pace.ended is None and extents > action.extents_expected * WORSE:
            read_through(held.fd, ranges)
    elif pace.written_bytes:
        _wait_until_placed(held.fd, before)


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


def read_through(fd: int, ranges: tuple[Range, ...]) -> None:
    """Read what was rewritten, most of it from memory.

    The kernel leaves the rest of a piece when it cannot read a block of it, and calls that success.

    Raises: OSError: EIO.
    """
    for part in ranges:
        offset, end = part.offset, part.offset + part.length
        while offset < end and (data := os.pread(fd, min(READ_BYTES, end - offset), offset)):
            offset += len(data)


def _wait_until_placed(fd: int, before: int) -> None:
    """Wait a moment, until there are fewer extents than `before` and no longer fewer and fewer."""
    last = before
    for _ in range(PLACED_TRIES):
        count = fiemap.count(fd, sync=False)
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


def punch_unwritten(held: Held) -> None:
    """Free what journald allocated ahead and never wrote; each remnant pins its whole 8 MiB.

    It reads as zeros before and after. Nobody writes to an archive, so no range can have
    been written since it was listed; the times are put back.
    """
    ranges = fiemap.unwritten(held.fd, sync=True)
    if not ranges:
        return
    with writable(held) as fd:
        try:
            for offset, length in ranges:
                writeback.punch_hole(fd, offset, length)
        finally:
            os.utime(fd, ns=(held.status.st_atime_ns, held.status.st_mtime_ns))
