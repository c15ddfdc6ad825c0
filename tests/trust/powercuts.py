# SPDX-License-Identifier: LGPL-2.1-or-later
"""The power goes while journalkeeper works, at many moments, and the volume is mounted and put in order again.

    python -m tests.trust.powercuts [--points 500] [--seed N] [--only SCENARIO]
    python -m tests.trust.powercuts --seed N --replay K [--recording DIR]

Each scenario works on a disk that records every write and flush (cutdisk.py). A point is a moment of such a recording,
and what the disk has written by then of all that was not flushed: a random part; or everything, right after a flush,
where a commit of the volume has just become durable. Point K of a seed is always the same scenario and the same share
of the recording's length. The recording itself differs each time, so that of a point that failed is kept, and
--recording names it.

Lost: the volume does not mount; a journal file that was at rest is gone or differs in anything (bytes, holes, owner,
mode, ACL, xattrs, flags; the modification time after the next run); an entry that journald had synced is not found; the
history does not open, lacks more than its last transaction, or claims what the files do not show. Unclean: the next run
fails with a file, or leaves a temporary file or a note. Outage: how long the next run takes.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import random
import shutil
import struct
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.bed import ARCHIVED
from journalkeeper.probe.scratch_volume import PREFIX, ScratchVolume, run
from tests.bench.figures import Option
from tests.btrfs.faults import let_go
from tests.trust import table
from tests.trust.cutdisk import Recording
from tests.trust.scenarios import FIELD, SCENARIOS, SIZE, Marks, record
from tests.trust.table import Tally
from tests.trust.wholeness import examine

POINTS_A_RECORDING: Final = 25
BLKFLSBUF: Final = 0x1261
ARENA: Final = struct.Struct("<16xB71xQQ")
"""The state, header_size and arena_size in a journal file's header."""


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
        """The name of its recording."""
        return f"{self.scenario}-{self.batch}"


def list_points(count: int, seed: int, names: Sequence[str]) -> list[Point]:
    """Return the points of a seed. A smaller `count` returns the first ones of a larger `count`."""
    found = []
    for number in range(count):
        own = f"{seed}:{number}"
        turn, scenario = number // len(names), names[number % len(names)]
        share = random.Random(own).random()  # noqa: S311 - repeatable is the point
        found.append(Point(number, scenario, turn // POINTS_A_RECORDING, share, turn % 3 > 0, own))
    return found


class Replay:
    """A recording in `source`, whose moments are mounted below `base` one after the other."""

    def __init__(self, source: Path, base: Path) -> None:
        base.mkdir()
        self._marks = Marks(**pickle.loads((source / "marks").read_bytes()))  # noqa: S301 - we have written it
        self._recording = Recording(source / "log", SIZE)
        self._image = base / "disk0.img"
        self._recording.cut(self._image, len(self._recording), None)
        self._volume = ScratchVolume(images=[self._image], options="noatime,nodiscard")
        let_go(self._volume)

    def close(self) -> None:
        """Remove the loop device."""
        self._volume.close()

    def examine(self, point: Point, tally: Tally) -> None:
        """Cut the power at `point`, mount the volume, look, let the next run work, and look again."""
        first, last = (self._recording.number(length) for length in (self._marks.begun, self._marks.ended))
        at = first + round(point.share * (last - first))
        if not point.torn:
            at = self._recording.next_flush(at)
        self._recording.cut(self._image, at, random.Random(point.seed) if point.torn else None)  # noqa: S311
        with open(self._volume.device, "rb") as device:
            fcntl.ioctl(device, BLKFLSBUF)  # what the kernel has in memory is of the last point
        name = f"{point.number} ({point.recording}, entry {at} of {last}{', torn' if point.torn else ''})"
        try:
            self._volume.mount()
        except KeeperError as error:
            tally.add(name, lost=[str(error)])
            return
        try:
            top = self._volume.mountpoint
            # SQLite may roll the last transaction back: its rollback journal may be there still.
            rows = max(0, self._count(self._marks.rows, at) - 1)
            found = examine(top, self._marks.whole, rows, lambda: lengthen_archives(top))
            lost = found.lost + self._find_lost_entries(top, self._count(self._marks.entries, at))
            tally.add(name, lost=lost, unclean=found.unclean, outage_s=found.took_s)
        finally:
            let_go(self._volume)

    def _count(self, marks: list[tuple[int, int]], at: int) -> int:
        """Return the last count that was marked at entry `at` or before; 0 if none was."""
        return max((count for length, count in marks if self._recording.number(length) <= at), default=0)

    def _find_lost_entries(self, top: Path, count: int) -> list[str]:
        """Return a sentence if a reader does not find all entries up to `count`, which journald had synced."""
        if not count:
            return []
        text = run("journalctl", "--quiet", "--no-pager", "-D", top, "-o", "cat", f"--output-fields={FIELD}")
        gone = sorted(set(range(1, count + 1)) - {int(line) for line in text.split() if line.isdigit()})
        return [f"{len(gone)} of {count} entries, the first is {gone[0]}"] if gone else []


def lengthen_archives(top: Path) -> None:
    """Give archives that journald was about to finish the length that is in their headers.

    journald cuts an archive to what is written, and syncs its header afterwards. A commit in between leaves files with
    all that was written that readers refuse (systemd 252: 3 of 520 commits while journald rotated by itself).
    """
    for path in top.glob("*/*@*.journal"):
        state, header_size, arena_size = ARENA.unpack(path.read_bytes()[: ARENA.size])
        if state != ARCHIVED and header_size + arena_size > path.stat().st_size:
            os.truncate(path, header_size + arena_size)


OPTIONS: Final = {
    "points": Option(500, "that are tried"),
    "only": Option(None, "only this scenario", str, choices=SCENARIOS),
    "replay": Option(None, "only this point of the seed, by its number", int),
    "recording": Option(None, "the directory with the recording that a failed point left", Path),
}


def attack(asked: Namespace, tally: Tally) -> None:
    """Try the points that were asked for, those of one recording together."""
    names = [asked.only] if asked.only else list(SCENARIOS)
    chosen = list_points(asked.points, asked.seed, names)
    if asked.replay is not None:
        chosen = list_points(asked.replay + 1, asked.seed, names)[-1:]
    for name in sorted({point.recording for point in chosen}):
        own = [point for point in chosen if point.recording == name]
        with tempfile.TemporaryDirectory(prefix=PREFIX) as place:
            source = Path(asked.recording or place, name)
            if asked.recording is None:
                record(own[0].scenario, f"{asked.seed}:{name}", source)
            before = len(tally.lost) + len(tally.unclean)
            with closing(Replay(source, Path(place, "replay"))) as replay:
                for point in own:
                    replay.examine(point, tally)
            table.say(f"{name}: {len(own)} points")
            if asked.recording is None and len(tally.lost) + len(tally.unclean) > before:
                kept = tempfile.mkdtemp(prefix="journalkeeper-powercuts-")
                shutil.copytree(source, Path(kept, name), ignore=shutil.ignore_patterns("mnt"))
                table.say(f"its recording is kept: --recording {kept}")


if __name__ == "__main__":
    sys.exit(table.command(__doc__, attack, OPTIONS))
