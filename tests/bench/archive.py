# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare journalkeeper with btrfs-progs on archives that real flushes fragmented into thousands of extents.

    sudo python -m tests.bench.archive
    sudo python -m tests.bench.archive --extents 5000 --full 0 --volumes 7 --iops 0

A private journald on a scratch btrfs (datacow) flushes until its active file has so many extents, and archives it. The
volume's image is copied for every trial, so that `journalkeeper defrag` and `btrfs filesystem defragment -czstd -f`
start from the same extents, both cold, in turn, each timed until a sync of the volume has ended. They are timed on
several volumes: most of a sync is the kernel's search in its bitmaps of free space, which differ twofold from volume to
volume. They are also timed on archives nearly as large as journald lets them grow (81 MiB, 19,000 extents), because the
start of a command takes the same time before a small one. Cold reads are from a device that the block layer throttles,
through a mount that has nothing of the file in memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from journalkeeper.history.store import Record
from journalkeeper.model import count_ideal_extents
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.compare import time_limited_s
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.bench.figures import MIB, Figure, Option, at_most, engine, mib, ms, parser, ratio, show, spawn, start
from tests.volumes import disk_bytes, extents

SETTINGS = ("SystemMaxFileSize=256M", "SystemMaxUse=1G")
FLUSHES_A_STEP = 20
TOOLS = {"journalkeeper": engine("defrag", "--now"), "btrfs": ["btrfs", "filesystem", "defragment", "-czstd", "-f"]}

Times = dict[str, list[float]]
"""The seconds of each tool in each round."""


class Look(NamedTuple):
    """The extents and bytes of an archive, and the seconds in which journalctl reads it cold."""

    extents: int
    disk_bytes: int
    size_bytes: int
    read_s: float

    def __str__(self) -> str:
        return f"{self.extents} extents, {mib(self.disk_bytes)} on disk, cold journalctl {self.read_s:.2f} s"


@contextmanager
def make_archive(wanted: int) -> Iterator[tuple[Path, Path]]:
    """Yield the image of a volume with an archive of at least so many extents, and the archive's path in the volume."""
    with ScratchVolume("2G") as master:
        with PrivateJournald(master.mountpoint, settings=SETTINGS) as journald:
            while extents(journald.active, sync=True) < wanted * 1.02:  # the archive is cut to what was used
                journald.age(FLUSHES_A_STEP)
            name = journald.rotate().relative_to(master.mountpoint)
        master.unmount()
        yield master.images[0], name


@contextmanager
def copy(image: Path, name: Path) -> Iterator[tuple[ScratchVolume, Path]]:
    """Yield a cold volume with the same extents as the image's, and the archive on it."""
    with tempfile.TemporaryDirectory() as place:
        copied = Path(place, "disk.img")
        spawn("cp", "--sparse=always", os.fspath(image), os.fspath(copied))
        spawn("sync", os.fspath(copied))  # else the first sync of the volume writes the whole copy, too
        with ScratchVolume(images=[copied]) as volume:
            os.environ["STATE_DIRECTORY"] = os.fspath(volume.base / "state")
            Record(os.environ["STATE_DIRECTORY"]).close()  # the first run on a host would make it
            volume.remount()
            yield volume, volume.mountpoint / name


def look(volume: ScratchVolume, path: Path, iops: int) -> Look:
    """Measure an archive, and read it cold at `iops`."""
    volume.remount()
    words = ("journalctl", "--quiet", "--output=export", "--file", os.fspath(path))
    read_s = time_limited_s(volume, iops, lambda: spawn(*words))
    return Look(extents(path, sync=True), disk_bytes(path), path.stat().st_size, read_s)


def rewrite(volume: ScratchVolume, path: Path, tool: str, iops: int = 0) -> float:
    """Return the seconds in which a tool rewrites the archive and the volume is synced."""

    def work() -> None:
        spawn(*TOOLS[tool], os.fspath(path))
        spawn("sync", "-f", os.fspath(path))

    return time_limited_s(volume, iops, work)


def compare(image: Path, name: Path, rounds: int, iops: int = 0) -> Times:
    """Return the seconds of both tools on fresh copies, every other round in reverse order."""
    times: Times = {tool: [] for tool in TOOLS}
    for number in range(rounds):
        for tool in list(TOOLS)[:: -1 if number % 2 else 1]:
            with copy(image, name) as (volume, path):
                times[tool].append(rewrite(volume, path, tool, iops))
    return times


def describe(times: Times, what: str) -> tuple[str, Figure]:
    """Return a note with the times of both tools, and the row that compares them."""
    note = f"{what}: " + ", ".join(f"{tool} {ms(seconds)}" for tool, seconds in times.items())
    return note, at_most(f"time / that of btrfs defragment, {what}", ratio(*times.values()), 1.15)


OPTIONS = {
    "extents": Option(7500, "of the archive, at least"),
    "full": Option(17500, "of nearly the largest that journald makes, for the times alone; 0: none"),
    "volumes": Option(5, "on which is timed"),
    "rounds": Option(5, "that are timed on each"),
    "iops": Option(150, "of the slow device; 0 for as many as it has"),
}


def main() -> None:
    """Measure, and print the table."""
    asked = start(parser(__doc__, OPTIONS))
    timed = []
    for wanted in [asked.extents, asked.full] if asked.full else [asked.extents]:
        for number in range(asked.volumes):
            with make_archive(wanted) as (image, name):
                timed.append(describe(compare(image, name, asked.rounds), f"{wanted} extents, volume {number + 1}"))
    after = {}
    with make_archive(asked.extents) as (image, name):
        with copy(image, name) as (volume, path):
            before = look(volume, path, asked.iops)
        for tool in TOOLS:
            with copy(image, name) as (volume, path):
                rewrite(volume, path, tool)
                after[tool] = look(volume, path, asked.iops)
        if asked.iops:
            timed.append(describe(compare(image, name, 1, asked.iops), f"{asked.iops} IOPS"))
    ours, theirs = after.values()
    ideal = count_ideal_extents(ours.size_bytes, compressed=True)
    notes = [
        f"{before.size_bytes / MIB:.1f} MiB, ideal {ideal} extents; cold reads at {asked.iops} IOPS",
        f"before: {before}",
        *(f"after {tool}: {one}" for tool, one in after.items()),
        *(note for note, _ in timed),
    ]
    figures = [
        at_most("extents after / ideal", ours.extents / ideal, 1.1),
        at_most("disk bytes after / before", ours.disk_bytes / before.disk_bytes, 0.15),
        at_most("extents / those of btrfs defragment", ours.extents / theirs.extents, 1),
        at_most("disk bytes / those of btrfs defragment", ours.disk_bytes / theirs.disk_bytes, 0.5),
        Figure("cold journalctl, before / after", f"{before.read_s / ours.read_s:.3g}"),
        *(row for _, row in timed),
    ]
    show("An archive", notes, figures)


if __name__ == "__main__":
    main()
