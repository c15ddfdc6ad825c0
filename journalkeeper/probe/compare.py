# SPDX-License-Identifier: LGPL-2.1-or-later
"""Age a journal under each of several strategies, on scratch volumes on one disk, and measure the costs.

All strategies get the same messages and the same flushes. All times are those of cold reads: the volume is mounted anew
and its image is dropped from the page cache.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.btrfs import disk, inode
from journalkeeper.model.record import Count, Seconds

from . import syslog
from .base import Target
from .bed import DIE_WITH_US, SIGNAL_SYNC, Bed, bed
from .scratch_volume import ScratchVolume, extents, filefrag, run

SETTINGS: Final = ("SystemMaxFileSize=128M", "SystemMaxUse=2G")
SIZE: Final = "8G"
DAYS: Final = 4
FLUSHES_A_STEP: Final = 2 * DAYS
"""The number of flushes between two commits of the filesystem's transaction, which trigger autodefrag."""

DEFAULT_IOPS: Final = 150
"""The rate of a small cloud volume or a 7200-rpm disk: on an SSD, times are too short to compare strategies."""

LOAD_RATE, LOAD_BYTES, UNSYNCED = 50, 400, 400
BOOT_MESSAGES: Final = 1700
"""The number of messages before the flush of a boot: 2 MiB of journal objects."""

INSIDE: Final = "/var/log/journal"
KEEPER_CONF: Final = "[Nocow]\nNocow=no\n[Window]\nPressureMax=100%\n"
"""Checksums stay, and other load on this machine does not delay the work."""

PACKAGE: Final = os.fspath(Path(__file__).parents[2])
Act = Callable[[Bed], None]
Report = Callable[[str], None]


def _nothing(_: Bed) -> None:
    """Do nothing: a strategy that leaves the files alone at this time."""


def _defragment(place: Bed) -> None:
    """Defragment the active file with btrfs-progs."""
    run("btrfs", "filesystem", "defragment", "-f", place.journald.active)


def _btrfsmaintenance(place: Bed) -> None:
    """Run the command of btrfs-defrag.sh (btrfsmaintenance 0.5) for a path of BTRFS_DEFRAG_PATHS."""
    words = ("find", place.directory, "-xdev", "-size", "+1M", "-type", "f", "-exec")
    run(*words, "btrfs", "filesystem", "defragment", "-t", "32m", "-f", "{}", ";")


def _rotate(place: Bed) -> None:
    """Rotate, as journalctl --rotate does."""
    place.journald.rotate()


def _keeper(*words: str) -> Act:
    """Return an act that runs `journalkeeper defrag` with `words`.

    It runs in journald's mount namespace, with its own state directory.
    """

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
    """A way in which a host treats its journal.

    `by_day` runs between the flushes, as a service does, `at_noon` once a day by a timer, and `at_night` before each
    shutdown. With `syncs=False`, journald is never asked to sync and its timer is set to a day, so that loggers wait
    for no fsync of journald.
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
    """The measurements of one strategy.

    `flush_s` is the time of the boot flush after the last day. `last_s` is that of a read of the newest ten entries on
    the last evening, `read_s` that of a read of all entries. `extents` and `disk_bytes` are those of all journal files
    on that evening. `active_extents` counts the extents of the file that the boot opens. `written_bytes` is the number
    of bytes written to the volume's device on all days. `wait_s` is the longest time that a message waited for journald
    after that boot, under a steady load with a flush, while the strategy acted.
    """

    strategy: str
    flush_s: Seconds
    wait_s: Seconds
    last_s: Seconds
    read_s: Seconds
    extents: Count
    active_extents: Count
    disk_bytes: Count
    written_bytes: Count
    checksummed: bool


class Compared(NamedTuple):
    """All rows, the number of flushes of 40 messages that each strategy got, and the IOPS limit (0 means none)."""

    flushes: int
    rows: tuple[Row, ...]
    iops: int


def compare(directory: str, wanted: int, iops: int | None, report: Report) -> Compared:
    """Simulate days of a host's journal under each strategy, and measure each journal afterwards.

    The untouched journal is flushed until its active file has `wanted` extents. Each other journal gets the same number
    of flushes. `iops` limits the device during each timed step; 0 means no limit. None means DEFAULT_IOPS if the kernel
    can limit, else no limit. `report` receives the name of each step.

    Raises: RuntimeError with the error message of the tool that failed.
    """
    flushes = 0
    rows = []
    for number, strategy in enumerate(STRATEGIES, 1):
        report_step = functools.partial(_report, report, f"{number}/{len(STRATEGIES)} {strategy.name}")
        interval = "5min" if strategy.syncs else "1d"
        with bed(*SETTINGS, size=SIZE, options=strategy.options, parent=directory, sync_interval=interval) as place:
            if strategy.nocow:
                run("chattr", "+C", place.journald.journal)
                place.journald.rotate().unlink()
            if not flushes:
                iops = _find_limit(place.volume, iops)
                flushes = age_until(place, wanted, report_step)
            else:
                _live(place, strategy, flushes, report_step)
            rows.append(_measure(place, strategy, iops or 0, report_step))
    return Compared(flushes, tuple(rows), iops or 0)


def _find_limit(volume: ScratchVolume, iops: int | None) -> int:
    """Return the limit in IOPS: the requested one, else the default, or 0 if this kernel cannot limit.

    Raises: RuntimeError if a limit was requested and this kernel cannot limit.
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


