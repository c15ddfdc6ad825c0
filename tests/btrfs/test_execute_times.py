# SPDX-License-Identifier: LGPL-2.1-or-later
"""The note of version 0.1 about a moved mtime is honoured, and nothing that resembles it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.engine import Engine
from journalkeeper.execute.runner import remove_leftovers
from journalkeeper.model import Result
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.btrfs.faults import leftovers_beside
from tests.btrfs.journals import ALWAYS, NOW, allocate_ahead, append, go, look, touch
from tests.hosts import MACHINE
from tests.journal_files import OLD_NS, put

pytestmark = pytest.mark.root

NOTE = "user.journalkeeper.mtime"


def killed_while_its_mtime_was_moved(path: Path) -> None:
    """Leave what a killed run of version 0.1 left."""
    os.setxattr(path, "user.crtime_usec", b"12345678")
    os.setxattr(path, NOTE, b"%d %d %d" % (OLD_NS + 1, path.stat().st_size, time.time_ns()))
    os.utime(path)


def test_a_run_that_finds_a_note_does_its_work_in_the_same_turn(
    make_volume: Callable[..., ScratchVolume], journal_bytes: bytes, make_engine: Callable[..., Engine]
) -> None:
    top = make_volume("256M").mountpoint
    (top / MACHINE).mkdir()
    path = put(top / MACHINE, journal_bytes)
    allocate_ahead(path)
    killed_while_its_mtime_was_moved(path)
    assert look(path)[0].mtime_ns == OLD_NS + 1
    engine = make_engine(top, config=ALWAYS)
    engine.look_and_plan(NOW)
    assert NOTE in os.listxattr(path)  # a plan changes nothing
    report = go(engine)
    assert report.notices == (f"{path}: modification time restored after a killed run",)
    assert [outcome.result for outcome in report.outcomes] == [Result.DONE]
    assert path.stat().st_mtime_ns == OLD_NS + 1
    assert os.listxattr(path) == ["user.crtime_usec"]
    assert go(engine).notices == ()


def touched_a_day_later(path: Path) -> None:
    later_ns = time.time_ns() + 24 * 3600 * 10**9
    os.utime(path, ns=(OLD_NS, later_ns))


@pytest.mark.parametrize("change", [touch, touched_a_day_later, append], ids=lambda function: function.__name__)
def test_an_mtime_that_somebody_else_moved_since_stays(
    place: Path, journal_bytes: bytes, change: Callable[[Path], None]
) -> None:
    path = put(place, journal_bytes)
    allocate_ahead(path)
    killed_while_its_mtime_was_moved(path)
    change(path)
    mtime_ns = path.stat().st_mtime_ns
    assert look(path)[0].mtime_ns == mtime_ns
    said = remove_leftovers(leftovers_beside(path))
    assert said == [f"{path}: note of a killed run removed"]
    assert path.stat().st_mtime_ns == mtime_ns
    assert NOTE not in os.listxattr(path)


@pytest.mark.parametrize(
    "value",
    [b"", b"1", b"1 2", b"-1 -2 -3", b"9" * 60, b"9999999999999999999 %d %d", b"\xff\x00\n 1 2", b"1 2 3 4", b"1\n2 3"],
)
def test_a_note_of_somebody_elses_moves_nothing(place: Path, journal_bytes: bytes, value: bytes) -> None:
    """remote/ is not ours alone."""
    path = put(place, journal_bytes)
    os.utime(path)
    mtime_ns = path.stat().st_mtime_ns
    os.setxattr(path, NOTE, value % (len(journal_bytes), mtime_ns) if b"%" in value else value)
    assert look(path)[0].mtime_ns == mtime_ns
    assert remove_leftovers(leftovers_beside(path)) == [f"{path}: note of a killed run removed"]
    assert path.stat().st_mtime_ns == mtime_ns
    assert os.listxattr(path) == []
