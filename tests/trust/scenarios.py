# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work of journalkeeper while a disk records every write and flush, and what had to be on the disk when."""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from journalkeeper.engine import Engine
from journalkeeper.history.store import Record
from journalkeeper.model import MIB, Request, Result
from journalkeeper.probe.bed import PrivateJournald, bed
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests import hosts
from tests.btrfs.faults import before_each_call, let_go
from tests.btrfs.journals import NOW, Bearing, allocate_ahead, go
from tests.hosts import MACHINE
from tests.journal_files import archive_name, count_entries, put
from tests.patience import eventually
from tests.repeat import repeat
from tests.slowdisk import served
from tests.trust.wholeness import CONFIG, STATE, adorn, whole

SIZE: Final = 512 * MIB
BTRFS_IOC_SYNC: Final = 0x9408
ACTIVE: Final = Request(active=True, now=True)
ARCHIVED: Final = Request(archived=True, now=True)
SETTINGS: Final = ("SystemMaxFileSize=64M", "SystemMaxUse=256M")
FIELD: Final = "LAB_NUMBER"
VOLUME: Final = ("uuid-a", 256)
BATCH: Final = 40


@dataclass
class Marks:
    """Lengths of the log of a recording, and what had to be on the disk from then on.

    `whole` are journal files by their path below the top, `entries` and `rows` are (length, count). `done` counts the
    pieces of work that were done.
    """

    begun: int = 0
    ended: int = 0
    done: int = 0
    whole: dict[str, Bearing] = field(default_factory=dict)
    entries: list[tuple[int, int]] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)


class Stage(NamedTuple):
    """The place of a scenario: the volume's root, and the log of its disk."""

    top: Path
    log: Path
    marks: Marks
    dice: random.Random

    def now(self) -> int:
        """Return the length of the log."""
        return self.log.stat().st_size

    def begin(self, *resting: Path) -> None:
        """Let points begin here, with these files, which must stay what they are."""
        self.marks.whole = {os.fspath(path.relative_to(self.top)): whole(path) for path in resting}
        run("sync", "--file-system", self.top)
        self.marks.begun = self.now()

    def run(self, request: Request) -> None:
        """Let the engine carry out a request."""
        state = os.fspath(self.top / STATE)
        report = go(Engine(CONFIG, directories=(os.fspath(self.top),), state_directory=state), request)
        self.marks.done += sum(outcome.result is Result.DONE for outcome in report.outcomes)


@cache
def make_archive(size: str = "512K", flushes: int = 4) -> bytes:
    """Return the content of an archive of at most this size that a journald wrote."""
    with bed(f"SystemMaxFileSize={size}", "SystemMaxUse=64M", size="256M") as place:
        place.journald.age(flushes)
        return place.journald.rotate().read_bytes()


def rewrite_archives(stage: Stage, *, nocow: bool) -> None:
    """Compact datacow archives in place, in which space is allocated and not written; or copy NOCOW archives."""
    (stage.top / MACHINE).mkdir()
    content = make_archive("8M", 10)
    paths = [put(stage.top / MACHINE, content, archive_name(number), nocow=nocow) for number in range(3)]
    for path in paths:
        if not nocow:
            allocate_ahead(path)
        adorn(path)
    stage.begin(*paths)
    with stage.dice.choice((commit_repeatedly, commit_between))(stage):
        stage.run(NOW)


def rewrite_ranges(stage: Stage) -> None:
    """Rewrite ranges of the file that a journald writes and syncs at the same time."""
    with PrivateJournald(stage.top, settings=SETTINGS) as journald:
        journald.age(30)
        stage.begin()
        with commit_repeatedly(stage), repeat(partial(_log, journald, stage), lambda: 0.0):
            for _ in range(4):
                stage.run(ACTIVE)


