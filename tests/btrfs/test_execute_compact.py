# SPDX-License-Identifier: LGPL-2.1-or-later
"""Archives of which the kernel leaves data where it lay, and calls that success."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.btrfs import defrag
from journalkeeper.execute import inplace, rewrite
from journalkeeper.model import KIB, Reason, Request, Result
from journalkeeper.probe.bed import Bed, messages
from tests.btrfs.journals import action, bearing, do, export, extents
from tests.journal_files import put, scatter
from tests.volumes import disk_bytes, drop_caches

pytestmark = pytest.mark.root

MESSAGES = 20_000
"""So many fill five files of 16 MiB at the most."""

SCATTERED = 256 * KIB
"""Without compression the kernel leaves extents of this length on purpose."""

DefragRange = Callable[..., Any]
really: DefragRange = defrag.defrag_range


def nothing(_fd: int, _offset: int, _length: int, **_words: Any) -> None:
    """What the kernel does to data that it leaves."""


def the_first_block_only(fd: int, offset: int, length: int, **words: Any) -> None:
    """Progress with each call, but not enough of it."""
    really(fd, offset, min(4 * KIB, length), **words)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_an_archive_that_a_running_journald_rotated_leaves_nothing_behind(
    make_bed: Callable[..., Bed], cold: bool
) -> None:
    """Its last extents are a part of 8 MiB, which stay occupied for one block that is left."""
    place = make_bed("SystemMaxFileSize=16M", "SystemMaxUse=1G")
    for fields in itertools.islice(messages(), MESSAGES):
        place.journald.log(fields.pop("MESSAGE"), **fields)
    place.journald.sync()
    archives = sorted(place.journald.journal.glob("system@*.journal"))
    assert len(archives) >= 4
    for path in archives:
        entries = export(path)
        if cold:
            drop_caches()
        outcome = do(action(path)).outcome
        assert outcome.result is Result.DONE, outcome
        assert disk_bytes(path) <= 0.35 * path.stat().st_size
        assert export(path) == entries


@pytest.mark.parametrize("kernel", [nothing, the_first_block_only])
def test_data_that_the_kernel_does_not_move_is_copied(
    place: Path, journal_bytes: bytes, kernel: DefragRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that always fails to is faked."""
    path = put(place, journal_bytes)
    before, inode = bearing(path), path.stat().st_ino
    monkeypatch.setattr(defrag, "defrag_range", kernel)
    done = do(action(path, Request(now=True, compress="zstd:9")))
    assert (done.outcome.result, done.compress) == (Result.DONE, "zstd")
    assert done.outcome.detail.startswith("as zstd, not zstd:9: ")
    assert done.after.inode == path.stat().st_ino != inode
    assert bearing(path) == before
    assert disk_bytes(path) <= 0.35 * len(journal_bytes)
    assert done.outcome.extents_after <= done.extents_expected * inplace.WORSE
    assert list(place.iterdir()) == [path]


def test_a_file_that_is_open_for_writing_is_not_copied(
    place: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """journald keeps its archives open until it rotates again: then such a file is worked on in place."""
    path = put(place, journal_bytes)
    before, inode = bearing(path), path.stat().st_ino
    monkeypatch.setattr(defrag, "defrag_range", nothing)
    monkeypatch.setattr(rewrite, "rewrite", lambda *_: pytest.fail("a copy was begun"))
    with path.open("r+b"):
        outcome = do(action(path)).outcome
    assert (outcome.result, outcome.reason) == (Result.SKIPPED, Reason.IN_USE)
    assert (bearing(path), path.stat().st_ino) == (before, inode)


def test_a_plain_archive_of_long_extents_is_copied_when_the_kernel_joins_none(
    place: Path, journal_bytes: bytes
) -> None:
    path = put(place, journal_bytes, torn=False)
    scatter(path, SCATTERED)
    before, torn = bearing(path), extents(path)
    outcome = do(action(path, Request(now=True, compress="no"))).outcome
    assert (outcome.result, outcome.detail) == (Result.DONE, "")
    assert extents(path) < torn / 2
    assert bearing(path) == before
