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
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.btrfs import disk, inode
from journalkeeper.journald.journalctl import plain, wait_us

from .bed import DIE_WITH_US, SIGNAL_SYNC, Bed, bed, messages
from .scratch_volume import ScratchVolume, extents, filefrag, run

SETTINGS: Final = ("SystemMaxFileSize=128M", "SystemMaxUse=2G")
SIZE: Final = "8G"
DAYS: Final = 4
FLUSHES_A_STEP: Final = 2 * DAYS
"""Between two commits of the filesystem's transaction, which autodefrag acts at."""

DEFAULT_IOPS: Final = 150
"""What a small cloud volume or a 7200-rpm disk does: an SSD's times are too short to tell strategies apart."""

LOAD_RATE, UNSYNCED = 50, 400
ARRIVAL_S: Final = 60
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

    It acts `by_day` between the flushes, as a service does, `at_noon` by a timer once a day, and `at_night`
    before each shutdown. Unless journald `syncs` its files it is never told to, and its timer is set to a day:
    what loggers wait for then is not an fsync of journald's.
    """

    name: str
    by_day: Act = _nothing
    at_noon: Act = _nothing
    at_night: Act = _nothing
    nocow: bool = False
    options: str = ""
    syncs: bool = True


STRATEGIES: Final = (
    Strategy("untouched"),
    Strategy("no fsync", syncs=False),
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
    volume's device was given in all days. `wait_s` is the longest time that a message waited for journald
    after that boot, under a steady load with a flush, while the strategy acted.
    """

    strategy: str
    flush_s: float
    wait_s: float
    last_s: float
    read_s: float
    extents: int
    active_extents: int
    disk_bytes: int
    written_bytes: int
    checksummed: bool


class Compared(NamedTuple):
    """All rows, how many flushes of 40 messages each strategy lived through, and the limit; 0 is none."""

    flushes: int
    rows: tuple[Row, ...]
    iops: int


def compare(directory: str, wanted: int, iops: int | None, tell: Tell) -> Compared:
    """Age a journal under each strategy, by as many flushes as give an untouched file `wanted` extents.

    `iops` limits the device while something is timed. 0 does not, and None limits it to DEFAULT_IOPS where
    the kernel can. `tell` is called with what is done.

    Raises: RuntimeError with the words of the tool that failed.
    """
    flushes = 0
    rows = []
    for number, strategy in enumerate(STRATEGIES, 1):
        says = functools.partial(_say, tell, f"{number}/{len(STRATEGIES)} {strategy.name}")
        interval = "5min" if strategy.syncs else "1d"
        with bed(*SETTINGS, size=SIZE, options=strategy.options, parent=directory, sync_interval=interval) as place:
            if strategy.nocow:
                run("chattr", "+C", place.journald.journal)
                place.journald.rotate().unlink()
            if not flushes:
                iops = _find_limit(place.volume, iops)
                flushes = age_untouched(place, wanted, says)
            else:
                _live(place, strategy, flushes, says)
            rows.append(_measure(place, strategy, iops or 0, says))
    return Compared(flushes, tuple(rows), iops or 0)


def _find_limit(volume: ScratchVolume, iops: int | None) -> int:
    """Return the limit that holds: the one that was asked for, else the default or none.

    Raises: RuntimeError if one was asked for and this kernel cannot limit.
    """
    if iops == 0:
        return 0
    try:
        volume.throttle(iops or DEFAULT_IOPS)
        volume.throttle(0)
    except (RuntimeError, OSError):
        if iops is not None:
            raise
        return 0
    return iops or DEFAULT_IOPS


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
            _flush(place, min(FLUSHES_A_STEP, half - done), syncs=strategy.syncs)
            strategy.by_day(place)


def _flush(place: Bed, flushes: int, *, syncs: bool = True) -> None:
    place.journald.age(flushes, syncs=syncs)
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
            used += disk.read_disk_bytes(file.fileno()) or 0
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
    tell("a load while it acts")
    wait_s = measure_wait_s(place, strategy, iops)
    return Row(strategy.name, flush_s, wait_s, last_s, read_s, counted, found, used, written, not nocow)


def measure_wait_s(place: Bed, strategy: Strategy, iops: int) -> float:
    """Return how long the slowest of a load's messages waited for journald, by the journal's own times.

    LOAD_RATE messages are logged a second, after UNSYNCED ones that are not timed. After a second journald
    is told to sync its files, unless the strategy is to have no fsync; then the strategy acts, and the load
    goes on for two seconds more.

    Raises: RuntimeError if a message does not come to the journal.
    """
    journald = place.journald
    run("btrfs", "filesystem", "sync", place.volume.mountpoint)  # what the boot left is no part of the load
    journald.age(1, messages=UNSYNCED, syncs=False)
    stop = threading.Event()
    sent = 0

    def load() -> None:
        nonlocal sent
        for fields in messages(seed=3):
            journald.log(fields.pop("MESSAGE"), LAB_LOAD="1", **fields)
            sent += 1
            if stop.wait(1 / LOAD_RATE):
                return

    def act() -> None:
        time.sleep(1)
        if strategy.syncs:
            os.kill(journald.pid, SIGNAL_SYNC)
        for step in (strategy.by_day, strategy.at_noon, strategy.at_night):
            step(place)
        time.sleep(2)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        slow_s(place.volume, iops, act)
    finally:
        stop.set()
        thread.join()
    words = ("journalctl", "--quiet", "--output=json", f"--directory={journald.journal}", "LAB_LOAD=1")
    deadline_s = time.monotonic() + ARRIVAL_S
    while time.monotonic() < deadline_s:
        waits_us = [wait_us(plain(line)) or 0 for line in run(*words).encode().splitlines()]
        if len(waits_us) == sent:
            return max(waits_us) / 1e6
        time.sleep(0.1)
    raise RuntimeError(f"{sent - len(waits_us)} of {sent} messages did not come to the journal")


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
