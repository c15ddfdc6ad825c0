# SPDX-License-Identifier: LGPL-2.1-or-later
"""One archived file that real flushes tore into thousands of extents, before and after.

    sudo python -m tests.bench.archive
    sudo python -m tests.bench.archive --extents 5000 --full 0 --volumes 7 --iops 0

A private journald on a scratch btrfs (datacow) flushes until its active file has so many
extents, and archives it. The volume's image is then copied for every trial, so that
`journalkeeper defrag` and `btrfs filesystem defragment -czstd -f` start from the same
extents, both cold, in turn, each timed as a process until a sync of the volume has ended.
They are timed on several such volumes: most of a sync is the kernel noting the old extents as
free, for which it searches its bitmaps of free space, and those differ twofold from volume to volume.
And they are timed on archives nearly as large as journald lets them grow (81 MiB, 19,000 extents),
because the start of a command and its look take the same time before a small one.
The cold reads are from a device throttled to so many IOPS by the block layer, through a
mount that has nothing of the file in memory.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from journalkeeper.history.record import Record
from journalkeeper.model import ideal_extents
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.bench.figures import (
    MIB,
    Figure,
    at_least,
    at_most,
    engine,
    mib,
    ms,
    need_a_bed,
    parser,
    ratio,
    show,
    spawn,
    timed,
)
from tests.volumes import disk_bytes, extents

SETTINGS = ("SystemMaxFileSize=256M", "SystemMaxUse=1G")
FLUSHES_A_STEP = 20
READERS = {
    "journalctl -o export": ("journalctl", "--quiet", "--output=export", "--file"),
    "cat": ("cat",),
}

Work = Callable[[Path], None]


class Look(NamedTuple):
    """What an outsider sees of a file."""

    extents: int
    disk_bytes: int
    size_bytes: int
    read_s: dict[str, float]


def age(volume: ScratchVolume, wanted: int) -> Path:
    """Make an archive of at least so many extents; its path below the mountpoint."""
    with PrivateJournald(volume.mountpoint, settings=SETTINGS) as journald:
        while extents(journald.active, sync=True) < wanted * 1.02:  # the archive is cut to what was used
            journald.age(FLUSHES_A_STEP)
        return journald.rotate().relative_to(volume.mountpoint)


@contextmanager
def aged(wanted: int) -> Iterator[tuple[Path, Path]]:
    """The image of a volume with an archive of at least so many extents, to be copied, and the archive's path in it."""
    with ScratchVolume("2G") as master:
        name = age(master, wanted)
        master.unmount()
        yield master.images[0], name


@contextmanager
def copy(image: Path, name: Path) -> Iterator[tuple[ScratchVolume, Path]]:
    """A volume with the same extents as the image's, and the archive on it."""
    with tempfile.TemporaryDirectory() as place:
        copied = Path(place, "disk.img")
        spawn("cp", "--sparse=always", os.fspath(image), os.fspath(copied))
        spawn("sync", os.fspath(copied))  # or whoever syncs the volume first writes the whole copy, too
        with ScratchVolume(images=[copied]) as volume:
            yield volume, volume.mountpoint / name


@contextmanager
def slowed(volume: ScratchVolume, iops: int) -> Iterator[None]:
    """The device with so many IOPS; 0 leaves it as it is."""
    if iops:
        volume.throttle(iops)
    try:
        yield
    finally:
        if iops:
            volume.throttle(0)


def look(volume: ScratchVolume, path: Path, iops: int) -> Look:
    """Measure a file from outside; cold reads only with `iops`."""
    read_s = {}
    for reader, words in READERS.items() if iops else ():
        volume.remount()
        with slowed(volume, iops):
            read_s[reader] = timed(functools.partial(spawn, *words, os.fspath(path)))
    return Look(extents(path, sync=True), disk_bytes(path), path.stat().st_size, read_s)


def ours(path: Path) -> None:
    """journalkeeper as a person runs it."""
    spawn(*engine("defrag", "--now", os.fspath(path)))


def theirs(path: Path) -> None:
    """btrfs-progs."""
    spawn("btrfs", "filesystem", "defragment", "-czstd", "-f", os.fspath(path))


def synced(work: Work, path: Path) -> None:
    """Do it, until all of it is on the disk."""
    work(path)
    spawn("sync", "-f", os.fspath(path))


def trial(image: Path, name: Path, work: Work, *, iops: int = 0, read_iops: int = 0) -> tuple[float, Look]:
    """The seconds that it takes on a fresh copy, slowed down with `iops`, and the file afterwards."""
    with copy(image, name) as (volume, path):
        os.environ["STATE_DIRECTORY"] = os.fspath(volume.base / "state")
        Record(os.environ["STATE_DIRECTORY"]).close()  # which the first run on a host would make
        volume.remount()
        with slowed(volume, iops):
            took = timed(functools.partial(synced, work, path))
        return took, look(volume, path, read_iops)


def in_turn(image: Path, name: Path, rounds: int) -> dict[Work, list[float]]:
    """The seconds of both in each round, on fresh copies, every other round backwards."""
    times: dict[Work, list[float]] = {ours: [], theirs: []}
    for number in range(rounds):
        for work in list(times)[:: -1 if number % 2 else 1]:
            times[work].append(trial(image, name, work)[0])
    return times


