# SPDX-License-Identifier: LGPL-2.1-or-later
"""Age a journal under each of several strategies, on scratch volumes on one disk, and measure the costs.

All strategies get the same messages and the same flushes. All times are those of cold reads: the volume is mounted anew
and its image is dropped from the page cache.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.btrfs import disk, extent_count
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.schema import Count, Seconds

from .bed import Bed, bed
from .scratch_volume import DIE_WITH_US, ScratchVolume, run
from .writes import count_logged

SETTINGS: Final = ("SystemMaxFileSize=128M", "SystemMaxUse=2G")
SIZE: Final = "8G"
DAYS: Final = 4
MESSAGES: Final = 40
"""The number of messages of a flush."""

FLUSHES_A_STEP: Final = 2 * DAYS
"""The number of flushes between two commits of the filesystem's transaction, which trigger autodefrag."""

DEFAULT_IOPS: Final = 150
"""The rate of a small cloud volume or a 7200-rpm disk: on an SSD, times are too short to compare strategies."""

BOOT_MESSAGES: Final = 1700
"""The number of messages before the flush of a boot: 2 MiB of journal objects."""

KEEPER_CONF: Final = "[Nocow]\nNocow=no\n[Window]\nPressureMax=100%\n"
"""Checksums stay, and other load on this machine does not delay the work."""

PACKAGE: Final = os.fspath(Path(__file__).parents[2])
Report = Callable[[str], None]


class Strategy(NamedTuple):
    """A way in which a host treats its journal, as shell commands in journald's mount namespace.

    `by_day` runs between the flushes, `at_noon` once a day, and `at_night` before each shutdown. journald syncs at one
    of `every` flushes. `settings` are lines of journald.conf(5).
    """

    name: str
    by_day: str = ""
    at_noon: str = ""
    at_night: str = ""
    nocow: bool = False
    options: str = "defaults"
    every: int = 1
    settings: tuple[str, ...] = ()


DEFRAGMENT: Final = "btrfs filesystem defragment -f /var/log/journal/*/system.journal"
MAINTENANCE: Final = "find /var/log/journal -xdev -size +1M -type f -exec btrfs filesystem defragment -t 32m -f {} ';'"
"""The command of btrfs-defrag.sh (btrfsmaintenance 0.5) for a path of BTRFS_DEFRAG_PATHS."""

KEEPER: Final = f"'{sys.executable}' -m journalkeeper defrag -D /var/log/journal --config \"$STATE_DIRECTORY/conf\""
STRATEGIES: Final = (
    Strategy("untouched"),
    Strategy("NOCOW", nocow=True),
    Strategy("fewer flushes", every=4),
    Strategy("small files", settings=("SystemMaxFileSize=32M",)),
    Strategy("autodefrag", options="autodefrag"),
    Strategy("defrag", at_night=DEFRAGMENT),
    Strategy("btrfsmaintenance", at_noon=MAINTENANCE),
    Strategy("rotate", at_night="journalctl --rotate"),
    Strategy("keeper", by_day=f"{KEEPER} --now", at_night=f"{KEEPER} --before-shutdown"),
)


class Measured(NamedTuple):
    """The measurements of one strategy.

    `flush_s` is the time of the boot flush after the last day. `last_s` and `read_s` are cold reads of ten and of all
    entries on the last evening, when all files have `extents` and `disk_bytes`. `active_extents` are those that the
    boot finds.
    """

    strategy: str
    flush_s: Seconds
    last_s: Seconds
    read_s: Seconds
    extents: Count
    active_extents: Count
    disk_bytes: Count
    written_bytes: Count
    checksummed: bool


class LabAnswer(NamedTuple):
    """The answer of `lab compare`. Each strategy got the messages of `flushes` flushes, 40 each."""

    directory: str
    iops: Count | None
    """null: not limited."""
    flushes: Count
    logged_bytes: Count
    """All messages in the Journal Export Format."""
    strategies: tuple[Measured, ...]


def compare(directory: Path, wanted: int, iops: int | None, report: Report) -> LabAnswer:
    """Let a private journald write days of a journal under each strategy, each on a volume of its own below
    `directory`.

    "untouched" is flushed until its active file has `wanted` extents, and the others get as many flushes. `iops` limits
    the device in timed steps: 0 is no limit, None DEFAULT_IOPS where the kernel can limit. `report` gets a text for
    each step.

    Raises: KeeperError with the error message of the tool that failed; KeeperError or OSError if it cannot limit.
    """
    flushes = logged = 0
    rows = []
    for number, strategy in enumerate(STRATEGIES, 1):

        def report_step(what: str, head: str = f"{number}/{len(STRATEGIES)} {strategy.name}") -> None:
            report(f"{head}: {what}")

        with bed(*SETTINGS, *strategy.settings, size=SIZE, options=strategy.options, parent=directory) as place:
            (place.volume.base / "conf").write_text(KEEPER_CONF)
            if strategy.nocow:
                run("chattr", "+C", place.journald.journal)
                place.journald.rotate().unlink()
            if not flushes:
                iops = find_throttle(place.volume, iops)
                flushes = age_until(place, wanted, report_step)
                logged = count_logged(directory=str(place.journald.journal))
            else:
                _simulate_days(place, strategy, flushes, report_step)
            report_step("measuring")
            rows.append(_measure_strategy(place, strategy, iops or 0))
    return LabAnswer(str(directory), iops or None, flushes, logged, tuple(rows))


