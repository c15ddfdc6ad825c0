# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the watch wakes for, and what it does not, on directories that come, go and move."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from unittest.mock import Mock

import pytest

from journalkeeper.btrfs.volume import find_mount_lines
from journalkeeper.journald import layout
from journalkeeper.probe.scratch_volume import run
from journalkeeper.service import watch
from journalkeeper.service.watch import (
    COALESCE_S,
    NOTHING,
    READ_BYTES,
    Change,
    DirectoryWatch,
    identify_tops,
    watch_directories,
)
from tests.hosts import MACHINE

Watching = Callable[..., "Scene"]
ARCHIVE = f"system@{MACHINE}-0000000000000001-0000000000000001.journal"
SMALLEST_EVENT = 16
QUEUE = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


class Scene:
    """A watch in a loop of its own, renewed after each change of directories as the daemon does it."""

    def __init__(self, *tops: Path | str) -> None:
        self.loop = asyncio.new_event_loop()
        self.changes: list[Change] = []
        self.calm_s = COALESCE_S * 1.5
        self._tops = tuple(map(str, tops))
        self.watch = self.loop.run_until_complete(self._make())
        self._following = self.loop.create_task(self._follow())
        self.renew()

    async def _make(self) -> DirectoryWatch:
        return DirectoryWatch()

    async def _follow(self) -> None:
        while True:
            self.changes.append(await self.watch.wait())

    def renew(self) -> None:
        self.watch.use(watch_directories(self._tops))

    def watches(self, path: Path) -> bool:
        """Whether the kernel watches the directory at `path`."""
        return f" ino:{path.stat().st_ino:x} " in self._fdinfo()

    def count(self) -> int:
        """The number of watches in the kernel."""
        return self._fdinfo().count("inotify wd:")

    def _fdinfo(self) -> str:
        return Path(f"/proc/self/fdinfo/{self.watch.watches.fd}").read_text()

    def close(self) -> None:
        self._following.cancel()
        self.loop.run_until_complete(asyncio.wait([self._following]))
        self.watch.close()
        self.loop.close()

    def after(self, *doings: Callable[[], object]) -> Change:
        """What was told after the `doings`."""
        self.changes.clear()
        for doing in doings:
            doing()
        seen = 0
        while True:
            self.loop.run_until_complete(asyncio.sleep(self.calm_s))
            if len(self.changes) == seen and not self.watch._woken.is_set():
                break
            if any(change.rescan for change in self.changes[seen:]):
                self.renew()
            seen = len(self.changes)
        return reduce(Change.__or__, self.changes, NOTHING)


