# SPDX-License-Identifier: LGPL-2.1-or-later
"""One journal aged under each of several strategies, on scratch volumes on one disk, and what each costs.

All strategies live through the same messages and the same flushes. What is timed is timed cold: the
volume is mounted anew and its image is dropped from the page cache.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.btrfs import disk, inode

from .bed import DIE_WITH_US, Bed, bed
from .scratch_volume import ScratchVolume, extents, filefrag, run

SETTINGS: Final = ("SystemMaxFileSize=128M", "SystemMaxUse=2G")
SIZE: Final = "8G"
DAYS: Final = 4
FLUSHES_A_STEP: Final = 2 * DAYS
"""Between two commits of the filesystem's transaction, which autodefrag acts at."""

BOOT_MESSAGES: Final = 1700
"""Logged before the flush of a boot: 2 MiB of journal objects."""

INSIDE: Final = "/var/log/journal"
KEEPER_CONF: Final = "[Nocow]\nNocow=no\n[Window]\nPressureMax=100%\n"
"""Checksums stay, and no other load of this machine puts the work off."""

PACKAGE: Final = os.fspath(Path(__file__).parents[2])
Act = Callable[[Bed], None]
Tell = Callable[[str], None]


def _nothing(_: Bed) -> None:
    """A strategy that leaves the files alone."""


def _defragment(place: Bed) -> None:
    """btrfs-progs, at the active file."""
    run("btrfs", "filesystem", "defragment", "-f", place.journald.active)


def _btrfsmaintenance(place: Bed) -> None:
    """What btrfs-defrag.sh of btrfsmaintenance 0.5 runs for each path of BTRFS_DEFRAG_PATHS."""
    words = ("find", place.directory, "-xdev", "-size", "+1M", "-type", "f", "-exec")
    run(*words, "btrfs", "filesystem", "defragment", "-t", "32m", "-f", "{}", ";")


def _rotate(place: Bed) -> None:
    """journalctl --rotate."""
    place.journald.rotate()


def _keeper(*words: str) -> Act:
    """journalkeeper(1) where journald lives, with a record of its own."""

    def act(place: Bed) -> None:
        state = place.volume.base / "state"
        state.mkdir(exist_ok=True)
        config = place.volume.base / "journalkeeper.conf"
        config.write_text(KEEPER_CONF)
        program = (sys.executable, "-m", "journalkeeper", "defrag", "-D", INSIDE, "--config", os.fspath(config))
        environment = {**os.environ, "STATE_DIRECTORY": os.fspath(state), "PYTHONPATH": PACKAGE}
        argv = [*place.journald.inside, *DIE_WITH_US, *program, *words]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"journalkeeper defrag {' '.join(words)}: exit {done.returncode}: {done.stderr.strip()}")

    return act


class Strategy(NamedTuple):
    """What a host does about its journal.

    `by_day` beside the flushes, as a service does, `at_noon` by a timer once a day, `at_night` before each shutdown.
    """

    name: str
    by_day: Act = _nothing
    at_noon: Act = _nothing
    at_night: Act = _nothing
    nocow: bool = False
    options: str = ""


STRATEGIES: Final = (
    Strategy("untouched"),
    Strategy("NOCOW", nocow=True),
    Strategy("autodefrag", options="autodefrag"),
    Strategy("defrag", at_night=_defragment),
    Strategy("btrfsmaintenance", at_noon=_btrfsmaintenance),
    Strategy("rotate", at_night=_rotate),
    Strategy("keeper", by_day=_keeper("--now"), at_night=_keeper("--before-shutdown")),
)


class Row(NamedTuple):
    """What one strategy came to.

    `flush_s` is what a boot after the last day waits for, `last_s` a reader of the newest ten entries in the
    evening before, `read_s` one of all entries; extents and disk bytes are those of all journal files then.
    `active_extents` are those that the boot finds in the file that it opens. `written_bytes` is what the
    volume's device was given in all days.
    """

    strategy: str
    flush_s: float
    last_s: float
    read_s: float
    extents: int
    active_extents: int
    disk_bytes: int
    written_bytes: int
    checksummed: bool


class Compared(NamedTuple):
    """All rows, and how many flushes of 40 messages each strategy lived through."""

    flushes: int
    rows: tuple[Row, ...]