def find_throttle(volume: ScratchVolume, iops: int | None) -> int:
    """Try `iops` (None: DEFAULT_IOPS), remove the limit again, and return it, or 0 if None and it cannot be set.

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
    """Flush and commit in steps of FLUSHES_A_STEP, at least one, until the active file has `wanted` extents.

    Return the flushes. Raises: KeeperError or OSError as `PrivateJournald.age`.
    """
    flushes = count = 0
    while count < wanted:
        _log_and_commit(place, FLUSHES_A_STEP, STRATEGIES[0])
        flushes += FLUSHES_A_STEP
        count = _count_extents(place.journald.active, sync=False)
        report(f"{flushes} flushes, {count} of {wanted} extents")
    return flushes


def _simulate_days(place: Bed, strategy: Strategy, flushes: int, report: Report) -> None:
    """Make about `flushes` flushes in DAYS days, `by_day` after each step, `at_noon`, each `at_night` but the last."""
    half = flushes // (2 * DAYS)
    for number in range(2 * DAYS):
        if number:
            report("acting")
            _run_act(place, strategy.at_noon if number % 2 else strategy.at_night)
        for done in range(0, half, FLUSHES_A_STEP):
            report(f"{number * half + done} of {flushes} flushes")
            _log_and_commit(place, min(FLUSHES_A_STEP, half - done), strategy)
            _run_act(place, strategy.by_day)


def _run_act(place: Bed, command: str) -> None:
    """Run a shell command, unless "", in journald's namespaces, with the environment that `journalkeeper` needs."""
    if command:
        environment = ("env", f"STATE_DIRECTORY={place.volume.base}", f"PYTHONPATH={PACKAGE}")
        run(*place.journald.inside, *DIE_WITH_US, *environment, "sh", "-c", command)


def _log_and_commit(place: Bed, flushes: int, strategy: Strategy) -> None:
    """Log the messages of so many flushes with one sync for each `strategy.every`, at least one. Commit the volume."""
    syncs = max(1, flushes // strategy.every)
    place.journald.age(syncs, MESSAGES * flushes // syncs)
    run("btrfs", "filesystem", "sync", place.volume.mountpoint)


def _measure_strategy(place: Bed, strategy: Strategy, iops: int) -> Measured:
    """Measure all files and two cold reads, then, after the last `at_night`, active extents, writes and boot flush."""
    # in this order, because each step changes the files that the steps before it measure
    volume, journald = place.volume, place.journald
    journald.stop()
    counted = used = 0
    for path in journald.journal.iterdir():
        counted += _count_extents(path)
        with path.open("rb") as file:
            used += disk.read_disk_bytes(file.fileno()) or 0
    last_s = _read_cold_s(place, iops, "10")
    read_s = _read_cold_s(place, iops, "all")
    journald.start()
    _run_act(place, strategy.at_night)
    journald.stop()
    found = _count_extents(journald.active)
    volume.remount()
    written = volume.count_written_bytes()
    journald.boot(BOOT_MESSAGES)
    flush_s = time_limited_s(volume, iops, journald.flush)
    return Measured(strategy.name, flush_s, last_s, read_s, counted, found, used, written, not strategy.nocow)


def _read_cold_s(place: Bed, iops: int, lines: str) -> float:
    """Return the seconds of a read of `lines` entries ("all", a number) after a new mount. journald must be stopped."""
    command = f'journalctl --quiet --no-pager --directory="$0" --lines={lines} >/dev/null'
    place.volume.remount()
    return time_limited_s(place.volume, iops, lambda: run("sh", "-c", command, place.journald.journal))


def _count_extents(path: Path, *, sync: bool = True) -> int:
    with path.open("rb") as file:
        return extent_count.count(file.fileno(), sync=sync)


def time_limited_s(volume: ScratchVolume, iops: int, work: Callable[[], object]) -> float:
    """Load journalctl, call `work` while the device is limited to `iops` (0: no limit), and return its seconds."""
    run("journalctl", "--version")
    volume.throttle(iops)
    try:
        began_s = time.monotonic()
        work()
        return time.monotonic() - began_s
    finally:
        volume.throttle(0)
