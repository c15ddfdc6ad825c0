# SPDX-License-Identifier: LGPL-2.1-or-later
"""A look that is told what changed sees what a look at everything sees, and the same plan comes of it.

What changed is told by a real inotify watch. The run by hand is longer:

    sudo JOURNALKEEPER_RANDOM_CHANGES=10000 tests/run tests/btrfs/test_observe_incremental.py
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import select
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from journalkeeper.btrfs import fiemap
from journalkeeper.btrfs.volume import volume
from journalkeeper.config import Config
from journalkeeper.engine import DAEMON, Engine
from journalkeeper.journald import layout
from journalkeeper.model import Host, JournalFile, Past, Plan, Reason, Refusal, Request, Result, Skip, Verb
from journalkeeper.model.finished import FinishedFile
from journalkeeper.model.run import Report
from journalkeeper.model.units import DAY_US
from journalkeeper.observe import observer
from journalkeeper.observe.changes import Changes, Names
from journalkeeper.observe.incremental import IncrementalObserver
from journalkeeper.observe.observer import Observer, Seen
from journalkeeper.policy.plan import finished, plan
from journalkeeper.service import watch as watching
from journalkeeper.service.watch import Change, Watch
from tests.btrfs.journals import go
from tests.hosts import MACHINE
from tests.journal_files import ARCHIVED, EMPTY_BYTES, MAGIC, PAGE, archive_name, empty, put_empty, scatter

pytestmark = pytest.mark.root

CHANGES = int(os.environ.get("JOURNALKEEPER_RANDOM_CHANGES", "600"))
SEED = int(os.environ.get("JOURNALKEEPER_RANDOM_SEED", "1"))
FICLONE = 0x40049409
MINUTE_US = 60_000_000

REQUEST = Request(upkeep=True)
MakeEngine = Callable[..., Engine]


def settle(path: Path) -> None:
    """Have written data where it stays: between two looks it must not move by itself."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fiemap.survey(fd, sync=True, per_mib=False)
    finally:
        os.close(fd)


def make(path: Path, state: int = ARCHIVED) -> None:
    put_empty(path, state)
    settle(path)


