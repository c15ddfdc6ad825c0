# SPDX-License-Identifier: LGPL-2.1-or-later
"""Extents are counted as filefrag(8) counts them, however a file lies, and no seek means no work."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.btrfs import placement
from journalkeeper.model import MIB
from journalkeeper.probe.scratch_volume import run
from tests.btrfs.journals import look
from tests.journal_files import FALLOC_FL_KEEP_SIZE, PAGE, fallocate, punch_hole, put, scatter
from tests.patience import TRIES
from tests.volumes import extents

pytestmark = pytest.mark.root

STEP = 8 << 20
"""journald(8) allocates so many bytes ahead."""

Make = Callable[[Path, Path, int], None]
"""Make a file out of a torn archive; the number tells files of one form apart."""


def torn(source: Path, target: Path, number: int) -> None:
    """A copy, of which every second to sixth block is written once more."""
    run("cp", "--reflink=never", source, target)
    os.sync()
    scatter(target, every=2 + number % 5)


def alternating(target: Path, number: int, *, nocow: bool) -> None:
    """One contiguous run in which written blocks alternate with unwritten ones, as journald's flushes leave it."""
    target.touch()
    run("chattr", "+C" if nocow else "-C", target)
    with open(target, "r+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, STEP)
        os.fsync(file.fileno())
        for offset in range(0, STEP, (2 + number % 7) * PAGE):
            os.pwrite(file.fileno(), os.urandom(PAGE), offset)
        os.fsync(file.fileno())


def compressed(source: Path, target: Path, number: int) -> None:
    """All of it compressed, and of every second file some blocks written over."""
    run("cp", "--reflink=never", source, target)
    run("btrfs", "filesystem", "defragment", "-czstd", "-f", target)
    os.sync()
    if number % 2:
        scatter(target, every=50)


def with_holes(source: Path, target: Path, number: int) -> None:
    """Holes of one block to seven, in extents and between them."""
    torn(source, target, number)
    with open(target, "r+b", buffering=0) as file:
        for offset in range(0, target.stat().st_size, 16 * PAGE):
            punch_hole(file.fileno(), offset, (1 + number % 7) * PAGE)
        os.fsync(file.fileno())


def with_tail(source: Path, target: Path, number: int) -> None:
    """Space allocated ahead, within the file's size or behind it."""
    torn(source, target, number)
    with open(target, "r+b", buffering=0) as file:
        mode = FALLOC_FL_KEEP_SIZE if number % 2 else 0
        fallocate(file.fileno(), mode, target.stat().st_size, STEP)
        os.fsync(file.fileno())


def inline(_source: Path, target: Path, number: int) -> None:
    """So small that it is in its metadata."""
    target.write_bytes(os.urandom(1 + number % 2000))


FORMS: dict[str, Make] = {
    "torn": torn,
    "alternating datacow": lambda _, target, number: alternating(target, number, nocow=False),
    "alternating nocow": lambda _, target, number: alternating(target, number, nocow=True),
    "compressed": compressed,
    "holes": with_holes,
    "tail": with_tail,
    "inline": inline,
}


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_counts_are_within_one_percent_of_filefrags(place: Path, journal_bytes: bytes, form: str, number: int) -> None:
    source, path = put(place, journal_bytes, torn=False), place / "system.journal"
    FORMS[form](source, path, number)
    run("sync", "-f", path)
    (ours,) = look(path)
    theirs = extents(path, sync=True)
    assert abs(ours.extents.total - theirs) <= theirs / 100


def test_a_compressed_file_with_holes_has_no_higher_ideal_than_extents(place: Path) -> None:
    """Another program's sync(2) can end an extent early, and one of a single page is not compressed."""

    def is_ideal(number: int) -> bool:
        path = place / f"{number}.journal"
        path.touch()
        run("btrfs", "property", "set", path, "compression", "zstd")
        with open(path, "wb") as file:
            file.write(b"x" * 4 * MIB)
            file.truncate(64 * MIB)
        run("sync", "-f", path)
        (seen,) = look(path)
        assert seen.compressed
        return seen.ideal_extents == seen.extents.total == extents(path, sync=True) == 4 * 8

    assert any(map(is_ideal, TRIES))


# dirty files


def dirty(path: Path, *, nocow: bool, written: bool, every: int) -> mmap.mmap:
    """Make a fallocated file, sync its first half if that is to be `written`, and dirty some pages through a map."""
    path.touch()
    run("chattr", "+C" if nocow else "-C", path)
    with open(path, "r+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, STEP)
        if written:
            file.write(os.urandom(STEP // 2))
        os.fsync(file.fileno())
        pages = mmap.mmap(file.fileno(), STEP)
    for offset in range(0, STEP, every * PAGE):
        pages[offset] = 1
    return pages


@pytest.mark.parametrize("every", [7, 17, 300])
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("nocow", [False, True])
def test_dirty_pages_count_where_they_are_on_the_disk(place: Path, *, nocow: bool, written: bool, every: int) -> None:
    """NOCOW and unwritten blocks stay there, too. Other blocks move at the flush, which the count does not predict.

    A sync of another program may be that flush.
    """

    def are_one_extent(number: int) -> bool:
        path = place / f"{number}.journal"
        with dirty(path, nocow=nocow, written=written, every=every), open(path, "rb") as file:
            seen = placement.survey(file.fileno(), sync=False, per_mib=True)
            counts = [placement.count(file.fileno(), sync=False), seen.total, sum(seen.per_mib)]
            assert placement.list_stretches(file.fileno(), sync=False) != ()
            if nocow or not written:
                counts.append(extents(path, sync=True))
        return set(counts) == {1}

    assert any(map(are_one_extent, TRIES))
