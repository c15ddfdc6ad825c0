# SPDX-License-Identifier: LGPL-2.1-or-later
"""What journalkeeper does while a disk writes down every write and flush, and what had to be on the disk when."""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from journalkeeper.engine import Engine
from journalkeeper.history.record import Record
from journalkeeper.model import MIB, Kind, Request, Result
from journalkeeper.model.waiting import Wait
from journalkeeper.probe import bed as lab
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests import hosts
from tests.btrfs.faults import before_each_call, let_go
from tests.btrfs.journals import NOW
from tests.hosts import MACHINE
from tests.journal_files import archive_name, count_entries, put
from tests.trust.cutdisk import recorded
from tests.trust.inside import rotated
from tests.trust.wholeness import CONFIG, STATE, Whole, adorn, allocate_ahead, whole

SIZE: Final = 512 * MIB
COMMIT: Final = "sync --file-system"
BTRFS_IOC_SYNC: Final = 0x9408
ACTIVE: Final = Request(active=True, now=True)
ARCHIVED: Final = Request(archived=True, now=True)
FIELD: Final = "LAB_NUMBER"
VOLUME: Final = ("uuid-a", 256)


@dataclass
class Marks:
    """What is known of a recording: lengths of its log, and what had to be on the disk from then on.

    `whole` are journal files by their path below the top, `entries` and `rows` are (length, count). `done` is how much
    of what was tried was carried out.
    """

    begun: int = 0
    ended: int = 0
    done: int = 0
    whole: dict[str, Whole] = field(default_factory=dict)
    entries: list[tuple[int, int]] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)


class Stage(NamedTuple):
    """Where a scenario takes place: the volume's root, and the log of its disk."""

    top: Path
    log: Path
    marks: Marks
    dice: random.Random

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.top / STATE

    def now(self) -> int:
        """How long the log is."""
        return self.log.stat().st_size

    def begin(self, *resting: Path) -> None:
        """Points begin here; these files are at rest and must stay what they are."""
        self.marks.whole = {os.fspath(path.relative_to(self.top)): whole(path) for path in resting}
        run("sync", "--file-system", self.top)
        self.marks.begun = self.now()

    def run(self, request: Request) -> None:
        """Have the engine do it."""
        engine = Engine(CONFIG, directories=(os.fspath(self.top),), state_directory=os.fspath(self.state))
        report = engine.run(request, on_progress=lambda _: None, stop=lambda: False)
        self.marks.done += sum(outcome.result is Result.DONE for outcome in report.outcomes)


@cache
def aged() -> bytes:
    """What is in a small archive that a journald wrote."""
    with lab.bed("SystemMaxFileSize=8M", "SystemMaxUse=64M", size="256M") as bed:
        bed.journald.age(10)
        return bed.journald.rotate().read_bytes()


def archives(stage: Stage) -> None:
    """Datacow archives with space that journald allocated and never wrote, compacted where they are."""
    (stage.top / MACHINE).mkdir()
    paths = [put(stage.top / MACHINE, aged(), archive_name(number)) for number in range(3)]
    for path in paths:
        allocate_ahead(path)
        adorn(path)
    stage.begin(*paths)
    with stage.dice.choice((commits, commits_between))(stage):
        stage.run(NOW)


def rewrites(stage: Stage) -> None:
    """NOCOW archives, each copied to a datacow file that takes its place."""
    (stage.top / MACHINE).mkdir()
    paths = [put(stage.top / MACHINE, aged(), archive_name(number), nocow=True) for number in range(3)]
    for path in paths:
        adorn(path)
    stage.begin(*paths)
    with stage.dice.choice((commits, commits_between))(stage):
        stage.run(NOW)


def ranges(stage: Stage) -> None:
    """Ranges of the file that a journald writes and syncs at the same time."""
    with PrivateJournald(stage.top, settings=("SystemMaxFileSize=64M", "SystemMaxUse=256M")) as journald:
        journald.age(30)
        stage.begin()
        ending = threading.Event()
        with ThreadPoolExecutor(1) as pool, commits(stage):
            logging = pool.submit(_log_until, ending, journald, stage)
            try:
                for _ in range(4):
                    stage.run(ACTIVE)
            finally:
                ending.set()
            logging.result()


