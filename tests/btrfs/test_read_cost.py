# SPDX-License-Identifier: LGPL-2.1-or-later
"""What `explain` says of a cold read, beside a cold read of the whole file, on three kinds of disk."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from journalkeeper.btrfs import fiemap, kernel
from journalkeeper.probe import read_cost
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.read_cost import estimate_cold_read_s
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.journal_files import PAGE
from tests.patience import TRIES
from tests.slowdisk import on_slow_disk
from tests.volumes import drop_caches

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(kernel.RELEASE < (6, 5), reason="this kernel does not say which pages are dirty"),
]

ROUNDS = 7
WITHIN = 1.5
SLICE_S = 0.1
"""The kernel's throttle counts requests in slices of this length, so a shorter read passes at once or waits for one.

Source: block/blk-throttle.c, DFL_THROTL_SLICE_HD.
"""


MakeDisk = Callable[[], AbstractContextManager[ScratchVolume]]


@contextmanager
def throttled() -> Iterator[ScratchVolume]:
    """150 requests a second, as the block layer counts them."""
    with ScratchVolume("1G") as volume:
        volume.throttle(150)
        yield volume


@contextmanager
def seeking() -> Iterator[ScratchVolume]:
    """One request after the other, 8.7 ms each."""
    with on_slow_disk("1G") as (volume, disk):
        disk.set_iops(115)
        yield volume


@contextmanager
def journals(volume: ScratchVolume) -> Iterator[list[Path]]:
    """A torn archive, that archive in one piece, and a torn active file that journald maps."""
    settings = ("SystemMaxFileSize=128M",)
    with PrivateJournald(volume.mountpoint / "log", settings=settings) as journald:
        journald.age(8)
        archive = journald.rotate()
        run("cp", "--reflink=never", archive, whole := volume.mountpoint / "whole.journal")
        journald.age(4)
        journald.stop()
        os.sync()
        yield [archive, whole, journald.active]


def cold_read_s(path: Path) -> float:
    drop_caches()
    with open(path, "rb", buffering=0) as file:
        began_s = time.perf_counter()
        while file.read(128 << 10):
            pass
        return time.perf_counter() - began_s


def estimate_s(path: Path) -> float:
    drop_caches()
    with open(path, "rb") as file:
        found = estimate_cold_read_s(file.fileno())
    assert isinstance(found, float)
    return found


@pytest.mark.parametrize(
    "disk", [lambda: ScratchVolume("1G"), throttled, seeking], ids=["plain", "throttled", "seeking"]
)
def test_the_estimated_cold_read_is_right_on_each_kind_of_disk(disk: MakeDisk) -> None:
    """Takes long on the slow disks: each file is read whole, 200 to 700 requests at 115 a second, at most ROUNDS times.

    Others on the machine only make a read slower, so the fastest reads and estimates are compared.
    """
    with disk() as volume, journals(volume) as paths:
        for path in paths:
            pairs: list[tuple[float, float]] = []
            while not pairs or not agree(*map(min, zip(*pairs, strict=True))):
                assert len(pairs) < ROUNDS, pairs
                pairs.append((cold_read_s(path), estimate_s(path)))


def agree(truth_s: float, found_s: float) -> bool:
    """Return whether an estimate is right enough."""
    return truth_s / WITHIN < found_s < truth_s * WITHIN or abs(found_s - truth_s) < SLICE_S


def test_dirty_pages_are_neither_read_nor_written_back(place: Path) -> None:
    path = place / "system.journal"
    path.write_bytes(os.urandom(400 * PAGE))

    def stay_dirty(_: int) -> bool:
        run("sync", "-f", path)
        with open(path, "r+b", buffering=0) as file:
            for offset in range(0, 400 * PAGE, 40 * PAGE):
                os.pwrite(file.fileno(), b"x", offset)
            before = kernel.cachestat(file.fileno(), 0, 400 * PAGE)[1]
            estimate_cold_read_s(file.fileno())
            return kernel.cachestat(file.fileno(), 0, 400 * PAGE)[1] == before != 0

    assert any(map(stay_dirty, TRIES))


def test_compressed_extents_that_follow_each_other_cost_no_seek(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has 128 KiB of the file in 40 KiB of the disk; the last lies elsewhere."""
    places = [(0, 1 << 20), (1, (1 << 20) + (40 << 10)), (2, (1 << 20) + (80 << 10)), (3, 9 << 20)]
    rows = [fiemap.Extent(n * (128 << 10), place, 128 << 10, fiemap.FIEMAP_EXTENT_ENCODED) for n, place in places]
    monkeypatch.setattr(fiemap, "iterate_extents", lambda *_, **__: iter(rows))
    assert [cost for _, _, cost in read_cost._list_pieces(0)] == [1.25, 0.25, 0.25, 1.25]


@pytest.mark.parametrize("mapped", [400, 300])
def test_mapped_pages_leave_too_little_for_a_price(place: Path, mapped: int) -> None:
    path = place / "system.journal"
    path.write_bytes(os.urandom(400 * PAGE))
    run("sync", "-f", path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), mapped * PAGE, prot=mmap.PROT_READ) as pages:
        assert sum(pages[::PAGE]) > 0
        assert estimate_cold_read_s(file.fileno()) == "a program has the data mapped"


def test_without_a_list_of_dirty_pages_nothing_is_dropped(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> tuple[int, int]:
        raise OSError(38, "Function not implemented")

    path = place / "system.journal"
    path.write_bytes(b"x" * PAGE)
    run("sync", "-f", path)
    with open(path, "rb") as file:
        with monkeypatch.context() as patch:
            patch.setattr(kernel, "cachestat", refuse)
            assert "Linux 6.5" in str(estimate_cold_read_s(file.fileno()))
        assert kernel.cachestat(file.fileno(), 0, PAGE) == (1, 0)
