# SPDX-License-Identifier: LGPL-2.1-or-later
"""Extents are counted as filefrag(8) counts them, however a file lies, and no seek means no work."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from journalkeeper.btrfs import fiemap, kernel, placement
from journalkeeper.model import MIB, JournalFile
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.journals import look
from tests.forms import STEP, alternating, every_form
from tests.journal_files import PAGE
from tests.volumes import extents, filefrag

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def forms() -> Iterator[dict[Path, str]]:
    with every_form(2) as (_, files):
        yield files


def rows(paths: list[Path]) -> dict[str, JournalFile]:
    return {file.path: file for file in look(*paths)}


def test_counts_are_within_one_percent_of_filefrags(forms: dict[Path, str]) -> None:
    paths = sorted(forms)
    ours = rows(paths)
    theirs = dict(zip(paths, filefrag(*paths, sync=True), strict=True))
    apart = {path: (ours[str(path)].extents.total, count) for path, count in theirs.items()}
    assert {path: both for path, both in apart.items() if abs(both[0] - both[1]) > both[1] / 100} == {}
    assert max(theirs.values()) > fiemap.BATCH_ROWS


def test_a_compressed_file_with_holes_has_no_higher_ideal_than_extents(place: Path) -> None:
    path = place / "system.journal"
    path.touch()
    run("btrfs", "property", "set", path, "compression", "zstd")
    with open(path, "wb") as file:
        file.write(b"x" * 4 * MIB)
        file.truncate(64 * MIB)
    run("sync", "-f", path)
    (seen,) = look(path)
    assert seen.compressed
    assert seen.extents.total == seen.ideal_extents == extents(path, sync=True) < 64 * 8


@pytest.mark.parametrize("nocow", [False, True])
@pytest.mark.parametrize("number", [0, 3])
def test_a_contiguous_run_is_one_extent_across_batches(place: Path, *, nocow: bool, number: int) -> None:
    path = place / "system.journal"
    alternating(path, number, nocow=nocow)
    with open(path, "rb") as file:
        listed = fiemap.list_extents(file.fileno(), sync=True)
        survey = placement.survey(file.fileno(), sync=False, per_mib=True)
        assert len(listed) > fiemap.BATCH_ROWS / 2
        assert (survey.total, placement.count(file.fileno(), sync=False)) == (1, 1)
    assert survey.per_mib == (1,)
    assert survey.data_bytes + survey.unwritten_bytes == STEP
    assert survey.unwritten_bytes >= STEP // 2 - PAGE


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
def test_dirty_pages_count_as_a_write_back_leaves_them(place: Path, *, nocow: bool, written: bool, every: int) -> None:
    path = place / "system.journal"
    with dirty(path, nocow=nocow, written=written, every=every), open(path, "rb") as file:
        seen = placement.survey(file.fileno(), sync=False, per_mib=True)
        assert placement.count(file.fileno(), sync=False) == seen.total == sum(seen.per_mib)
        assert placement.list_stretches(file.fileno(), sync=False) != ()
        assert seen.total == pytest.approx(extents(path, sync=True), rel=0.1, abs=1)


@pytest.mark.parametrize("nocow", [False, True])
def test_dirty_pages_of_a_snapshot_move(volume: ScratchVolume, *, nocow: bool) -> None:
    sub = volume.mountpoint / "sub"
    run("btrfs", "subvolume", "create", sub)
    path = sub / "system.journal"
    with dirty(path, nocow=nocow, written=True, every=9) as pages, open(path, "rb") as file:
        run("btrfs", "subvolume", "snapshot", "-r", sub, volume.mountpoint / "snap")
        for offset in range(0, STEP, 9 * PAGE):
            pages[offset] = 2
        counted = placement.count(file.fileno(), sync=False)
        assert counted == pytest.approx(extents(path, sync=True), rel=0.1)


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_that_does_not_list_dirty_pages_counts_no_page_twice(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(kernel, "cachestat", refuse)
    path = place / "system.journal"
    with dirty(path, nocow=True, written=True, every=17), open(path, "rb") as file:
        assert placement.count(file.fileno(), sync=False) == extents(path, sync=True)
