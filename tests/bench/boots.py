# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""Measure how long a host takes to boot from a slow disk, boot after boot, under several strategies.

    sudo python -m tests.bench.boots           # untouched, NOCOW, rotated, defragmented
    sudo python -m tests.bench.boots --boots 20 untouched service nocow
    sudo python -m tests.bench.boots --boots 30 --jobs 8 all
    sudo python -m tests.bench.boots --snapshots 24 --boots 20 --release trixie

`service` is a host on which configs/install was run; `service-datacow` has Nocow=no, and the journal of `service-nocow`
is NOCOW, as on a stock host. That of `own` and `own-service` is in a NOCOW subvolume of its own. `all` has every row.

Each strategy starts from an equal host on its own disk, and only the boots are throttled. One round is: flushes of
messages; a rest, because flushes are minutes apart on a host; `before`; the poweroff; a boot from a cold, throttled
disk. `between` runs in the middle of the flushes. Extents are those that the boot finds in system.journal.

With --snapshots N, a read-only snapshot of the root is taken after each Nth part of the flushes, the last one before
the boot, and stays. compsize(8) counts the disk usage at the end over the journal and its copies in all snapshots, each
extent once.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple

from journalkeeper.probe.compare import DEFRAGMENT, MAINTENANCE
from journalkeeper.probe.scratch_volume import run
from tests.bench.figures import MIB, Option, parser, side_by_side, start
from tests.guest.host import Guest, missing
from tests.guest.steps import INSTALL, lend_checkout
from tests.volumes import disk_bytes, extents


class Strategy(NamedTuple):
    """A way in which a host treats its journal, as shell commands that root runs in the host; "" is nothing.

    `setup` runs once, after a first boot that is not counted. If `config` is not None, journalkeeper is installed with
    this configuration. `options` are those of the mount.
    """

    name: str
    nocow: bool = False
    setup: str = ""
    between: str = ""
    before: str = ""
    config: str | None = None
    options: str = ""


OWN = """
mv /var/log/journal /var/log/journal.old
btrfs subvolume create /var/log/journal
chown --reference=/var/log/journal.old /var/log/journal
chmod --reference=/var/log/journal.old /var/log/journal
chattr +C /var/log/journal
rm -r /var/log/journal.old
mkdir -p "/var/log/journal/$(cat /etc/machine-id)"
systemctl restart systemd-journald
journalctl --flush
"""

DATACOW = "[Nocow]\nNocow=no\n"
STRATEGIES = {
    one.name: one
    for one in (
        Strategy("untouched"),
        Strategy("nocow", nocow=True),
        Strategy("rotate", before="journalctl --rotate"),
        Strategy("defrag", before=f"journalctl --sync; {DEFRAGMENT}"),
        Strategy("autodefrag", options="autodefrag"),
        Strategy("daily", between=DEFRAGMENT),
        Strategy("btrfsmaintenance", between=MAINTENANCE),
        Strategy("service", config=""),
        Strategy("service-datacow", config=DATACOW),
        Strategy("service-nocow", nocow=True, config=""),
        Strategy("own", setup=OWN),
        Strategy("own-service", setup=OWN, config=""),
    )
}
DEFAULT = ("untouched", "nocow", "rotate", "defrag")
WITH_SNAPSHOTS = ("untouched", "nocow", "rotate", "service", "service-datacow", "own", "own-service")
MESSAGES = 40
INTERVAL = "5s"
"""SyncIntervalSec=: a service that was just started knows no timer before it has seen a flush."""


class Boot(NamedTuple):
    """One boot: the extents that it found, the seconds of userspace and of the journal's flush, and the boots kept."""

    extents: int
    userspace_s: float
    flush_s: float
    kept: int


class Life(NamedTuple):
    """All boots of one host, the disk usage of its journal at the end in all snapshots, and what the service wrote."""

    boots: list[Boot]
    disk_bytes: int
    written_bytes: int


def live(strategy: Strategy, asked: Namespace) -> Life:
    """Let one host live through the rounds."""
    found = []
    # hosts with snapshots have larger disks, and journald's limits follow the size of the filesystem
    size = "64G" if asked.snapshots else "16G"
    with Guest(asked.release, nocow=strategy.nocow, size=size, options=strategy.options) as guest:
        prepare(guest, strategy)
        for number in range(asked.boots):
            _flush(guest, strategy, asked, number)
            time.sleep(asked.rest)
            guest.shell(strategy.before)
            guest.poweroff()
            if asked.snapshots:
                guest.snapshot(f"{number}")
            found.append(boot_cold(guest, asked.iops))
            print(f"{strategy.name}: boot {number + 1}: {found[-1]}", file=sys.stderr)
        guest.shell("journalctl --sync; sync")
        top = guest.volume.mountpoint
        used = disk_bytes(*top.glob("host/var/log/journal"), *top.glob("snapshots/*/var/log/journal"))
        outcomes = read_outcomes(guest) if strategy.config is not None else []
        return Life(found, used, sum(one["bytes_written"] for one in outcomes))


def live_or_fail(strategy: Strategy, asked: Namespace) -> Life | None:
    """Return the life of one host; None, after its error message, if the host failed."""
    try:
        return live(strategy, asked)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"{strategy.name}: {error}", file=sys.stderr)
        return None


