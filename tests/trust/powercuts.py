# SPDX-License-Identifier: LGPL-2.1-or-later
"""The power goes while journalkeeper works, at many moments, and the volume is mounted and put in order again.

    python -m tests.trust.powercuts [--points 500] [--seed N] [--only SCENARIO]
    python -m tests.trust.powercuts --seed N --replay K [--recording DIR]

Each scenario works on a disk that writes down every write and flush (cutdisk.py). A point is a moment of such a
recording, and what the disk had written of all that was not flushed by then: everything, or a random part. Point K
of a seed is always the same scenario and the same share of the recording's length; the recording itself differs
each time, so that of a point that failed is kept, and --recording names it.

Lost: the volume does not mount; a journal file that was at rest is gone or differs in anything (bytes, holes,
owner, mode, ACL, xattrs, flags; the modification time after the next run); an entry that journald had synced is
not found; the record does not open or lacks more than its last transaction. Left unclean: the next run fails with
a file, or leaves a temporary file or a note. Outage: how long the next run takes.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.cycle import Keeper
from journalkeeper.lab import bed as lab
from journalkeeper.lab.journald import PrivateJournald
from journalkeeper.lab.volume import PREFIX, ScratchVolume, run
from journalkeeper.model import MIB, Kind, Outcome, Reason, Request, Result, Verb
from journalkeeper.record import Record
from journalkeeper.waiting import Wait
from tests import hosts
from tests.btrfs.journals import NOW, Bearing, archive_name, bearing, let_go, put
from tests.trust.cutdisk import Recording, recorded
from tests.trust.inside import rotated
from tests.trust.tally import Tally
from tests.trust.wholeness import CONFIG, MACHINE, STATE, adorn, allocate_ahead, differences, next_run, record_troubles

SIZE: Final = 512 * MIB
COMMIT: Final = "sync --file-system"
ACTIVE: Final = Request(archived=False, now=True)
ARCHIVED: Final = Request(active=False, now=True)
POINTS_A_RECORDING: Final = 25
FIELD: Final = "LAB_NUMBER"
VOLUME: Final = ("uuid-a", 256)


@dataclass
class Marks:
    """What is known of a recording: lengths of its log, and what had to be on the disk from then on.

    `whole` are journal files by their path below the top, `entries` and `rows` are (length, count).
    """

    begun: int = 0
    ended: int = 0
    whole: dict[str, Bearing] = field(default_factory=dict)
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

    def begin(self, *whole: Path) -> None:
        """Points begin here; these files are at rest and must stay what they are."""
        self.marks.whole = {os.fspath(path.relative_to(self.top)): bearing(path) for path in whole}
        run("sync", "--file-system", self.top)
        self.marks.begun = self.now()

    def run(self, request: Request) -> None:
        """Have the engine do it."""
        keeper = Keeper(CONFIG, directories=(os.fspath(self.top),), state_directory=os.fspath(self.state))
        keeper.run(request, on_progress=lambda _: None, stop=lambda: False)


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
    with commits(stage):
        stage.run(NOW)


def rewrites(stage: Stage) -> None:
    """NOCOW archives, each copied to a datacow file that takes its place."""
    (stage.top / MACHINE).mkdir()
    paths = [put(stage.top / MACHINE, aged(), archive_name(number), nocow=True) for number in range(3)]
    for path in paths:
        adorn(path)
    stage.begin(*paths)
    with commits(stage):
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
                record.wait([Wait(f"/j/{number}.journal", now_us, "pressure")])
                record.end_run(run_id, now_us)
                record.prune(now_us, 365 * 86400 * 10**6)


SCENARIOS: Final[dict[str, Callable[[Stage], None]]] = {
    one.__name__: one for one in (archives, rewrites, ranges, rotation, records)
}


def _keep(record: Record, stage: Stage, rows: int, run_id: int) -> int:
    path = f"/j/{'a' * stage.dice.randrange(1, 2000)}.journal"
    outcome = Outcome(path, Verb.COMPRESS, Result.DONE, Reason.FRAGMENTED, 9, 1, 9, 1, 100, 1.0)
    record.outcome(run_id, VOLUME, rows, outcome, mtime_ns=1, size_bytes=1, when_us=time.time_ns() // 1000)
    stage.marks.rows.append((stage.now(), rows + 1))
    return rows + 1


def _log_until(ending: threading.Event, journald: PrivateJournald, stage: Stage) -> None:
    count = 0
    while not ending.is_set():
        count = _log(journald, stage, count)


def _log(journald: PrivateJournald, stage: Stage, count: int) -> int:
    """Have more than `count` entries in the journal, and synced; how many there are."""
    for number in range(count + 1, count + 41):
        journald.log(f"entry {number} {stage.dice.randbytes(20).hex()}", **{FIELD: f"{number}"})
    journald.sync()
    stage.marks.entries.append((stage.now(), count + 40))
    return count + 40


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
        with ScratchVolume(base=base, options="noatime,nodiscard,commit=1") as volume:
            SCENARIOS[scenario](Stage(volume.mountpoint, log, marks, random.Random(seed)))  # noqa: S311 - repeatable
            let_go(volume)
        marks.ended = log.stat().st_size
    image.unlink()
    (base / "marks").write_bytes(pickle.dumps(vars(marks)))
    return log


class Point(NamedTuple):
    """One power cut: the moment as a share of the recording, and whether some of what was not flushed is lost."""

    number: int
    scenario: str
    batch: int
    share: float
    torn: bool
    seed: str

    @property
    def recording(self) -> str:
        """The name of the recording that it is a moment of."""
        return f"{self.scenario}-{self.batch}"


def points(count: int, seed: int, names: Sequence[str]) -> list[Point]:
    """The points of a seed, those of one recording together."""
    found = []
    for number in range(count):
        own = f"{seed}:{number}"
        dice = random.Random(own)  # noqa: S311 - repeatable is the point
        turn = number // len(names)
        scenario = names[number % len(names)]
        found.append(Point(number, scenario, turn // POINTS_A_RECORDING, dice.random(), turn % 3 > 0, own))
    return sorted(found, key=lambda point: (point.recording, point.number))


class Replay:
    """A recording in `source`, its moments mounted below `base` one after the other."""

    def __init__(self, source: Path, base: Path) -> None:
        base.mkdir()
        self.cleaned = 0
        self.marks = Marks(**pickle.loads((source / "marks").read_bytes()))  # noqa: S301 - we have written it
        self._recording = Recording(source / "log", SIZE)
        self._image = base / "disk0.img"
        self._recording.cut(self._image, len(self._recording), None)
        self._volume = ScratchVolume(base=base, options="noatime,nodiscard")
        let_go(self._volume)

    def close(self) -> None:
        """Let go of everything."""
        self._volume.close()

    def examine(self, point: Point, tally: Tally) -> None:
        """Cut the power at `point`, mount, look, have the next run, look again."""
        first, last = (self._recording.number(length) for length in (self.marks.begun, self.marks.ended))
        at = first + round(point.share * (last - first))
        dice = random.Random(point.seed) if point.torn else None  # noqa: S311 - repeatable is the point
        self._recording.cut(self._image, at, dice)
        run("blockdev", "--flushbufs", self._volume.device)
        name = f"{point.number} ({point.recording}, entry {at} of {last}{', torn' if point.torn else ''})"
        try:
            self._volume.mount()
        except RuntimeError as error:
            tally.add(name, lost=[str(error)], unclean=[], outage_s=0)
            return
        try:
            self._look(name, at, tally)
        finally:
            let_go(self._volume)

    def _look(self, name: str, at: int, tally: Tally) -> None:
        top = self._volume.mountpoint
        lost = self._differences(top, finished=False)
        after = next_run(top, top / STATE)
        lost += self._differences(top, finished=True)
        lost += self._entries_lost(top, _count(self.marks.entries, at, self._recording))
        # the last transaction may be rolled back: SQLite's rollback journal may be there still
        rows = max(0, _count(self.marks.rows, at, self._recording) - 1)
        lost += record_troubles(top / STATE, rows)
        tally.add(name, lost=lost, unclean=after.failed + after.left, outage_s=after.took_s)
        self.cleaned += after.cleaned

    def _differences(self, top: Path, *, finished: bool) -> list[str]:
        rows = self.marks.whole.items()
        return [line for name, wanted in rows for line in differences(wanted, top / name, finished=finished)]

    def _entries_lost(self, top: Path, count: int) -> list[str]:
        """The entries that journald had synced and that a reader does not find."""
        if not count:
            return []
        text = run("journalctl", "--quiet", "--no-pager", "-D", top, "-o", "cat", f"--output-fields={FIELD}")
        found = {int(line) for line in text.split() if line.isdigit()}
        gone = sorted(set(range(1, count + 1)) - found)
        return [f"{len(gone)} of {count} entries, the first is {gone[0]}"] if gone else []


def _count(marks: list[tuple[int, int]], at: int, recording: Recording) -> int:
    """The last count that was marked at entry `at` or before."""
    return max((count for length, count in marks if recording.number(length) <= at), default=0)


def replay(chosen: Sequence[Point], tally: Tally, kept: Path | None) -> None:
    """Try these points, on the recordings below `kept`, or on new ones; those of points that fail stay below /tmp."""
    with ExitStack() as stack:
        parent = Path(tempfile.mkdtemp(prefix=PREFIX))
        stack.callback(shutil.rmtree, parent)
        for name in dict.fromkeys(point.recording for point in chosen):
            own = [point for point in chosen if point.recording == name]
            source = kept / name if kept is not None else parent / name
            if kept is None:
                record(own[0].scenario, f"{tally.seed}:{name}", source)
            before = len(tally.lost) + len(tally.unclean)
            examined = Replay(source, parent / f"{name}-replay")
            try:
                for point in own:
                    examined.examine(point, tally)
            finally:
                examined.close()
            sys.stderr.write(f"{name}: {len(own)} points, after {examined.cleaned} the next run cleaned up\n")
            if kept is None and len(tally.lost) + len(tally.unclean) > before:
                stays = Path(tempfile.mkdtemp(prefix="journalkeeper-powercuts-"))
                shutil.copytree(source, stays / name, ignore=shutil.ignore_patterns("mnt"))
                sys.stderr.write(f"its recording is kept: --recording {stays}\n")
            shutil.rmtree(parent / f"{name}-replay", ignore_errors=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Try the points that the words ask for; 0 if nothing was lost and nothing left."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust.powercuts", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**9)
    parser.add_argument("--only", choices=SCENARIOS, help="only this scenario")
    parser.add_argument("--replay", type=int, metavar="K", help="only point K of the seed")
    parser.add_argument("--recording", type=Path, metavar="DIR", help="the recording that a failed point left")
    args = parser.parse_args(argv)
    names = [args.only] if args.only else list(SCENARIOS)
    chosen = points(args.points, args.seed, names)
    if args.replay is not None:
        chosen = [point for point in points(args.replay + 1, args.seed, names) if point.number == args.replay]
    sys.stderr.write(f"seed {args.seed}\n")
    tally = Tally("power cuts", f"python -m tests.trust.powercuts --points {args.points} --seed {args.seed}", args.seed)
    replay(chosen, tally, args.recording)
    return tally.report()


if __name__ == "__main__":
    sys.exit(main())