def _report(report: Report, name: str, what: str) -> None:
    report(f"{name}: {what}")


def age_until(place: Bed, wanted: int, report: Report) -> int:
    """Flush until the active file has `wanted` extents, and return the number of flushes.

    The number is a multiple of the days that are simulated.
    """
    flushes = count = 0
    while count < wanted:
        _flush(place, FLUSHES_A_STEP)
        flushes += FLUSHES_A_STEP
        count = extents(place.journald.active)
        report(f"{flushes} flushes, {count} of {wanted} extents")
    return flushes


def _live(place: Bed, strategy: Strategy, flushes: int, report: Report) -> None:
    """Simulate DAYS days: make `flushes` flushes in all, and run the strategy's acts at their times of day.

    The simulation ends on the last evening, before the act of that night.
    """
    half = flushes // (2 * DAYS)
    for number in range(2 * DAYS):
        if number:
            report("acting")
            (strategy.at_noon if number % 2 else strategy.at_night)(place)
        for done in range(0, half, FLUSHES_A_STEP):
            report(f"{number * half + done} of {flushes} flushes")
            _flush(place, min(FLUSHES_A_STEP, half - done), syncs=strategy.syncs)
            strategy.by_day(place)


def _flush(place: Bed, flushes: int, *, syncs: bool = True) -> None:
    place.journald.age(flushes, syncs=syncs)
    run("btrfs", "filesystem", "sync", place.volume.mountpoint)


def _measure(place: Bed, strategy: Strategy, iops: int, report: Report) -> Row:
    """Measure one strategy, and return its row.

    The order is: two cold reads (the newest entries, then all), the strategy's action of the night, the flush of a
    boot, and the longest wait of a load while the strategy acts. Extents and disk bytes are counted before the reads.
    The flush comes after the reads, because it patches so many old pages that it changes the file.
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
    report("reading the newest ten entries")
    last_s = _cold_s(volume, iops, lambda: run(*read, "--lines=10"))
    report("reading all entries")
    read_s = _cold_s(volume, iops, lambda: subprocess.run(read, stdout=subprocess.DEVNULL, check=True))
    journald.start()
    strategy.at_night(place)
    journald.stop()
    found = extents(journald.active, sync=True)
    volume.remount()
    written = volume.count_written_bytes()
    report("the flush of a boot")
    journald.boot(BOOT_MESSAGES)
    flush_s = slow_s(volume, iops, journald.flush)
    report("a load while the strategy acts")
    wait_s = measure_wait_s(place, strategy, iops)
    return Row(strategy.name, flush_s, wait_s, last_s, read_s, counted, found, used, written, not nocow)


def measure_wait_s(place: Bed, strategy: Strategy, iops: int) -> float:
    """Return the longest time in seconds that a message of a load waited for journald, as `probe syslog` measures it.

    LOAD_RATE messages are logged per second, after UNSYNCED other ones. After a second, journald is asked to sync its
    files, unless the strategy has no fsync. Then the strategy acts, and the load continues for two seconds.

    Raises: RuntimeError if a message does not arrive in the journal.
    """
    journald = place.journald
    run("btrfs", "filesystem", "sync", place.volume.mountpoint)  # dirty data of the boot is no part of the load
    journald.age(1, messages=UNSYNCED, syncs=False)

    def act() -> None:
        time.sleep(1)
        if strategy.syncs:
            os.kill(journald.pid, SIGNAL_SYNC)
        for step in (strategy.by_day, strategy.at_noon, strategy.at_night):
            step(place)
        time.sleep(2)

    asked = Namespace(rate=LOAD_RATE, size=LOAD_BYTES, flat_out=False)
    load = syslog.at(Target.of(journald), asked, sys.maxsize)
    with closing(load), ThreadPoolExecutor(1) as pool:
        found, acting = next(load), pool.submit(slow_s, place.volume, iops, act)
        while not acting.done():
            next(load)
    acting.result()
    if found.losses or found.faults:
        raise RuntimeError(" ".join([*found.losses, *found.faults]))
    return max(found.series[1].waits_ns()) / 1e9


def _cold_s(volume: ScratchVolume, iops: int, work: Callable[[], object]) -> float:
    """Return the duration of `work` in seconds, with the volume remounted so that none of its data is in memory."""
    volume.remount()
    return slow_s(volume, iops, work)


def slow_s(volume: ScratchVolume, iops: int, work: Callable[[], object]) -> float:
    """Return the duration of `work` in seconds, with the device limited to `iops` (0: no limit).

    journalctl's program is read into memory first.
    """
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
