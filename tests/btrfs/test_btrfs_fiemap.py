# SPDX-License-Identifier: LGPL-2.1-or-later
"""FIEMAP on real files: the counts are filefrag's, the bytes add up, looking changes nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from journalkeeper.btrfs import fiemap, placement
from journalkeeper.btrfs.inode import set_nocow
from journalkeeper.model import MIB
from journalkeeper.probe.scratch_volume import run
from tests.journal_files import FALLOC_FL_KEEP_SIZE, PAGE, fallocate, write_out
from tests.patience import TRIES
from tests.volumes import extents

pytestmark = pytest.mark.root

MakeFile = Callable[..., int]


def filefrag_rows(path: Path) -> int:
    """How many rows `filefrag -v` lists."""
    return len(re.findall(r"^\s*\d+:\s", run("filefrag", "-v", path), re.MULTILINE))


@pytest.mark.parametrize(
    "pages", [1, 2, fiemap.BATCH_ROWS - 1, fiemap.BATCH_ROWS, fiemap.BATCH_ROWS + 1, 2 * fiemap.BATCH_ROWS, 1300]
)
def test_every_row_is_counted_once_across_batches(fragmented: MakeFile, place: Path, pages: int) -> None:
    fd = fragmented(pages)
    survey = placement.survey(fd, sync=True, per_mib=True)
    rows = list(fiemap.iterate_extents(fd, sync=False))
    assert survey.total == len(rows) == filefrag_rows(place / "file") == placement.count(fd, sync=False) == pages
    assert survey.data_bytes == sum(row.length for row in rows) == pages * PAGE
    assert [row.logical for row in rows] == list(range(0, pages * PAGE, PAGE))
    assert survey.per_mib == tuple(min(256, pages - first) for first in range(0, pages, 256))


@pytest.mark.parametrize("size", [PAGE - 1 + PAGE, 2 * PAGE, 2 * PAGE + 1])
def test_bytes_end_with_the_file_though_the_last_block_does_not(make_file: MakeFile, size: int) -> None:
    fd = make_file(b"x" * size)
    assert placement.survey(fd, sync=True).data_bytes == size
    assert list(fiemap.find_data(fd, sync=True)) == [(0, size)]


def test_allocated_space_is_unwritten(make_file: MakeFile) -> None:
    fd = make_file(b"x" * 2 * PAGE)
    os.posix_fallocate(fd, 2 * PAGE, 6 * PAGE)
    survey = placement.survey(fd, sync=True)
    assert (survey.data_bytes, survey.unwritten_bytes) == (2 * PAGE, 6 * PAGE)
    assert list(fiemap.find_data(fd, sync=True)) == [(0, 2 * PAGE)]
    assert list(fiemap.find_unwritten(fd, sync=True)) == [(2 * PAGE, 6 * PAGE)]
    os.pwrite(fd, b"y" * PAGE, 4 * PAGE)
    assert list(fiemap.find_unwritten(fd, sync=True)) == [(2 * PAGE, 2 * PAGE), (5 * PAGE, 3 * PAGE)]
    assert list(fiemap.find_data(fd, sync=True)) == [(0, 2 * PAGE), (4 * PAGE, PAGE)]


def test_space_kept_behind_the_end_counts_no_bytes(make_file: MakeFile, place: Path) -> None:
    fd = make_file(b"x" * 5000)
    fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 16 * PAGE)
    survey = placement.survey(fd, sync=True, per_mib=True)
    assert (survey.data_bytes, survey.unwritten_bytes) == (5000, 0)
    assert survey.total == extents(place / "file", sync=True)
    assert len(survey.per_mib) == 1
    assert list(fiemap.find_unwritten(fd, sync=True)) == [(2 * PAGE, 14 * PAGE)]
    assert list(fiemap.find_data(fd, sync=True)) == [(0, 5000)]


def test_looking_without_sync_leaves_dirty_pages_dirty(make_file: MakeFile) -> None:
    def stay_dirty(number: int) -> bool:
        fd = make_file(name=f"{number}")
        os.pwrite(fd, b"x" * 4 * PAGE, 0)
        flags = [row.flags for _ in range(2) for row in fiemap.iterate_extents(fd, sync=False)]
        assert len(flags) == 2
        assert placement.survey(fd, sync=False).data_bytes == 4 * PAGE
        (row,) = fiemap.iterate_extents(fd, sync=True)
        assert not row.flags & fiemap.FIEMAP_EXTENT_DELALLOC
        return all(flag & fiemap.FIEMAP_EXTENT_DELALLOC for flag in flags)

    assert any(map(stay_dirty, TRIES))


@pytest.mark.parametrize("look", [placement.survey, placement.count, fiemap.find_data, fiemap.find_unwritten])
def test_looking_with_sync_places_dirty_pages(make_file: MakeFile, look: Callable[..., object]) -> None:
    fd = make_file()
    os.pwrite(fd, b"x" * 4 * PAGE, 0)
    found = look(fd, sync=True)
    if isinstance(found, Iterator):
        assert len(list(found)) == (look is fiemap.find_data)
    assert [row.flags & fiemap.FIEMAP_EXTENT_DELALLOC for row in fiemap.iterate_extents(fd, sync=False)] == [0]


def test_shared_bytes_are_counted_in_the_mib_in_which_they_are(make_file: MakeFile, place: Path) -> None:
    fd = make_file(os.urandom(3 * MIB + PAGE))
    run("cp", "--reflink=always", place / "file", place / "twin")
    os.pwrite(fd, os.urandom(MIB), MIB // 2)
    shared = placement.survey(fd, sync=True, per_mib=True).shared_per_mib
    assert shared == (MIB // 2, MIB // 2)  # no extent begins behind them
    assert placement.survey(fd, sync=True).shared_per_mib == ()


@pytest.mark.parametrize(("nocow", "moves"), [(False, True), (True, False)])
def test_a_written_back_block_moves_if_it_is_datacow(make_file: MakeFile, nocow: bool, moves: bool) -> None:
    def moves_when_written_back(number: int) -> bool:
        fd = make_file(name=f"{number}")
        if nocow:
            set_nocow(fd)
        os.pwrite(fd, b"x" * 4 * PAGE, 0)
        write_out(fd)
        before = fiemap.locate_byte(fd, PAGE)
        assert before == next(fiemap.iterate_extents(fd, sync=False)).physical + PAGE
        os.pwrite(fd, b"y" * PAGE, PAGE)
        stays = fiemap.locate_byte(fd, PAGE) == before
        write_out(fd)
        assert (fiemap.locate_byte(fd, PAGE) != before) is moves
        return stays

    assert any(map(moves_when_written_back, TRIES))