def rotation(stage: Stage) -> None:
    """A journald is made to rotate, and what it archived is compacted, several times; NOCOW files among them."""
    with PrivateJournald(stage.top, settings=("SystemMaxFileSize=64M", "SystemMaxUse=256M")) as journald:
        journald.age(2)
        stage.begin()
        count = 0
        with commits(stage):
            for nocow in (False, False, True, True):
                run("chattr", "+C" if nocow else "-C", journald.journal)
                for _ in range(4):
                    count = _log(journald, stage, count)
                rotated(journald)
                stage.marks.done += 1
                stage.run(ARCHIVED)


def records(stage: Stage) -> None:
    """The record of many runs."""
    with Record(stage.state) as record:
        rows = 0
        for _ in range(5):
            rows = _keep(record, stage, rows, 1)
        stage.begin()
        with commits(stage):
            for number in range(2, 14):
                now_us = time.time_ns() // 1000
                run_id = record.begin_run(now_us, "defrag")
                rows = _keep(record, stage, _keep(record, stage, rows, run_id), run_id)
                record.observe(now_us, hosts.host(hosts.file(Kind.ACTIVE)))
                record.wait([Wait(f"/j/{number}.journal", now_us, "pressure")], now_us=now_us)
                record.end_run(run_id, now_us)
                stage.marks.done += 1
                record.prune(now_us, 365 * 86400 * 10**6)


TAKEN_S: Final = 60.0

SCENARIOS: Final[dict[str, Callable[[Stage], None]]] = {
    one.__name__: one for one in (archives, rewrites, ranges, rotation, records)
}


def _keep(record: Record, stage: Stage, rows: int, run_id: int) -> int:
    outcome = hosts.outcome(f"/j/{'a' * stage.dice.randrange(1, 2000)}.journal")
    record.outcome(run_id, VOLUME, hosts.done(rows, outcome), time.time_ns() // 1000)
    stage.marks.rows.append((stage.now(), rows + 1))
    return rows + 1


def _log_until(ending: threading.Event, journald: PrivateJournald, stage: Stage) -> None:
    count = 0
    while not ending.is_set():
        count = _log(journald, stage, count)


def _log(journald: PrivateJournald, stage: Stage, count: int) -> int:
    """Have more than `count` entries in the journal, and synced; how many there are."""
    before = count_entries(journald.active)
    for number in range(count + 1, count + 41):
        journald.log(f"entry {number} {stage.dice.randbytes(20).hex()}", **{FIELD: f"{number}"})
    # its queue has room for 512: a sync before it has taken them in would be one of nothing
    deadline = time.monotonic() + TAKEN_S
    while count_entries(journald.active) < before + 40:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    journald.sync()
    stage.marks.entries.append((stage.now(), count + 40))
    return count + 40


@contextmanager
def commits_between(stage: Stage) -> Iterator[None]:
    """Have the volume commit before each call that changes something, in this process: each state becomes durable."""
    top = os.open(stage.top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def commit() -> None:
        fcntl.ioctl(top, BTRFS_IOC_SYNC)

    try:
        with pytest.MonkeyPatch.context() as patch:
            before_each_call(patch, commit)
            yield
    finally:
        os.close(top)


@contextmanager
def commits(stage: Stage) -> Iterator[None]:
    """Have the volume commit again and again meanwhile, as other programs on it do: at any moment of the work."""
    pause = stage.dice.choice(("0", "0.005", "0.05"))
    script = f'while {COMMIT} "$1"; do sleep {pause}; done'
    with subprocess.Popen(["sh", "-c", script, "commits", stage.top]) as process:
        try:
            yield
        finally:
            process.terminate()


def record(scenario: str, seed: str, base: Path) -> Path:
    """Let a scenario take place on a fresh disk below `base`; the log, beside which its marks are."""
    aged()  # not while the disk is recorded
    base.mkdir()
    image, log, marks = base / "disk0.img", base / "log", Marks()
    image.touch()
    os.truncate(image, SIZE)
    with recorded(image, log):
        run("mkfs.btrfs", "-q", "--nodiscard", image)
        with ScratchVolume(images=[image], options="noatime,nodiscard,commit=1") as volume:
            SCENARIOS[scenario](Stage(volume.mountpoint, log, marks, random.Random(seed)))  # noqa: S311 - repeatable
            let_go(volume)
        marks.ended = log.stat().st_size
    if not marks.done:
        raise RuntimeError(f"{scenario}: nothing was done")
    image.unlink()
    (base / "marks").write_bytes(pickle.dumps(vars(marks)))
    return log
