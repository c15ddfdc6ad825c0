# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write-back of one range leaves the others; holes change nothing that can be read."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from journalkeeper.btrfs import fiemap, kernel
from journalkeeper.btrfs.disk import read_disk_bytes
from journalkeeper.btrfs.writeback import (
    FALLOC_FL_KEEP_SIZE,
    punch_hole,
    sync_file_range,
    wait_writeback,
)
from journalkeeper.model import MIB
from tests.journal_files import PAGE
from tests.patience import eventually

pytestmark = pytest.mark.root

MakeFile = Callable[..., int]


def delalloc(fd: int) -> list[tuple[int, int]]:
    """Where pages are dirty and not yet placed."""
    flag = fiemap.FIEMAP_EXTENT_DELALLOC
    return [(row.logical, row.length) for row in fiemap.list_extents(fd, sync=False) if row.flags & flag]


def dirty_runs(fd: int, runs: int) -> None:
    """Make a MiB dirty at every second MiB: btrfs places a dirty run as a whole, so there are holes between."""
    for number in range(runs):
        os.pwrite(fd, b"x" * MIB, 2 * number * MIB)


def placed(fd: int, remaining: list[tuple[int, int]]) -> bool:
    """Whether only `remaining` is unplaced; the kernel notes a finished write a moment after its pages are free."""
    return eventually(lambda: delalloc(fd) == remaining)


def test_only_the_range_is_written(make_file: MakeFile) -> None:
    fd = make_file()
    dirty_runs(fd, 3)
    sync_file_range(fd, 2 * MIB, 2 * MIB)
    assert placed(fd, [(0, MIB), (4 * MIB, MIB)])


def test_waiting_alone_writes_nothing(make_file: MakeFile) -> None:
    fd = make_file()
    os.pwrite(fd, b"x" * MIB, 0)
    wait_writeback(fd, 0, MIB)
    assert delalloc(fd) == [(0, MIB)]


def test_a_punched_range_lets_go_of_its_extent_when_nothing_else_is_in_it(make_file: MakeFile) -> None:
    fd = make_file(os.urandom(MIB))
    os.posix_fallocate(fd, MIB, 8 * MIB)
    os.fsync(fd)
    assert read_disk_bytes(fd) == 9 * MIB
    for offset, length in fiemap.find_unwritten(fd, sync=True):
        punch_hole(fd, offset, length)
    assert read_disk_bytes(fd) == MIB
    assert os.fstat(fd).st_size == 9 * MIB


@pytest.mark.parametrize("size", [2 * PAGE, 2 * PAGE + 1, 3 * PAGE - 1])
def test_the_files_last_block_may_be_part_of_the_hole(make_file: MakeFile, size: int) -> None:
    fd = make_file(b"x" * PAGE)
    os.posix_fallocate(fd, PAGE, size - PAGE)
    for offset, length in fiemap.find_unwritten(fd, sync=True):
        punch_hole(fd, offset, length)
    os.fsync(fd)
    assert os.fstat(fd).st_size == size
    assert read_disk_bytes(fd) == PAGE
    assert fiemap.find_unwritten(fd, sync=True) == []


def test_space_kept_behind_the_end_is_freed_too(make_file: MakeFile) -> None:
    fd = make_file(b"x" * PAGE)
    kernel.fallocate(fd, FALLOC_FL_KEEP_SIZE, PAGE, MIB)
    os.fsync(fd)
    assert read_disk_bytes(fd) == PAGE + MIB
    for offset, length in fiemap.find_unwritten(fd, sync=True):
        punch_hole(fd, offset, length)
    assert read_disk_bytes(fd) == PAGE
    assert os.fstat(fd).st_size == PAGE


def test_write_back_of_what_is_no_file_is_refused() -> None:
    readable, writable = os.pipe()
    try:
        with pytest.raises(OSError, match="Illegal seek"):
            sync_file_range(readable, 0, MIB)
    finally:
        os.close(readable)
        os.close(writable)
