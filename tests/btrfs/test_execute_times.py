# SPDX-License-Identifier: LGPL-2.1-or-later
"""No kill or power cut leaves another mtime, and the note of version 0.1 about a moved one is honoured."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from journalkeeper.engine import Engine
from journalkeeper.execute.runner import remove_leftovers
from journalkeeper.model import MIB, Result
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.btrfs.faults import images_before_each_call, killed_before, leftovers_beside, let_go
from tests.btrfs.journals import ALWAYS, NOW, action, append, bearing, do, go, look, touch, with_unwritten
from tests.hosts import MACHINE
from tests.journal_files import OLD_NS, put

pytestmark = pytest.mark.root

NOTE = "user.journalkeeper.mtime"


def allocated_ahead(directory: Path, journal_bytes: bytes) -> Path:
    """An archive with space that journald allocated and never wrote, at two places."""
    path = put(directory, journal_bytes)
    os.truncate(path, len(journal_bytes) + 16 * MIB)
    os.utime(path, ns=(OLD_NS, OLD_NS + 1))
    with_unwritten(path, 8 * MIB, MIB)
    with_unwritten(path, 16 * MIB, MIB)
    return path


def killed_while_its_mtime_was_moved(path: Path) -> None:
    """Leave what a killed run of version 0.1 left."""
    os.setxattr(path, "user.crtime_usec", b"12345678")
    os.setxattr(path, NOTE, b"%d %d %d" % (OLD_NS + 1, path.stat().st_size, time.time_ns()))
    os.utime(path)


def test_killed_at_any_call_the_mtime_has_not_moved(place: Path, journal_bytes: bytes) -> None:
    number = 0
    killed = True
    while killed and number < 24:
        path = allocated_ahead(place, journal_bytes)
        before, what = bearing(path), action(path)
        killed = killed_before(number, partial(do, what))
        assert bearing(path) == before
        assert remove_leftovers(leftovers_beside(path)) == []
        path.unlink()
        number += 1
    assert number > 2


def test_after_a_power_cut_the_mtime_has_not_moved(
    make_volume: Callable[..., ScratchVolume], journal_bytes: bytes, tmp_path: Path
) -> None:
    """The volume is committed before each call, and the image copied: that is the worst moment for it."""
    volume = make_volume("256M")
    path = allocated_ahead(volume.mountpoint, journal_bytes)
    before, what = bearing(path), action(path)
    with images_before_each_call(volume, tmp_path, sync=True, most=12) as images:
        assert do(what).outcome.result is Result.DONE
    let_go(volume)
    assert images
    for image in images:
        shutil.copyfile(image, volume.images[0])
        volume.mount()
        assert bearing(path) == before
        let_go(volume)
    volume.mount()


def test_a_run_that_finds_a_note_does_its_work_in_the_same_turn(
    make_volume: Callable[..., ScratchVolume], journal_bytes: bytes, make_engine: Callable[..., Engine]
) -> None:
    top = make_volume("256M").mountpoint
    (top / MACHINE).mkdir()
    path = allocated_ahead(top / MACHINE, journal_bytes)
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
    path = allocated_ahead(place, journal_bytes)
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