def compare(directory: str, wanted: int, iops: int, tell: Tell) -> Compared:
    """Age a journal under each strategy, by as many flushes as give an untouched file `wanted` extents.

    `iops` limits the device while something is timed; 0 does not. `tell` is called with what is done.

    Raises: RuntimeError with the words of the tool that failed.
    """
    flushes = 0
    rows = []
    for number, strategy in enumerate(STRATEGIES, 1):
        says = functools.partial(_say, tell, f"{number}/{len(STRATEGIES)} {strategy.name}")
        with bed(*SETTINGS, size=SIZE, options=strategy.options, parent=directory) as place:
            if strategy.nocow:
                run("chattr", "+C", place.journald.journal)
                place.journald.rotate().unlink()
            if not flushes:
                if iops:  # it says now if it cannot
                    place.volume.throttle(iops)
                    place.volume.throttle(0)
                flushes = age_untouched(place, wanted, says)
            else:
                _live(place, strategy, flushes, says)
            rows.append(_measure(place, strategy, iops, says))
    return Compared(flushes, tuple(rows))


def _say(tell: Tell, name: str, what: str) -> None:
    tell(f"{name}: {what}")


def age_untouched(place: Bed, wanted: int, tell: Tell) -> int:
    """Flush until the active file has `wanted` extents; how many flushes, so many that days have equally many."""
    flushes = count = 0
    while count < wanted:
        _flush(place, FLUSHES_A_STEP)
        flushes += FLUSHES_A_STEP
        count = extents(place.journald.active)
        tell(f"{flushes} flushes, {count} of {wanted} extents")
    return flushes


def _live(place: Bed, strategy: Strategy, flushes: int, tell: Tell) -> None:
    """Let the journal live through as many flushes, and the strategy act, until the last evening."""
    half = flushes // (2 * DAYS)
    for number in range(2 * DAYS):
        if number:
            tell("acting")
            (strategy.at_noon if number % 2 else strategy.at_night)(place)
        for done in range(0, half, FLUSHES_A_STEP):
            tell(f"{number * half + done} of {flushes} flushes")
            _flush(place, min(FLUSHES_A_STEP, half - done))
            strategy.by_day(place)


def _flush(place: Bed, flushes: int) -> None:
    place.journald.age(flushes)
    run("btrfs", "filesystem", "sync", place.volume.mountpoint)


def _measure(place: Bed, strategy: Strategy, iops: int, tell: Tell) -> Row:
    """Read in the evening of the last day, and boot after its night.

    The flush of a boot is the last: it patches so many old pages that the file is another one afterwards.
    """
    volume, journald = place.volume, place.journald
    journald.stop()
    files = sorted(journald.journal.iterdir())
    counted = sum(filefrag(*files, sync=True))
    used, nocow = 0, False
    for path in files:
        with path.open("rb") as file:
            used += disk.disk_bytes(file.fileno()) or 0
            nocow |= inode.is_nocow(file.fileno())
    read = ("journalctl", "--quiet", "--no-pager", "-D", os.fspath(journald.journal))
    tell("reading the newest ten entries")
    last_s = _cold_s(volume, iops, lambda: run(*read, "--lines=10"))
    tell("reading all entries")
    read_s = _cold_s(volume, iops, lambda: subprocess.run(read, stdout=subprocess.DEVNULL, check=True))
    journald.start()
    strategy.at_night(place)
    journald.stop()
    found = extents(journald.active, sync=True)
    volume.remount()
    written = volume.written_bytes()
    tell("the flush of a boot")
    journald.boot(BOOT_MESSAGES)
    flush_s = slow_s(volume, iops, journald.flush)
    return Row(strategy.name, flush_s, last_s, read_s, counted, found, used, written, not nocow)


def _cold_s(volume: ScratchVolume, iops: int, work: Callable[[], object]) -> float:
    """The seconds of `work` with nothing of the volume in memory."""
    volume.remount()
    return slow_s(volume, iops, work)


def slow_s(volume: ScratchVolume, iops: int, work: Callable[[], object]) -> float:
    """The seconds of `work` with the device limited to `iops` if not 0, journalctl itself being in memory."""
    run("journalctl", "--version")
    if iops:
        volume.throttle(iops)
    try:
        began_s = time.monotonic()
        work()
        return time.monotonic() - began_s
    finally:
        if iops:
            volume.throttle(0)
