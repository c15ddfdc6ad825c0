# SPDX-License-Identifier: LGPL-2.1-or-later
"""The power goes while journalkeeper works, at many moments, and the volume is mounted and put in order again.

    python -m tests.trust.powercuts [--points 500] [--seed N] [--only SCENARIO]
    python -m tests.trust.powercuts --seed N --replay K [--recording DIR]

Each scenario works on a disk that writes down every write and flush (cutdisk.py). A point is a moment of such a
recording, and what the disk had written of all that was not flushed by then: a random part, or everything, then
right after a flush, where a commit of the volume has just become the truth. Point K of a seed is always the same
scenario and the same share of the recording's length; the recording itself differs each time, so that of a point
that failed is kept, and --recording names it.

Lost: the volume does not mount; a journal file that was at rest is gone or differs in anything (bytes, holes,
owner, mode, ACL, xattrs, flags; the modification time after the next run); an entry that journald had synced is
not found; the record does not open, lacks more than its last transaction, or claims what the files do not show. Left
unclean: the next run fails with a file, or leaves a temporary file or a note. Outage: how long the next run takes.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import shutil
import sqlite3
import struct
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.bed import ARCHIVED
from journalkeeper.probe.scratch_volume import PREFIX, ScratchVolume, run
from tests.bench.figures import Option
from tests.btrfs.faults import let_go
from tests.trust import table
from tests.trust.claims import find_false_claims, read_claims
from tests.trust.cutdisk import Recording
from tests.trust.scenarios import FIELD, SCENARIOS, SIZE, Marks, record
from tests.trust.tally import Tally
from tests.trust.wholeness import STATE, differences, next_run, record_troubles

POINTS_A_RECORDING: Final = 25
BLKFLSBUF: Final = 0x1261
ARENA: Final = struct.Struct("<16xB71xQQ")
"""Of a journal file's header: state, header_size, arena_size."""


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
        self.cleaned = self.cut_short = 0
        self.marks = Marks(**pickle.loads((source / "marks").read_bytes()))  # noqa: S301 - we have written it
        self._recording = Recording(source / "log", SIZE)
        self._image = base / "disk0.img"
        self._recording.cut(self._image, len(self._recording), None)
        self._volume = ScratchVolume(images=[self._image], options="noatime,nodiscard")
        let_go(self._volume)

    def close(self) -> None:
        """Let go of everything."""
        self._volume.close()

    def examine(self, point: Point, tally: Tally) -> None:
        """Cut the power at `point`, mount, look, have the next run, look again."""
        first, last = (self._recording.number(length) for length in (self.marks.begun, self.marks.ended))
        at = first + round(point.share * (last - first))
        if not point.torn:
            at = self._recording.next_flush(at)
        dice = random.Random(point.seed) if point.torn else None  # noqa: S311 - repeatable is the point
        self._recording.cut(self._image, at, dice)
        with open(self._volume.device, "rb") as device:
            fcntl.ioctl(device, BLKFLSBUF)  # what the kernel has in memory of it is of the last point
        name = f"{point.number} ({point.recording}, entry {at} of {last}{', torn' if point.torn else ''})"
        try:
            self._volume.mount()
        except KeeperError as error:
            tally.add(name, lost=[str(error)], unclean=[], outage_s=0)
            return
        try:
            self._look(name, at, tally)
        finally:
            let_go(self._volume)

    def _look(self, name: str, at: int, tally: Tally) -> None:
        top = self._volume.mountpoint
        lost = self._differences(top, finished=False) + _false_claims(top)
        after = next_run(top, top / STATE)
        lost += self._differences(top, finished=True)
        self.cut_short += lengthened(top)
        lost += self._entries_lost(top, _count(self.marks.entries, at, self._recording))
        # the last transaction may be rolled back: SQLite's rollback journal may be there still
        rows = max(0, _count(self.marks.rows, at, self._recording) - 1)
        lost += record_troubles(top / STATE, rows)
        unclean = after.failed + after.left + _false_claims(top)
        tally.add(name, lost=lost, unclean=unclean, outage_s=after.took_s)
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


def _false_claims(top: Path) -> list[str]:
    """Return what the history on the volume claims and the volume does not show; a damaged history claims nothing."""
    try:
        return find_false_claims(top, read_claims(top / STATE))
    except sqlite3.DatabaseError:
        return []  # record_troubles() reports it


def lengthened(top: Path) -> int:
    """Give archives that journald was about to finish the length that their headers say; how many there were.

    It cuts them to what is written and syncs the header afterwards. A commit in between leaves files with all
    that is written that readers refuse (systemd 252: 3 of 520 commits while journald rotated by itself).
    """
    count = 0
    for path in top.glob("*/*@*.journal"):
        data = path.read_bytes()[: ARENA.size]
        state, header_size, arena_size = ARENA.unpack(data)
        if state != ARCHIVED and header_size + arena_size > path.stat().st_size:
            os.truncate(path, header_size + arena_size)
            count += 1
    return count


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
            own_words = f"{name}: {len(own)} points, after {examined.cleaned} the next run cleaned up"
            sys.stderr.write(f"{own_words}, {examined.cut_short} archives that journald had cut short\n")
            if kept is None and len(tally.lost) + len(tally.unclean) > before:
                stays = Path(tempfile.mkdtemp(prefix="journalkeeper-powercuts-"))
                shutil.copytree(source, stays / name, ignore=shutil.ignore_patterns("mnt"))
                sys.stderr.write(f"its recording is kept: --recording {stays}\n")
            shutil.rmtree(parent / f"{name}-replay", ignore_errors=True)


OPTIONS: Final = {
    "points": Option(500, "that are tried"),
    "seed": table.SEED,
    "only": Option(None, "only this scenario", str, choices=SCENARIOS),
    "replay": Option(None, "only this point of the seed, by its number", int),
    "recording": Option(None, "the directory with the recording that a failed point left", Path),
}


def attack(asked: Namespace) -> table.Row:
    """Try the points that were asked for."""
    names = [asked.only] if asked.only else list(SCENARIOS)
    chosen = points(asked.points, asked.seed, names)
    if asked.replay is not None:
        chosen = [point for point in points(asked.replay + 1, asked.seed, names) if point.number == asked.replay]
    tally = Tally("power cuts", asked.seed)
    replay(chosen, tally, asked.recording)
    return tally.row()


if __name__ == "__main__":
    sys.exit(table.command(__doc__, "power cuts", attack, OPTIONS))