def compact_after_rotations(stage: Stage) -> None:
    """Compact the archives of a journald that rotates several times; some of them are NOCOW."""
    with PrivateJournald(stage.top, settings=SETTINGS) as journald:
        journald.age(2)
        stage.begin()
        with commit_repeatedly(stage):
            for nocow in (False, False, True, True):
                run("chattr", "+C" if nocow else "-C", journald.journal)
                for _ in range(4):
                    _log(journald, stage)
                journald.rotate()
                stage.run(ARCHIVED)


def record_runs(stage: Stage) -> None:
    """Record many runs in the history."""
    with Record(stage.top / STATE) as record:
        _record(record, stage, 1)
        stage.begin()
        with commit_repeatedly(stage):
            for _ in range(12):
                now_us = time.time_ns() // 1000
                run_id = record.begin_run(now_us, "defrag")
                _record(record, stage, run_id)
                _record(record, stage, run_id)
                record.end_run(run_id, now_us)
                stage.marks.done += 1
                record.prune(now_us, 365 * 86400 * 10**6)


SCENARIOS: Final[dict[str, Callable[[Stage], None]]] = {
    "archives": partial(rewrite_archives, nocow=False),
    "rewrites": partial(rewrite_archives, nocow=True),
    "ranges": rewrite_ranges,
    "rotation": compact_after_rotations,
    "records": record_runs,
}


def _record(record: Record, stage: Stage, run_id: int) -> None:
    """Record an outcome. Its row must be there from now on."""
    rows = len(stage.marks.rows)
    outcome = hosts.outcome(f"/j/{'a' * stage.dice.randrange(1, 2000)}.journal")
    record.insert_outcome(run_id, VOLUME, hosts.done(rows, outcome), time.time_ns() // 1000)
    stage.marks.rows.append((stage.now(), rows + 1))


def _log(journald: PrivateJournald, stage: Stage) -> None:
    """Log a batch of numbered entries, and have journald sync them."""
    count = BATCH * len(stage.marks.entries)
    before = count_entries(journald.active)
    for number in range(count + 1, count + BATCH + 1):
        journald.log(f"entry {number} {stage.dice.randbytes(20).hex()}", **{FIELD: f"{number}"})
    # A sync before journald has taken the entries from its socket would not be one of these entries.
    assert eventually(lambda: count_entries(journald.active) >= before + BATCH, pause_s=0.002)
    journald.sync()
    stage.marks.entries.append((stage.now(), count + BATCH))


@contextmanager
def commit_between(stage: Stage) -> Iterator[None]:
    """Commit the volume before each call that changes something in this process: each state becomes durable."""
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
def commit_repeatedly(stage: Stage) -> Iterator[None]:
    """Commit the volume again and again during the block, as other programs on it do, at any moment of the work."""
    script = f'while sync --file-system "$1"; do sleep {stage.dice.choice(("0", "0.005", "0.05"))}; done'
    with subprocess.Popen(["sh", "-c", script, "commits", stage.top]) as process:
        try:
            yield
        finally:
            process.terminate()


def record(scenario: str, seed: str, base: Path) -> None:
    """Let a scenario take place on a new disk below `base`, which gets its log and its marks."""
    make_archive("8M", 10)  # before the disk is recorded
    base.mkdir()
    image, log, marks = base / "disk0.img", base / "log", Marks()
    image.touch()
    os.truncate(image, SIZE)
    with served("tests.trust.cutdisk", image, os.fspath(log)):
        run("mkfs.btrfs", "-q", "--nodiscard", image)
        with ScratchVolume(images=[image], options="noatime,nodiscard,commit=1") as volume:
            SCENARIOS[scenario](Stage(volume.mountpoint, log, marks, random.Random(seed)))  # noqa: S311 - repeatable
            let_go(volume)
        marks.ended = log.stat().st_size
    if not marks.done:
        raise RuntimeError(f"{scenario}: no work was done")
    image.unlink()
    (base / "marks").write_bytes(pickle.dumps(vars(marks)))