class World:
    """A journal directory, what is recorded of it, its clock, and who looks at it in both ways."""

    def __init__(self, top: Path, seed: int) -> None:
        self.top = top
        self.random = random.Random(seed)  # noqa: S311 - which change comes next is no secret
        self.number = 0
        self.ahead_us = 0
        self.past: dict[int, Past] = {}
        self.changes = Changes()
        self.whole = Observer()
        self.looker = Observer()
        self.incremental = IncrementalObserver(self.looker)
        self.judged: list[str] = []
        self.judged_together: list[set[str]] = []
        self.left_out = 0
        self.config = Config.model_validate({"nocow": {"nocow": "no"}})
        for name in (MACHINE, "remote"):
            (top / name).mkdir()
        self.loop = asyncio.new_event_loop()
        self.watch = Watch([str(top)], self._changed)
        self.watch.attach(self.loop)
        self.watch.refresh()

    def close(self) -> None:
        self.watch.close()
        self.loop.close()

    def _changed(self, change: Change) -> None:
        """As the daemon takes it."""
        for directory, names in change.names.items():
            self.changes.add(directory, names)
        if change.everything:
            self.changes.everything()
            self.watch.refresh()

    # What happens to journals

    def directory(self) -> Path:
        return self.random.choice(sorted(path for path in self.top.iterdir() if path.is_dir()))

    def file(self, *patterns: str, most_names: int = 1) -> Path | None:
        """One of the files; of a change of one that has two names inotify tells by one of them only."""
        found = sorted(path for pattern in patterns or ("*.journal*",) for path in self.top.glob(f"*/{pattern}"))
        found = [path for path in found if path.stat().st_nlink <= most_names]
        return self.random.choice(found) if found else None

    def fresh(self, directory: Path | None = None) -> Path:
        self.number += 1
        return (directory or self.directory()) / archive_name(self.number)

    def create(self) -> None:
        make(self.fresh())

    def begin_active(self) -> None:
        name = self.random.choice(["system.journal", "user-1000.journal", "remote-host.journal"])
        path = self.directory() / name
        if not path.exists():
            make(path, self.random.choice([0, 1]))

    def append(self) -> None:
        path = self.file("system.journal", "user-*.journal", "remote-*.journal")
        if path is not None:
            with path.open("r+b") as file:
                os.pwrite(file.fileno(), empty(self.random.choice([0, 1]))[:17], 0)
                os.pwrite(file.fileno(), b"x" * PAGE, PAGE * self.random.randrange(1, 1000))
            settle(path)

    def archive(self) -> None:
        path = self.file("system.journal", "user-*.journal", "remote-*.journal")
        if path is not None:
            with path.open("r+b") as file:
                os.pwrite(file.fileno(), empty()[:17], 0)
            settle(path)
            path.rename(self.fresh(path.parent))

    def delete(self) -> None:
        path = self.file(most_names=9)
        if path is not None:
            inode = path.stat().st_ino
            path.unlink()
            self.tell_of_names(inode)

    def tear(self) -> None:
        """Many extents: an archive that is worth a rewrite."""
        path = self.file("*@*.journal")
        if path is not None:
            scatter(path, end_bytes=200 * PAGE)
            settle(path)

    def change_attribute(self) -> None:
        path = self.file()
        if path is not None:
            path.chmod(self.random.choice([0o600, 0o640]))

    def give_away(self) -> None:
        path = self.file("*@*.journal")
        if path is not None:
            os.chown(path, self.random.choice([0, 1000]), 0)

    def link(self) -> None:
        path = self.file("*@*.journal")
        if path is not None:
            os.link(path, self.fresh())
            self.tell_of_names(path.stat().st_ino)

    def tell_of_names(self, inode: int) -> None:
        """inotify tells nobody that a file has another name more or less, so the day's look at everything would."""
        for path in self.top.glob("*/*.journal*"):
            if path.stat().st_ino == inode:
                os.utime(path)

    def damage(self) -> None:
        path = self.file("*@*.journal")
        if path is not None:
            with path.open("r+b") as file:
                os.pwrite(file.fileno(), self.random.choice([MAGIC, b"no magic"]), 0)
            settle(path)

    def share(self) -> None:
        path, clone = self.file("*@*.journal"), self.fresh()
        if path is not None:
            with path.open("rb") as source, clone.open("wb") as target:
                fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
            settle(clone)

    def rewrite(self) -> None:
        """The record and the file as a rewrite leaves them."""
        path = self.file("*@*.journal")
        if path is not None:
            os.utime(path)
            status = path.stat()
            self.past[status.st_ino] = Past(Verb.COMPRESS, self.now_us(), status.st_size, status.st_mtime_ns, 1, 9, 1)

    def leave_behind(self) -> None:
        path = self.directory() / ".journalkeeper-7.tmp"
        if path.exists():
            path.unlink()
        else:
            path.touch()

    def other_name(self) -> None:
        (self.directory() / "notes").touch()

    def new_directory(self) -> None:
        self.number += 1
        directory = self.top / f"{MACHINE}.n{self.number}"
        directory.mkdir()
        for _ in range(self.random.randrange(3)):
            make(self.fresh(directory))

    def remove_directory(self) -> None:
        if len(list(self.top.iterdir())) > 2:
            shutil.rmtree(self.directory())

    def move_directory(self) -> None:
        self.number += 1
        self.directory().rename(self.top / f"{MACHINE}.n{self.number}")

    def go_on(self) -> None:
        self.ahead_us += self.random.choice([1_000_000, MINUTE_US, 60 * MINUTE_US])

    def set_clock(self) -> None:
        self.ahead_us += self.random.choice([DAY_US, -60 * MINUTE_US, -10_000_000])

    def step(self) -> None:
        """One random change; those that look at everything are rare."""
        often = [self.create, self.append, self.archive, self.delete, self.go_on, self.begin_active, self.rewrite]
        sometimes = [self.tear, self.change_attribute, self.give_away, self.link, self.damage, self.share]
        seldom = [self.leave_behind, self.other_name]
        rarely = [self.new_directory, self.remove_directory, self.move_directory, self.set_clock]
        weights = {8: often, 4: sometimes, 2: seldom, 1: rarely}
        doings = [(doing, weight) for weight, some in weights.items() for doing in some]
        (chosen,) = self.random.choices([one for one, _ in doings], [weight for _, weight in doings])
        chosen()

    # Who looks

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.ahead_us

    def told(self) -> None:
        """Until the watch has told all that happened: an event is in the queue before the call that made it returns."""
        while self.watch._timer is not None or select.select([self.watch.fd], [], [], 0)[0]:
            self.loop.run_until_complete(asyncio.sleep(watching.COALESCE_S))

    def looked(self, changed: Names | None = None) -> tuple[int, int]:
        """How many files a look has judged, and how many it did without."""
        seen = self.look(self.now_us(), changed)
        files = len(seen.files) + len(seen.finished)
        return len(self.judged), files - len(self.judged)

    def look(self, now_us: int, changed: Names | None) -> Seen:
        """What the incremental look sees; `judged` are then the files that it asked about, `judged_together` has the
        directories of each question."""
        self.judged, self.judged_together = [], []

        def judge(seen: Seen) -> list[FinishedFile]:
            self.judged += [file.path for file in seen.files]
            self.judged_together.append({file.directory for file in seen.files})
            return finished(self.host(seen, seen, now_us), REQUEST, self.config)

        return self.incremental.look([str(self.top)], now_us=now_us, changed=changed, judge=judge)

    def host(self, seen: Seen, like: Seen, now_us: int) -> Host:
        """With the space that was seen by another look a moment before."""
        past = {(file.device, file.inode): self.past[file.inode] for file in seen.files if file.inode in self.past}
        return Host(now_us, seen.files, like.instances, like.volumes, past, 0, finished=seen.finished)

    def compare(self) -> None:
        """Look and plan in both ways."""
        self.told()
        now_us = self.now_us()
        some = self.look(now_us, self.changes.take())
        whole = self.whole.look([str(self.top)], now_us=now_us)
        assert differences(files(some), files(whole)) == []
        assert sorted(some.leftovers) == sorted(whole.leftovers)
        assert [one.directory for one in some.instances] == [one.directory for one in whole.instances]
        hosts = (self.host(some, whole, now_us), self.host(whole, whole, now_us))
        by_some, by_whole = (plan(host, REQUEST, self.config) for host in hosts)
        assert by_some.windows == by_whole.windows
        assert by_some.actions == by_whole.actions
        assert skips(by_some, some.finished.values()) == skips(by_whole)
        self.left_out += len(some.finished.keys() - set(self.judged))