def prepare(guest: Guest, strategy: Strategy, settings: str = "") -> None:
    """Boot a new guest, and set up the strategy. `settings` are lines for journald.conf."""
    place = guest.root / "etc/systemd/journald.conf.d"
    place.mkdir(exist_ok=True)
    # its name sorts before that of the drop-in of `retention --apply`
    (place / "10-bench.conf").write_text(f"[Journal]\nSyncIntervalSec={INTERVAL}\n{settings}")
    if strategy.config is not None:
        lend_checkout(guest)
        (guest.root / "etc/journalkeeper.conf").write_text(strategy.config)
    guest.boot()
    if strategy.config is not None:
        guest.shell(INSTALL, timeout_s=600)
    guest.shell(f"{strategy.setup}\nsync")  # a power cut would take it back


def _flush(guest: Guest, strategy: Strategy, asked: Namespace, number: int) -> None:
    """Make the flushes of a round, and a snapshot after each part of them but the last."""
    parts = max(1, asked.snapshots)
    for part in range(parts):
        if part:
            guest.snapshot(f"{number}-{part}")
        flushes = asked.flushes * (part + 1) // parts - asked.flushes * part // parts
        if strategy.between and part == parts // 2:
            guest.age(flushes // 2, MESSAGES)
            guest.shell(strategy.between)
            flushes -= flushes // 2
        guest.age(flushes, MESSAGES)


def boot_cold(guest: Guest, iops: int) -> Boot:
    """Boot a guest that is off from a cold, throttled disk."""
    active = guest.journal / "system.journal"
    before = extents(active) if active.exists() else 0
    guest.remount()  # drop_caches would reach the other hosts
    guest.volume.throttle(iops)
    guest.boot(timeout_s=3600)
    guest.volume.throttle(0)
    return Boot(before, guest.boot_seconds(), guest.flush_seconds(), count_boots(guest))


def read_cold(guest: Guest, iops: int) -> float:
    """Return the seconds of `journalctl -n 10` on the journal of a guest that is off, from a cold, throttled disk."""
    guest.remount()
    guest.volume.throttle(iops)
    began_s = time.monotonic()
    run("journalctl", "--directory", guest.root / "var/log/journal", "--lines=10", "--quiet")
    took_s = time.monotonic() - began_s
    guest.volume.throttle(0)
    return took_s


def count_boots(guest: Guest) -> int:
    """Return the number of boots whose entries the journal has."""
    return len(guest.shell("journalctl --list-boots --no-pager --quiet").splitlines())


def read_outcomes(guest: Guest) -> list[dict[str, Any]]:
    """Return the outcomes in the history of a guest, the oldest first."""
    outcomes: list[dict[str, Any]] = json.loads(guest.shell("journalkeeper history -j"))["outcomes"]
    return outcomes


def format_table(lives: dict[str, Life]) -> str:
    """Return the rows of all strategies with a column for each boot, the median, and the last boot."""
    lines = [f"{'strategy':16}  {'':11}  {'median':>8}  {'last':>8}  each boot"]
    for name, (boots, used_bytes, written_bytes) in lives.items():
        lines.append(_row(name, "extents", [boot.extents for boot in boots], ".0f"))
        lines.append(_row(name, "userspace s", [boot.userspace_s for boot in boots], ".2f"))
        lines.append(_row(name, "flush s", [boot.flush_s for boot in boots], ".2f"))
        lines.append(_row(name, "boots kept", [boot.kept for boot in boots], ".0f"))
        lines.append(f"{name:16}  {'disk, MiB':11}  {'':8}  {used_bytes / MIB:8.1f}")
        lines.append(f"{name:16}  {'written, MiB':12} {'':8}  {written_bytes / MIB:8.1f}")
    return "\n".join(lines)


def _row(name: str, word: str, values: Sequence[float], form: str) -> str:
    each = " ".join(f"{value:6{form}}" for value in values)
    return f"{name:16}  {word:11}  {statistics.median(values):8{form}}  {values[-1]:8{form}}  {each}"


OPTIONS = {
    "release": Option("bookworm", "of Debian"),
    "boots": Option(4, "of each host"),
    "flushes": Option(100, "between boots"),
    "iops": Option(150, "of the disk during a boot; 0 for as many as it has"),
    "snapshots": Option(0, "of the root in each round"),
    "rest": Option(20.0, "seconds before the end of a round"),
    "jobs": Option(2, "hosts at the same time"),
}


def main() -> int:
    """Measure, print the table, and return 0 if no host failed."""
    words = parser(__doc__, OPTIONS)
    words.add_argument("strategy", nargs="*", help=f"which ones, or all (default: {' '.join(DEFAULT)})")
    asked = start(words, missing)
    if unknown := set(asked.strategy) - {*STRATEGIES, "all"}:
        words.error(f"unknown: {' '.join(unknown)}; there are: {' '.join(STRATEGIES)}")
    names = asked.strategy or (WITH_SNAPSHOTS if asked.snapshots else DEFAULT)
    names = list(STRATEGIES) if "all" in names else names
    found = side_by_side(names, lambda name: live_or_fail(STRATEGIES[name], asked), asked.jobs)
    lives = {name: life for name, life in found.items() if life is not None}
    print(f"{asked.release}, {asked.flushes} flushes and {asked.snapshots} snapshots a round, {asked.iops} IOPS")
    print(format_table(lives))
    return int(len(lives) < len(found))


if __name__ == "__main__":
    sys.exit(main())
