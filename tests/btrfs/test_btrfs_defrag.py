# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel does with a range, on real files."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.btrfs import placement
from journalkeeper.btrfs.defrag import defrag_range
from journalkeeper.btrfs.disk import read_disk_bytes
from journalkeeper.model import KIB, MIB
from journalkeeper.model.compression import Compression
from journalkeeper.probe.scratch_volume import run
from tests.journal_files import PAGE
from tests.nobody import as_nobody

pytestmark = pytest.mark.root

MakeFile = Callable[..., int]


def digest(fd: int) -> str:
    return hashlib.sha256(os.pread(fd, os.fstat(fd).st_size, 0)).hexdigest()


def prose(size: int) -> bytes:
    """Text that every algorithm packs, and a high level tighter than a low one."""
    dice = random.Random(5)  # noqa: S311 - the same text each time
    words = ["".join(dice.choices("etaoinshrdlu", k=dice.randint(2, 11))) for _ in range(2000)]
    phrases = [" ".join(dice.choices(words, k=8)) for _ in range(400)]
    return ". ".join(dice.choices(phrases, k=size // 16)).encode()[:size]


def pieces(fd: int, size: int, count: int) -> None:
    """Fill a file with `count` extents of `size` bytes each, none behind the other on the disk."""
    for number in [*range(0, count, 2), *range(1, count, 2)]:
        os.pwrite(fd, bytes([number + 1]) * size, number * size)
        os.fsync(fd)


def test_fragments_become_one_with_the_same_content(fragmented: MakeFile) -> None:
    fd = fragmented(200)
    before = digest(fd)
    assert defrag_range(fd, 0, 200 * PAGE) is None
    assert placement.survey(fd, sync=True).total <= 2
    assert digest(fd) == before


def test_only_the_range_is_touched(fragmented: MakeFile) -> None:
    fd = fragmented(512)
    defrag_range(fd, 0, MIB)
    low, high = placement.survey(fd, sync=True, per_mib=True).per_mib
    assert low <= 2
    assert high == 256


def test_an_extent_as_long_as_the_threshold_is_left_and_a_shorter_one_is_joined(make_file: MakeFile) -> None:
    fd = make_file()
    pieces(fd, 64 * KIB, 8)
    assert placement.survey(fd, sync=True).total == 8
    defrag_range(fd, 0, 512 * KIB, extent_thresh_bytes=64 * KIB)
    assert placement.survey(fd, sync=True).total == 8
    defrag_range(fd, 0, 512 * KIB, extent_thresh_bytes=64 * KIB + PAGE)
    assert placement.survey(fd, sync=True).total <= 2


@pytest.mark.parametrize("algorithm", ["zlib", "lzo", "zstd"])
def test_each_compression_is_what_compsize_sees(make_file: MakeFile, place: Path, algorithm: str) -> None:
    fd = make_file(prose(MIB))
    before = digest(fd)
    assert defrag_range(fd, 0, MIB, compress=Compression(algorithm)) == Compression(algorithm)
    survey = placement.survey(fd, sync=True)
    assert survey.encoded_bytes == MIB
    assert survey.total == 8
    assert algorithm in run("compsize", place / "file")
    assert digest(fd) == before


def test_a_level_is_used_where_the_kernel_has_levels(make_file: MakeFile) -> None:
    sizes = {}
    for level in (1, 15):
        fd = make_file(prose(MIB), f"level{level}")
        used = defrag_range(fd, 0, MIB, compress=Compression("zstd", level))
        os.fsync(fd)
        sizes[level] = read_disk_bytes(fd) or 0
        kernel = tuple(map(int, os.uname().release.split("-")[0].split(".")[:2]))
        assert used == Compression("zstd", level if kernel >= (6, 15) else None)
        assert sizes[level] < MIB
        if used.level is None:
            return
    assert sizes[15] < sizes[1]


@pytest.mark.parametrize("length", [0, -1])
def test_an_empty_range_is_not_the_rest_of_the_file(fragmented: MakeFile, length: int) -> None:
    fd = fragmented(64)
    with pytest.raises(ValueError, match="must be positive"):
        defrag_range(fd, 0, length)
    assert placement.survey(fd, sync=True).total == 64


def test_nobody_may_not_and_the_owner_may(fragmented: MakeFile, place: Path) -> None:
    fragmented(64)
    fd = os.open(place / "file", os.O_RDONLY)
    try:
        with pytest.raises(PermissionError):
            as_nobody(lambda: defrag_range(fd, 0, 64 * PAGE))
        assert placement.survey(fd, sync=True).total == 64
        os.chmod(place / "file", 0o666)  # noqa: S103 - somebody else's file that nobody may write
        as_nobody(lambda: defrag_range(fd, 0, 64 * PAGE))
        assert placement.survey(fd, sync=True).total <= 2
    finally:
        os.close(fd)