def files(seen: Seen) -> dict[str, JournalFile]:
    return {file.path: file for file in (*seen.files, *(one.file for one in seen.finished.values()))}


def differences(some: dict[str, JournalFile], whole: dict[str, JournalFile]) -> list[str]:
    """What is not the same, in words."""
    found = [f"{path}: in one of them only" for path in some.keys() ^ whole.keys()]
    for path in some.keys() & whole.keys():
        pairs = zip(JournalFile._fields, some[path], whole[path], strict=True)
        found += [f"{path}: {name}: {one} {other}" for name, one, other in pairs if one != other]
    return found


def skips(made: Plan, apart: object = ()) -> list[Skip]:
    known = [one.skip for one in apart if isinstance(one, FinishedFile)] if isinstance(apart, Iterable) else []
    return sorted((*made.skipped, *known), key=lambda skip: (skip.path, skip.reason))


@pytest.fixture
def world(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(watching, "COALESCE_S", 0.002)
    made = World(place, SEED)
    yield made
    made.close()


def test_what_is_told_and_what_is_looked_at_agree_after_random_changes(world: World) -> None:
    for _ in range(CHANGES):
        world.step()
        if world.random.random() < 0.2:
            world.compare()
    world.compare()
    assert world.left_out > CHANGES, "or nothing was compared"


# where it is not sure


@pytest.fixture
def quiet(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world of four finished archives, of which one is shared with a file elsewhere."""
    for _ in range(4):
        world.create()
    shared = world.file()
    assert shared is not None
    with shared.open("rb") as source, (world.top.parent / f"clone-{world.top.name}").open("wb") as target:
        fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
    world.ahead_us = 60 * MINUTE_US
    world.compare()
    world.compare()
    assert world.looked() == (0, 4)
    return world


def test_nothing_is_looked_at_where_nothing_changed(quiet: World) -> None:
    opened = quiet.looker.opened
    assert quiet.looked({}) == (0, 4)
    assert quiet.looker.opened == opened


def test_the_name_that_changed_is_looked_at(quiet: World) -> None:
    path = quiet.file()
    assert path is not None
    assert quiet.looked({str(path.parent): frozenset({path.name, "system.journal"})}) == (1, 3)


def test_a_file_that_is_not_finished_is_looked_at_each_time(quiet: World) -> None:
    quiet.begin_active()
    quiet.told()
    assert quiet.looked(quiet.changes.take()) == (1, 4)
    assert quiet.looked({}) == (1, 4)


def test_where_the_names_are_not_known_every_file_is_asked_whether_it_changed(quiet: World) -> None:
    path = quiet.file()
    assert path is not None
    path.chmod(0o600)
    assert quiet.looked({}) == (0, 4)
    assert quiet.looked(None) == (1, 3)


def test_a_look_that_failed_is_followed_by_one_at_everything_anew(quiet: World) -> None:
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(quiet.looker, "look_into", lambda *_, **__: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            quiet.looked({})
    assert quiet.looked({}) == (4, 0)


def test_what_is_shared_is_opened_once_a_day_by_a_look_at_everything(quiet: World) -> None:
    opened = quiet.looker.opened
    quiet.ahead_us += DAY_US
    assert quiet.looked({}) == (1, 3)
    assert quiet.looker.opened == opened + 1


def test_after_the_clock_was_set_back_every_file_is_judged_anew(quiet: World) -> None:
    quiet.ahead_us -= MINUTE_US
    assert quiet.looked({}) == (4, 0)


def test_after_the_record_was_lost_every_file_is_judged_anew(quiet: World) -> None:
    quiet.incremental.judge_anew()
    assert quiet.looked({}) == (4, 0)


def test_files_of_one_directory_are_judged_at_a_time(quiet: World) -> None:
    paths = list(quiet.top.glob("*/*.journal"))
    for number, path in enumerate(paths):
        path.rename(quiet.top / ("remote" if number % 2 else MACHINE) / path.name)
    quiet.incremental.judge_anew()
    assert quiet.looked() == (4, 0)
    assert sorted(map(tuple, quiet.judged_together)) == [(f"{quiet.top}/{MACHINE}",), (f"{quiet.top}/remote",)]


def test_a_directory_that_comes_has_no_other_judged_anew(quiet: World) -> None:
    directory = quiet.top / f"{MACHINE}.late"
    directory.mkdir()
    make(quiet.fresh(directory))
    quiet.told()
    assert quiet.looked(quiet.changes.take()) == (1, 4)


def test_on_a_volume_with_other_options_every_file_is_judged_anew(
    quiet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "volume", lambda fd: volume(fd)._replace(options=("ro",)))
    assert quiet.looked({}) == (4, 0)
    assert quiet.looked() == (4, 0), "as none is finished while it cannot be written"


@pytest.mark.parametrize(("most", "too_many"), [(4, []), (3, [Reason.TOO_MANY])])
def test_more_files_than_are_looked_at_are_found(
    quiet: World, monkeypatch: pytest.MonkeyPatch, most: int, too_many: list[Reason]
) -> None:
    """A directory of too many is looked at as a whole each time."""
    for path in list(quiet.top.glob("*/*.journal")):
        path.rename(quiet.top / "remote" / path.name)
    quiet.compare()
    quiet.compare()
    monkeypatch.setattr(layout, "MOST_FILES", most)
    for _ in range(2):
        quiet.compare()
        seen = quiet.look(quiet.now_us(), {})
        assert [file.problem for file in seen.files if file.problem] == too_many
        quiet.delete()
        quiet.create()
        quiet.compare()


# a run


def test_a_run_of_the_service_leaves_finished_files_out_and_a_plan_has_them(top: Path, make_engine: MakeEngine) -> None:
    for number in range(3):
        make(top / MACHINE / archive_name(number))
    time.sleep(1.1)  # what changed within a second is opened again
    config = Config.model_validate({"watch": {"settle_us": 0, "nocow_settle_us": 0}, "nocow": {"nocow": "no"}})
    engine = make_engine(top, config=config)

    def run() -> Report:
        return go(engine, REQUEST, origin=DAEMON)

    began_us, due_us = time.time_ns() // 1000, []
    for _ in range(2):
        report = run()
        assert report.host is not None
        due_us.append(engine.next_whole_look_us() - DAY_US)
        assert (report.host.files, len(report.host.finished), report.plan.skipped) == ((), 3, ())
        assert engine.status(report.host, report.plan, ()).files == 3
    assert engine._observer.opened == 3
    assert began_us <= due_us[0] == due_us[1], "the second run did not look at everything"
    assert [skip.reason for skip in engine.plan(REQUEST).skipped] == [Reason.IDEAL] * 3
    (top / MACHINE / archive_name(3)).write_bytes(b"no journal")
    engine.changes.add(str(top / MACHINE), [archive_name(3)])
    assert [skip.reason for skip in run().plan.skipped] == [Reason.BAD_HEADER]


def test_what_another_process_rewrote_is_looked_at_again(top: Path, tmp_path: Path, make_engine: MakeEngine) -> None:
    """`journalkeeper defrag -D` beside the service: neither inotify nor stat tells of it, the record does."""
    path = top / MACHINE / archive_name(1)
    path.write_bytes(empty() + b"".join(os.urandom(2048) + bytes(2048) for _ in range(EMPTY_BYTES // PAGE - 1)))
    settle(path)
    time.sleep(1.1)  # as above
    config = Config.model_validate(
        {"watch": {"settle_us": 0}, "nocow": {"nocow": "no"}, "defrag": {"compress": "no", "min_extents": 1000}}
    )
    service, beside = (make_engine(top, config=config) for _ in range(2))

    def known() -> tuple[Reason, bool]:
        host = go(service, REQUEST, origin=DAEMON).host
        assert host is not None
        return host.finished[str(path)].skip.reason, host.finished[str(path)].file.compressed

    assert known() == (Reason.IDEAL, False)
    service.changes.take()
    assert [one.result for one in go(beside, Request(compress="zstd:3")).outcomes] == [Result.DONE]
    assert known() == (Reason.RECORDED, True)
    opened = service._observer.opened
    assert known() == (Reason.RECORDED, True)
    assert service._observer.opened == opened, "once"
    # A job begins a new record where that was removed.
    (tmp_path / "state" / "history.db").unlink()
    go(service, Request(), origin="bus")
    assert known()[0] is not Reason.RECORDED


@pytest.mark.parametrize("follows", [False, True])
def test_who_asks_about_one_file_has_no_other_tried_sooner(
    top: Path, make_engine: MakeEngine, *, follows: bool
) -> None:
    """What failed is tried again after an hour, whatever anybody asks for meanwhile, and forgotten with its file."""
    failed, other = (top / MACHINE / archive_name(number) for number in range(2))
    make(failed)
    make(other)
    engine = make_engine(top, follows=follows)
    status = failed.stat()
    key = status.st_dev, status.st_ino
    engine._refused[key] = Refusal(time.time_ns() // 1000, 0, 0, Reason.IO_ERROR, "")

    def asked(request: Request, origin: str = "bus") -> bool:
        """Whether it is still known after a plan and a run."""
        engine.plan(request)
        go(engine, request, origin=origin, stop=lambda: True)
        return key in engine._refused

    assert asked(Request(paths=(str(other),)))
    assert asked(Request())
    assert asked(REQUEST, DAEMON)
    failed.unlink()
    assert not asked(Request())
