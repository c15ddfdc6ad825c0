# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file of any size is left at once when somebody says so, also where it is only read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.btrfs import writeback
from journalkeeper.execute import inplace
from journalkeeper.execute.executor import execute
from journalkeeper.execute.pace import Pace
from journalkeeper.model import GIB, MIB, Reason, Result
from journalkeeper.model.run import Done
from tests.btrfs.journals import action, bearing, do, extents, how, is_nocow, look, with_unwritten
from tests.journal_files import OLD_NS, put

pytestmark = pytest.mark.root

PIECE_BYTES = MIB


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all reads from now on; one that reads holes is ended."""
    real, lengths = os.pread, []

    def pread(fd: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        assert sum(lengths) < 64 * MIB, "a hole is read"
        return real(fd, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    return lengths


def stopped_when_written(path: Path, share: float, beforehand: Callable[[], object]) -> Done:
    """What becomes of a file when somebody says stop after this share of its data was written."""
    what, data_bytes = action(path), look(path)[0].extents.data_bytes
    pieces: list[int] = []
    beforehand()
    return do(what, tell=pieces.append, stop=lambda: sum(pieces) >= share * data_bytes, chunk_bytes=PIECE_BYTES)


def test_after_the_window_closed_an_active_files_map_is_not_read(
    place: Path, journal_bytes: bytes, mapped: list[int]
) -> None:
    path, pieces = put(place, journal_bytes, "system.journal"), list[int]()
    what = action(path)
    mapped.clear()

    def ask(_piece_us: int) -> Reason | None:
        return Reason.WINDOW_CLOSED if pieces else None

    done = execute(what, Pace(most_bytes=MIB, piece_us=None, ask=ask, tell=pieces.append))
    assert how(done) == (Result.SKIPPED, Reason.WINDOW_CLOSED)
    assert mapped == []
    assert extents(path) <= done.outcome.extents_after < done.outcome.extents_before == what.extents_before


def test_a_hole_is_not_read(place: Path, journal_bytes: bytes, reads: list[int]) -> None:
    path = put(place, journal_bytes, nocow=True)
    mtime_ns = path.stat().st_mtime_ns
    os.truncate(path, 3 * GIB)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    what = action(path)
    reads.clear()
    done = do(what)
    assert done.outcome.result is Result.DONE, done.outcome.detail
    assert sum(reads) <= 4 * len(journal_bytes)
    assert max(reads) <= MIB, "a copy of any size takes little memory"
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (3 * GIB, mtime_ns)
    with open(path, "rb") as file:
        assert file.read(len(journal_bytes)) == journal_bytes
    assert not is_nocow(path)


@pytest.mark.parametrize("share", [0.4, 1], ids=["made", "verified"])
def test_a_stop_while_the_copy_is_made_or_verified_leaves_the_original(
    place: Path, journal_bytes: bytes, reads: list[int], share: float
) -> None:
    path = put(place, journal_bytes, nocow=True)
    before, was = bearing(path), path.stat().st_ino
    done = stopped_when_written(path, share, reads.clear)
    assert how(done) == (Result.SKIPPED, Reason.INTERRUPTED)
    assert sum(reads) < share * len(journal_bytes) + 4 * PIECE_BYTES
    assert done.outcome.bytes_written <= share * len(journal_bytes) + PIECE_BYTES
    assert (bearing(path), path.stat().st_ino, done.after.inode) == (before, was, was)
    assert is_nocow(path)
    assert list(place.iterdir()) == [path]


def test_a_stop_while_a_compacted_archive_is_read_through_is_heard(
    place: Path, journal_bytes: bytes, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(place, journal_bytes)
    before = bearing(path)
    monkeypatch.setattr(inplace, "WORSE", 0)  # what it then does for any number of extents, it does for many
    done = stopped_when_written(path, 1, reads.clear)
    assert how(done) == (Result.SKIPPED, Reason.INTERRUPTED)
    assert sum(reads) < 2 * PIECE_BYTES
    assert bearing(path) == before


def test_a_stop_between_two_holes_is_heard(place: Path, journal_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(place, journal_bytes)
    os.truncate(path, 32 * MIB)
    os.utime(path, ns=(OLD_NS, OLD_NS + 1))
    for number in range(8):
        with_unwritten(path, (8 + 2 * number) * MIB, MIB)
    before, what = bearing(path), action(path)
    real, freed = writeback.free_zeros, []

    def free_zeros(fd: int, hole: int, offset: int, length: int) -> None:
        freed.append(offset)
        real(fd, hole, offset, length)

    monkeypatch.setattr(writeback, "free_zeros", free_zeros)
    done = do(what, stop=lambda: len(freed) == 2)
    assert how(done) == (Result.SKIPPED, Reason.INTERRUPTED)
    assert len(freed) == 2
    assert bearing(path) == before