def on_volumes(extents: int, volumes: int, rounds: int) -> list[dict[Work, list[float]]]:
    """The same on each of so many volumes, with an archive of at least so many extents."""
    times = []
    for _ in range(volumes):
        with aged(extents) as (image, name):
            times.append(in_turn(image, name, rounds))
    return times


def together(volumes: list[dict[Work, list[float]]]) -> dict[Work, list[float]]:
    """The seconds of all volumes."""
    return {work: [seconds for one in volumes for seconds in one[work]] for work in volumes[0]}


def notes_of(times: list[dict[Work, list[float]]], what: str) -> list[str]:
    """What is to be said of the times on each volume with such an archive."""
    seconds = together(times)
    each = ", ".join(f"{ratio(one[ours], one[theirs]):.2f}" for one in times)
    return [
        f"{what}: journalkeeper defrag and sync {ms(seconds[ours])}, btrfs defragment and sync {ms(seconds[theirs])}",
        f"{what}: time / that of btrfs defragment on each volume: {each}",
    ]


def start_s(image: Path, name: Path) -> tuple[float, float]:
    """The seconds of the bare interpreter, and of the whole command where it only plans."""
    with copy(image, name) as (volume, path):
        os.environ["STATE_DIRECTORY"] = os.fspath(volume.base / "state")
        plan = engine("defrag", "--dry-run", "--now", "--no-pager", os.fspath(path))
        return tuple(  # type: ignore[return-value] # two
            statistics.median(timed(functools.partial(spawn, *words)) for _ in range(5))
            for words in ([sys.executable, "-c", ""], plan)
        )


def rows(before: Look, mine: Look, other: Look, times: dict[Work, list[float]], plan_s: float) -> list[Figure]:
    """The figures that were asked for, and the time without our start."""
    beyond = [seconds - plan_s for seconds in times[ours]]
    return [
        at_most("extents after / ideal", mine.extents / ideal_extents(mine.size_bytes, compressed=True), 1.1),
        at_most("disk bytes after / before", mine.disk_bytes / before.disk_bytes, 0.15),
        at_most("extents / those of btrfs defragment", mine.extents / other.extents, 1),
        at_most("disk bytes / those of btrfs defragment", mine.disk_bytes / other.disk_bytes, 0.5),
        at_most("time / that of btrfs defragment", ratio(times[ours], times[theirs]), 1.15),
        Figure("the same without our start and look", f"{ratio(beyond, times[theirs]):.3g}"),
        *(
            at_least(f"cold {reader}, before / after", before.read_s[reader] / seconds, 15)
            for reader, seconds in mine.read_s.items()
        ),
    ]


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--extents", type=int, default=7500, help="of the archive, at least (default: %(default)s)")
    words.add_argument("--full", type=int, default=17500, help="of nearly the largest that journald makes, "
                       "for the times alone; 0: none (default: %(default)s)")  # fmt: skip
    words.add_argument("--volumes", type=int, default=5, help="on which is timed (default: %(default)s)")
    words.add_argument("--rounds", type=int, default=5, help="that are timed on each (default: %(default)s)")
    words.add_argument("--iops", type=int, default=150, help="of the slowed-down device; 0 reads nothing")
    asked = words.parse_args()
    need_a_bed(words)
    volumes = on_volumes(asked.extents, asked.volumes - 1, asked.rounds)
    full = on_volumes(asked.full, asked.volumes if asked.full else 0, asked.rounds)
    with aged(asked.extents) as (image, name):
        with copy(image, name) as (volume, path):
            before = look(volume, path, asked.iops)
        mine, other = (trial(image, name, work, read_iops=asked.iops)[1] for work in (ours, theirs))
        volumes.append(in_turn(image, name, asked.rounds))
        slow = {work: [trial(image, name, work, iops=asked.iops)[0]] for work in (ours, theirs) if asked.iops}
        interpreter_s, plan_s = start_s(image, name)
    notes = [f"{before.size_bytes / MIB:.1f} MiB, ideal {ideal_extents(mine.size_bytes, compressed=True)} extents"]
    for what, one in (("before", before), ("journalkeeper defrag --now", mine), ("btrfs defragment -czstd", other)):
        reads = "".join(f", cold {reader} {seconds:.2f} s" for reader, seconds in one.read_s.items())
        notes.append(f"{what}: {one.extents} extents, {mib(one.disk_bytes)} on disk{reads}")
    notes += notes_of(volumes, f"{before.extents:,} extents")
    notes.append(f"of ours, interpreter alone {interpreter_s * 1000:.0f} ms, as far as the plan {plan_s * 1000:.0f} ms")
    figures = rows(before, mine, other, together(volumes), plan_s)
    if full:
        notes += notes_of(full, f"{asked.full:,} extents")
        figures.append(at_most(f"time, {asked.full:,} extents / theirs", ratio(*together(full).values()), 1.15))
    if slow:
        notes.append(f"at {asked.iops} IOPS: {slow[ours][0]:.1f} s, btrfs defragment {slow[theirs][0]:.1f} s")
        figures.append(at_most(f"time at {asked.iops} IOPS / that of btrfs defragment", ratio(*slow.values()), 1.15))
    show("An archive", notes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
