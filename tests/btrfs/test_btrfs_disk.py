# SPDX-License-Identifier: LGPL-2.1-or-later
"""Disk bytes are compsize's, to the byte."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.btrfs.defrag import defrag_range
from journalkeeper.btrfs.disk import read_disk_bytes
from journalkeeper.model import MIB
from journalkeeper.model.compression import Compression
from journalkeeper.probe import scratch_volume as lab
from tests.journal_files import PAGE, write_out
from tests.volumes import disk_bytes

pytestmark = pytest.mark.root

MakeFile = Callable[..., int]


def overwrite(fd: int, _path: Path) -> None:
    os.pwrite(fd, os.urandom(PAGE), 10 * PAGE)


def compress(fd: int, _path: Path) -> None:
    os.pwrite(fd, b"journal " * (MIB // 8), 0)
    os.fsync(fd)
    defrag_range(fd, 0, MIB, compress=Compression("zstd"))


def make_hole(fd: int, _path: Path) -> None:
    os.ftruncate(fd, 100 * MIB)
    os.pwrite(fd, os.urandom(PAGE), 50 * MIB)


def make_twin(fd: int, path: Path) -> None:
    lab.run("cp", "--reflink=always", path, path.with_name("twin"))
    os.pwrite(fd, os.urandom(PAGE), MIB // 2)


@pytest.mark.parametrize(
    ("size", "change", "least", "most"),
    [
        (0, None, 0, 0),
        (3 * MIB, None, 3 * MIB, 3 * MIB),
        (MIB, overwrite, MIB + PAGE, MIB + PAGE),
        (0, compress, 1, MIB / 8),
        (0, make_hole, PAGE, PAGE),
        (MIB, make_twin, MIB + PAGE, MIB + PAGE),
    ],
)
def test_disk_bytes_are_those_of_compsize(
    make_file: MakeFile, place: Path, *, size: int, change: Callable[[int, Path], None] | None, least: int, most: float
) -> None:
    fd = make_file(os.urandom(size))
    if change is not None:
        change(fd, place / "file")
        write_out(fd)
    found = read_disk_bytes(fd)
    assert found == disk_bytes(place / "file")
    assert found is not None
    assert least <= found <= most


def test_a_file_may_have_more_extents_than_one_answer_holds(fragmented: MakeFile, place: Path) -> None:
    fd = fragmented(4000)
    assert read_disk_bytes(fd) == disk_bytes(place / "file") > 4000 * PAGE