@pytest.fixture
def watching() -> Iterator[Watching]:
    scenes: list[Scene] = []

    def make(*tops: Path | str) -> Scene:
        scenes.append(Scene(*tops))
        return scenes[-1]

    yield make
    for made in scenes:
        made.close()


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A journal directory with one instance and its active file."""
    instance = tmp_path / "journal" / MACHINE
    instance.mkdir(parents=True)
    (instance / "system.journal").write_bytes(b"journal")
    return tmp_path / "journal"


@pytest.fixture
def scene(top: Path, watching: Watching) -> Scene:
    """A watch on it."""
    return watching(top)


def append(path: Path | bytes) -> None:
    """What journald does to be heard: a truncation to the same size."""
    os.truncate(path, os.stat(path).st_size)


# appends


def test_a_directory_that_becomes_an_instance_is_watched_as_one(tmp_path: Path, watching: Watching) -> None:
    top = os.fsdecode(os.fsencode(tmp_path) + b"/j\xff")
    os.mkdir(top)
    scene, active = watching(top), Path(top, "system.journal")
    assert scene.after(active.touch).renamed
    assert scene.after(lambda: append(active)).appended == {top}


# when a look is due


ACTIVE = "system.journal"
OLD = "system@0000000000000001-0000000000000001.journal~"
STRANGE = "user-\udcff\udcfe.journal"


def add_and_append(instance: Path) -> None:
    (instance / ARCHIVE).touch()
    append(instance / ACTIVE)


DOINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "new": (lambda instance: (instance / ARCHIVE).touch(), "renamed"),
    "user": (lambda instance: (instance / "user-1000.journal").touch(), "renamed"),
    "not UTF-8": (lambda instance: (instance / STRANGE).touch(), "renamed"),
    "renamed": (lambda instance: (instance / ACTIVE).rename(instance / ARCHIVE), "renamed"),
    "removed": (lambda instance: (instance / ACTIVE).unlink(), "renamed"),
    "append": (lambda instance: append(instance / ACTIVE), "appended"),
    "new, then an append": (add_and_append, "renamed, appended"),
    "to an archive": (lambda instance: append(instance / OLD), ""),
    "to another": (lambda instance: append(instance / "other"), ""),
    "chmod": (lambda instance: (instance / ACTIVE).chmod(0o600), ""),
    "ours": (lambda instance: (instance / ".journalkeeper-1.tmp").touch(), ""),  # our work must not wake us
    "below": (lambda instance: (instance.parent / f"{MACHINE}.new").mkdir(), "rescan"),
    "moved": (lambda instance: instance.rename(instance.parent / f"{MACHINE}.new"), "rescan"),
}


@pytest.mark.parametrize("name", DOINGS)
def test_a_look_is_due_when_a_file_or_a_directory_comes_or_goes(top: Path, watching: Watching, name: str) -> None:
    for other in (OLD, "other"):
        (top / MACHINE / other).write_bytes(b"x")
    scene, (doing, expected) = watching(top), DOINGS[name]
    told = scene.after(lambda: doing(top / MACHINE))
    assert (told.renamed, told.rescan) == ("renamed" in expected, "rescan" in expected)
    assert told.appended == ({str(top / MACHINE)} if "appended" in expected else set())


# directories


@pytest.mark.parametrize("name", ["remote", f"{MACHINE}.web", MACHINE[::-1]])
def test_new_instances_are_watched_and_vanished_ones_dropped(top: Path, name: str, scene: Scene) -> None:
    instance = top / name
    assert scene.after(instance.mkdir).rescan
    assert scene.watches(instance)
    active = instance / "system.journal"
    assert scene.after(active.touch).renamed
    assert scene.after(lambda: append(active)).appended == {str(instance)}
    count = scene.count()
    assert scene.after(lambda: shutil.rmtree(instance)).rescan
    assert scene.count() == count - 1


def move_away_and_make_anew(top: Path) -> None:
    top.rename(top.with_name("old"))
    top.mkdir()


def lead_elsewhere(top: Path) -> None:
    top.rename(top.with_name("old"))
    top.symlink_to(top.with_name("old"))


TOPS: dict[str, tuple[Callable[[Path], object], bool]] = {
    "a file in it": (lambda top: (top / MACHINE / ARCHIVE).touch(), False),
    "a name beside it": (lambda top: top.with_name("other").mkdir(), False),
    "away": (lambda top: top.rename(top.with_name("old")), True),
    "anew": (move_away_and_make_anew, True),
    "a link": (lead_elsewhere, True),
}


@pytest.mark.parametrize("name", TOPS)
def test_another_directory_at_a_top_is_another_identity(top: Path, name: str) -> None:
    """No event reports what appears at the path of a top: /var/log is a busy directory."""
    doing, differs = TOPS[name]
    before = identify_tops((str(top),))
    doing(top)
    assert (identify_tops((str(top),)) != before) is differs


def test_a_top_that_is_moved_away_is_not_watched_any_more(top: Path, scene: Scene) -> None:
    old = top.with_name("old")
    assert scene.after(lambda: top.rename(old)).rescan
    assert not scene.watches(old)
    assert scene.after(lambda: append(old / MACHINE / "system.journal")) == NOTHING


def test_an_event_of_an_unknown_watch_is_a_rescan(scene: Scene) -> None:
    assert scene.watch._judge_event(-1, 0, b"") == Change(rescan=True)


def test_new_watches_leave_no_old_ones_behind(scene: Scene) -> None:
    gc.collect()  # or what an earlier test forgot is closed meanwhile
    kept, descriptors = scene.count(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        scene.renew()
    assert scene.count() == kept
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_an_instance_made_during_a_renewal_is_watched(top: Path, monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    """Listed before it was there, watched after: nobody would tell of it."""
    late = top / "remote"
    real = layout.find_directories

    def directories(where: str) -> list[layout.Directory]:
        found = real(where)
        late.mkdir(exist_ok=True)
        return found

    shutil.rmtree(top / MACHINE)
    monkeypatch.setattr(layout, "find_directories", directories)
    scene.renew()
    scene.after()
    assert scene.watches(late)


# mounts


def test_a_carriage_return_in_a_mount_point_ends_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can mount there by FUSE, and mountinfo has this character as it is."""
    ours = "30 1 0:25 / /var/log/journal rw - btrfs /dev/sda rw"
    (tmp_path / "mountinfo").write_bytes(f"{ours}\n31 1 0:26 / /tmp/a\rb\rc\\040d rw - fuse x rw\n".encode())
    monkeypatch.setattr("journalkeeper.btrfs.volume.MOUNTINFO", f"{tmp_path}/mountinfo")
    assert find_mount_lines(("/var/log/journal",)) == (ours,)


@pytest.mark.root
def test_an_instance_has_its_first_path_where_another_leads_to_it(tmp_path: Path, watching: Watching) -> None:
    """The kernel has one watch for a directory."""
    instance, second = tmp_path / "journal" / MACHINE, tmp_path / "second"
    for path in (instance, second):
        path.mkdir(parents=True)
    (instance / "system.journal").touch()
    run("mount", "--bind", instance, second)
    try:
        scene = watching(instance.parent, second)
        assert scene.after(lambda: append(instance / "system.journal")).appended == {str(instance)}
    finally:
        run("umount", "--lazy", second)


# bursts


def test_an_error_without_a_known_limit_has_no_advice_on_a_limit() -> None:
    for text, limit in (("Permission denied (EACCES)", "max_user_watches"), ("No space left (ENOSPC)", "none")):
        assert watch._explain_kernel_error(Exception(f"/Errno=1 Errno={text}"), limit) == text


def test_a_burst_is_read_whole_in_small_calls(top: Path, watching: Watching, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = watching(top, top.with_name("second"))
    scene.calm_s = 0.6
    calls = [0]
    listen, judge = scene.watch._listen, scene.watch._judge_event

    def count_call() -> None:
        calls.append(0)
        listen()

    def count_event(number: int, mask: int, name: bytes) -> Change:
        calls[-1] += 1
        return judge(number, mask, name)

    monkeypatch.setattr(scene.watch, "_listen", count_call)
    monkeypatch.setattr(scene.watch, "_judge_event", count_event)
    monkeypatch.setattr(scene, "renew", Mock())  # new watches would drop the events that are not read

    def burst() -> None:
        active, other = top / MACHINE / "system.journal", top / MACHINE / "user-1.journal"
        for _ in range(QUEUE // 4 + 500):  # two events of each rename
            active.rename(other)
            other.rename(active)

    seen = scene.after(burst)
    assert seen.rescan
    assert sum(calls) >= QUEUE
    assert max(calls) <= READ_BYTES // SMALLEST_EVENT
    assert str(top / MACHINE) in seen.appended, "an append may be among the lost events"
    assert scene.after(lambda: append(top / MACHINE / "system.journal")).appended == {str(top / MACHINE)}
