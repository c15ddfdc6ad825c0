# SPDX-License-Identifier: LGPL-2.1-or-later
"""Disk bytes are compsize's, to the byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.btrfs import placement
from journalkeeper.btrfs.defrag import defrag_range
from journalkeeper.btrfs.disk import read_disk_bytes
from journalkeeper.model import MIB
from journalkeeper.model.compression import Compression
from journalkeeper.probe import scratch_volume as lab
from tests.journal_files import PAGE
from tests.nobody import as_nobody
from tests.volumes import disk_bytes

pytestmark = pytest.mark.root

MakeFile = Callable[..., int]


def compsize(path: Path) -> int:
    return disk_bytes(path)


def test_a_plain_file_has_its_own_length(make_file: MakeFile, place: Path) -> None:
    fd = make_file(os.urandom(3 * MIB))
    assert read_disk_bytes(fd) == compsize(place / "file") == 3 * MIB


def test_an_extent_written_over_in_part_counts_whole(make_file: MakeFile, place: Path) -> None:
    fd = make_file(os.urandom(MIB))
    os.pwrite(fd, os.urandom(PAGE), 10 * PAGE)
    os.fsync(fd)
    assert read_disk_bytes(fd) == compsize(place / "file") == MIB + PAGE
    assert os.fstat(fd).st_blocks * 512 == MIB


def test_more_extents_than_one_answer_holds(fragmented: MakeFile, place: Path) -> None:
    fd = fragmented(4000)
    assert placement.count(fd, sync=True) == 4000
    assert read_disk_bytes(fd) == compsize(place / "file") > 4000 * PAGE


@pytest.mark.parametrize("algorithm", ["zlib", "lzo", "zstd"])
def test_a_compressed_file_counts_what_is_left(make_file: MakeFile, place: Path, algorithm: str) -> None:
    fd = make_file(b"journal " * (MIB // 8))
    defrag_range(fd, 0, MIB, compress=Compression(algorithm))
    os.fsync(fd)
    found = read_disk_bytes(fd)
    assert found == compsize(place / "file")
    assert found is not None
    assert 0 < found < MIB / 8


@pytest.mark.parametrize("size", [1, 100, 2048])
def test_a_file_inside_its_metadata_counts_its_bytes(make_file: MakeFile, place: Path, size: int) -> None:
    fd = make_file(os.urandom(size))
    assert read_disk_bytes(fd) == compsize(place / "file") == size


def test_a_compressed_file_inside_its_metadata_counts_what_is_left(make_file: MakeFile, place: Path) -> None:
    fd = make_file()
    os.setxattr(fd, "btrfs.compression", b"zstd")
    os.pwrite(fd, b"x" * 2000, 0)
    os.fsync(fd)
    found = read_disk_bytes(fd)
    assert found == compsize(place / "file")
    assert found is not None
    assert 0 < found < 200


def test_holes_count_nothing(make_file: MakeFile, place: Path) -> None:
    fd = make_file()
    os.ftruncate(fd, 100 * MIB)
    os.pwrite(fd, os.urandom(PAGE), 50 * MIB)
    os.fsync(fd)
    assert read_disk_bytes(fd) == compsize(place / "file") == PAGE


def test_an_extent_found_twice_counts_once(make_file: MakeFile, place: Path) -> None:
    fd = make_file(os.urandom(MIB))
    lab.run("cp", "--reflink=always", place / "file", place / "twin")
    twin = os.open(place / "twin", os.O_RDONLY)
    try:
        assert read_disk_bytes(twin) == compsize(place / "twin") == MIB
    finally:
        os.close(twin)
    os.pwrite(fd, os.urandom(PAGE), MIB // 2)
    os.fsync(fd)
    assert read_disk_bytes(fd) == compsize(place / "file") == MIB + PAGE


def test_nobody_learns_nothing(make_file: MakeFile) -> None:
    fd = make_file(os.urandom(MIB))
    assert as_nobody(lambda: read_disk_bytes(fd)) is None
