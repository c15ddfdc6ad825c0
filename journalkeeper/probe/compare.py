# SPDX-License-Identifier: LGPL-2.1-or-later
"""Age a journal under each of several strategies, on scratch volumes on one disk, and measure the costs.

All strategies get the same messages and the same flushes. All times are those of cold reads: the volume is mounted anew
and its image is dropped from the page cache.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.btrfs import disk, placement
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.record import Count, Seconds

from . import syslog
from .base import Target
from .bed import SIGNAL_SYNC, Bed, bed
from .scratch_volume import ScratchVolume, run

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

KEEPER_CONF: Final = "[Nocow]\nNocow=no\n[Window]\nPressureMax=100%\n"
"""Checksums stay, and other load on this machine does not delay the work."""

PACKAGE: Final = os.fspath(Path(__file__).parents[2])
DIE_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL", "--")
Report = Callable[[str], None]


class Strategy(NamedTuple):
    """A way in which a host treats its journal.

    Its acts are shell commands in journald's mount namespace: `by_day` runs between the flushes, as a service does,
    `at_noon` once a day by a timer, and `at_night` before each shutdown. With `syncs=False`, journald is never asked to
    sync and its timer is set to a day, so that loggers wait for no fsync of journald.
    """

    name: str
    by_day: str = ""
    at_noon: str = ""
    at_night: str = ""
    nocow: bool = False
    options: str = ""
    syncs: bool = True


DEFRAGMENT: Final = "btrfs filesystem defragment -f /var/log/journal/*/system.journal"
MAINTENANCE: Final = "find /var/log/journal -xdev -size +1M -type f -exec btrfs filesystem defragment -t 32m -f {} ';'"
"""The command of btrfs-defrag.sh (btrfsmaintenance 0.5) for a path of BTRFS_DEFRAG_PATHS."""

KEEPER: Final = f"'{sys.executable}' -m journalkeeper defrag -D /var/log/journal --config \"$STATE_DIRECTORY/conf\""
STRATEGIES: Final = (
    Strategy("untouched"),
    Strategy("no fsync", syncs=False),
    Strategy("NOCOW", nocow=True),
    Strategy("autodefrag", options="autodefrag"),
    Strategy("defrag", at_night=DEFRAGMENT),
    Strategy("btrfsmaintenance", at_noon=MAINTENANCE),
    Strategy("rotate", at_night="journalctl --rotate"),
    Strategy("keeper", by_day=f"{KEEPER} --now", at_night=f"{KEEPER} --before-shutdown"),
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


class LabAnswer(NamedTuple):
    """The answer of `lab compare`. Each strategy got `flushes` flushes of 40 messages."""

    directory: str
    iops: Count | None
    """null: not limited."""
    flushes: Count
    strategies: tuple[Row, ...]


def compare(directory: str, wanted: int, iops: int | None, report: Report) -> LabAnswer:
    """Simulate days of a host's journal under each strategy, and return the measurements of each journal.

    The first strategy, "untouched", is flushed until its active file has `wanted` extents, a positive number.
    Each other strategy gets about the same number of flushes. Each has its own volume below `directory`, which is
    removed.

    `iops` limits the device during each timed step; 0 means no limit. None means DEFAULT_IOPS if the kernel can
    limit, else no limit. `iops` in the answer is None if there was no limit. `report` is called with a text on
    each step.

    Raises: KeeperError with the error message of the tool that failed; KeeperError or OSError if a limit was
    requested and the kernel cannot limit.
    """
    flushes = 0
    rows = []
    for number, strategy in enumerate(STRATEGIES, 1):

        def report_step(what: str, head: str = f"{number}/{len(STRATEGIES)} {strategy.name}") -> None:
            report(f"{head}: {what}")

        interval = "5min" if strategy.syncs else "1d"
        made = bed(*SETTINGS, size=SIZE, options=strategy.options, parent=directory, sync_interval=interval)
        with made as place:
            (place.volume.base / "conf").write_text(KEEPER_CONF)
            if strategy.nocow:
                run("chattr", "+C", place.journald.journal)
                place.journald.rotate().unlink()
            if not flushes:
                iops = find_throttle(place.volume, iops)
                flushes = age_until(place, wanted, report_step)
            else:
                _simulate_days(place, strategy, flushes, report_step)
            rows.append(_measure(place, strategy, iops or 0, report_step))
    return LabAnswer(directory, iops or None, flushes, tuple(rows))


def find_throttle(volume: ScratchVolume, iops: int | None) -> int:
    """Return the limit in IOPS: the requested one, or DEFAULT_IOPS for None, or 0 if this kernel cannot limit.

    The limit is tried on `volume`, and then removed.

    Raises: KeeperError or OSError if a limit was requested and this kernel cannot limit.
    """
    wanted = DEFAULT_IOPS if iops is None else iops
    try:
        volume.throttle(wanted)
        volume.throttle(0)
    except (KeeperError, OSError):
        if iops is not None:
            raise
        return 0
    return wanted


def age_until(place: Bed, wanted: int, report: Report) -> int:
    """Flush until the active file has at least `wanted` extents, and return the number of flushes.

    The flushes are made in steps of FLUSHES_A_STEP, and the extents are counted after each step. So at least one
    step is made, even if the file has enough extents before, unless `wanted` is 0. `report` is called with the
    progress after each step.

    Raises: KeeperError or OSError as `PrivateJournald.age`.
    """
    flushes = count = 0
    while count < wanted:
        _flush(place, FLUSHES_A_STEP)
        flushes += FLUSHES_A_STEP
        count = _count_extents(place.journald.active, sync=False)
        report(f"{flushes} flushes, {count} of {wanted} extents")
    return flushes


def _simulate_days(place: Bed, strategy: Strategy, flushes: int, report: Report) -> None:
    """Simulate DAYS days: make about `flushes` flushes, and run the strategy's acts at their times of day.

    A day has two halves. Each half has the same number of flushes, and the remainder of the division is left out. The
    flushes are made in steps of at most FLUSHES_A_STEP. Before each step, call `report` with the progress. After each
    step, run `by_day`. Between two halves, call `report` with "acting". Then run `at_noon` after a first half, or
    `at_night` after a second half. The simulation ends after the last half, without its `at_night`.

    Raises: KeeperError if journald or an act fails.
    """
    half = flushes // (2 * DAYS)
    for number in range(2 * DAYS):
        if number:
            report("acting")
            _act(place, strategy.at_noon if number % 2 else strategy.at_night)
        for done in range(0, half, FLUSHES_A_STEP):
            report(f"{number * half + done} of {flushes} flushes")
            _flush(place, min(FLUSHES_A_STEP, half - done), syncs=strategy.syncs)
            _act(place, strategy.by_day)


def _act(place: Bed, command: str) -> None:
    """Run the shell command `command` in journald's mount namespace, and wait for its end. Do nothing for "".

    $STATE_DIRECTORY is the directory of the volume's image, and Python finds this journalkeeper. The command is
    killed if this process dies.

    Raises: KeeperError if the command fails; subprocess.TimeoutExpired after 300 s.
    """
    if command:
        environment = ("env", f"STATE_DIRECTORY={place.volume.base}", f"PYTHONPATH={PACKAGE}")
        run(*place.journald.inside, *DIE_WITH_US, *environment, "sh", "-c", command)


def _flush(place: Bed, flushes: int, *, syncs: bool = True) -> None:
    place.journald.age(flushes, syncs=syncs)
    run("btrfs", "filesystem", "sync", place.volume.mountpoint)


def _measure(place: Bed, strategy: Strategy, iops: int, report: Report) -> Row:
    """Measure the journal that one strategy left, and return its row.

    The order of the steps matters, because a later step changes the files that an earlier one measures:
    1. Stop journald. Count the extents and disk bytes of all files.
    2. Time a cold read of the newest ten entries, then one of all entries.
    3. Run the strategy's `at_night`, not timed and not limited. Count the extents of the active file and the
       bytes written to the volume so far.
    4. Mount the volume anew. Time the flush of a boot, which changes many old pages of the file.
    5. Measure the longest wait while the strategy acts, with `measure_wait_s`.

    `iops` limits the device during each timed step; 0 means no limit. `report` is called before each timed step.
    journald runs at the end.

    Raises: KeeperError if journald, an act or a tool fails.
    """
    volume, journald = place.volume, place.journald
    journald.stop()
    counted = used = 0
    for path in journald.journal.iterdir():
        counted += _count_extents(path)
        with path.open("rb") as file:
            used += disk.read_disk_bytes(file.fileno()) or 0
    report("reading the newest ten entries")
    last_s = _read_cold_s(place, iops, "10")
    report("reading all entries")
    read_s = _read_cold_s(place, iops, "all")
    journald.start()
    _act(place, strategy.at_night)
    journald.stop()
    found = _count_extents(journald.active)
    volume.remount()
    written = volume.count_written_bytes()
    report("the flush of a boot")
    journald.boot(BOOT_MESSAGES)
    flush_s = time_limited_s(volume, iops, journald.flush)
    report("a load while the strategy acts")
    wait_s = measure_wait_s(place, strategy, iops)
    return Row(strategy.name, flush_s, wait_s, last_s, read_s, counted, found, used, written, not strategy.nocow)


def _read_cold_s(place: Bed, iops: int, lines: str) -> float:
    """Return the seconds that journalctl needs to read the newest `lines` entries ("all" or a number) from the disk.

    The volume is mounted anew first, so that nothing is in memory. journald must be stopped before, because it would
    keep the volume in use. `iops` is as in `time_limited_s`.

    Raises: KeeperError if the volume stays in use, or journalctl fails.
    """
    command = f'journalctl --quiet --no-pager --directory="$0" --lines={lines} >/dev/null'
    place.volume.remount()
    return time_limited_s(place.volume, iops, lambda: run("sh", "-c", command, place.journald.journal))


def _count_extents(path: Path, *, sync: bool = True) -> int:
    """Return the number of extents of a file. With `sync`, its dirty pages are written first."""
    with path.open("rb") as file:
        return placement.count(file.fileno(), sync=sync)


def measure_wait_s(place: Bed, strategy: Strategy, iops: int) -> float:
    """Return the longest time in seconds from a message's planned time of sending until journald received it.

    UNSYNCED messages are logged first. Then a load of LOAD_RATE messages per second begins, as `probe syslog`
    sends it. After a second, journald is asked to sync its files, unless the strategy has `syncs=False`. Then
    `by_day`, `at_noon` and `at_night` of the strategy run, and the load continues for two seconds. `iops` limits
    the device during the load, as in `time_limited_s`.

    Raises: KeeperError if a message does not arrive in the journal, or journald or an act fails.
    """
    journald = place.journald
    run("btrfs", "filesystem", "sync", place.volume.mountpoint)  # dirty data of the boot is no part of the load
    journald.age(1, messages=UNSYNCED, syncs=False)

    def act() -> None:
        time.sleep(1)
        if strategy.syncs:
            os.kill(journald.pid, SIGNAL_SYNC)
        for command in (strategy.by_day, strategy.at_noon, strategy.at_night):
            _act(place, command)
        time.sleep(2)

    asked = Namespace(rate=LOAD_RATE, size=LOAD_BYTES)
    load = syslog.at(Target.of(journald), asked, sys.maxsize)
    with closing(load), ThreadPoolExecutor(1) as pool:
        found, acting = next(load), pool.submit(time_limited_s, place.volume, iops, act)
        while not acting.done():
            next(load, None)  # None after journald ended, which `faults` reports
    acting.result()
    if found.losses or found.faults:
        raise KeeperError(" ".join([*found.losses, *found.faults]))
    return max(found.series[1].waits_ns()) / 1e9


def time_limited_s(volume: ScratchVolume, iops: int, work: Callable[[], object]) -> float:
    """Call `work`, and return its duration in seconds. Meanwhile the device is limited to `iops`; 0 means no limit.

    journalctl's program is read into memory first. The limit is removed also after an error of `work`.
    """
    run("journalctl", "--version")
    volume.throttle(iops)
    try:
        began_s = time.monotonic()
        work()
        return time.monotonic() - began_s
    finally:
        volume.throttle(0)
