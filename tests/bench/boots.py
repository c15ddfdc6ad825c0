# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""How long a host takes to boot from a slow disk, boot after boot, under one strategy and another.

    sudo unshare --mount python -m tests.bench.boots           # untouched, NOCOW, rotated, defragmented
    sudo unshare --mount python -m tests.bench.boots --boots 20 untouched rotate
    sudo unshare --mount python -m tests.bench.boots --boots 20 untouched service nocow
    sudo unshare --mount python -m tests.bench.boots --boots 30 --jobs 8 all
    sudo unshare --mount python -m tests.bench.boots --add 'mine:after=journalctl --rotate' --end cut mine
    sudo unshare --mount python -m tests.bench.boots --snapshots --boots 20
    sudo unshare --mount python -m tests.bench.boots --snapshots=24 --boots 20 --release trixie
    sudo unshare --mount python -m tests.bench.boots --retention --boots 150 --iops 0 --rest 8 untouched service

`service` is a host on which configs/install was run; `service-datacow` has Nocow=no, `service-shutdown`
only the unit that acts before a shutdown. With --retention journald may keep 200 MiB, the age of the
oldest entry that is left is shown, in boots, and by how many boots it is younger than on the host "untouched".

`all` has every row. What Baroncelli measured in 2014 ("Btrfs and systemd-journald", linux-btrfs and
systemd-devel): `defrag-after` is his defragmentation at the end of the boot, `before-flush`, `at-open`,
`at-growth` and `daily` his others; `no-fsync` and `no-fallocate` what he patched out of journald. The two that
run by a timer, `daily` and `btrfsmaintenance`, do so in the middle of a round's flushes.

With --snapshots a read-only snapshot of the root is taken before each boot, and stays; with --snapshots=N
one after each Nth part of the flushes, the last of them before the boot. The userspace times are compared
with those of the row "rotate". What the journal takes on disk is counted at the end by compsize(8) over the
journal and its copies in all snapshots, each extent once; free space would count the rest of the root, too.
Hosts with snapshots have larger disks, and journald's limits follow the size of the file system: the
disk is then a sparse one of 64G.

In a mount namespace of its own (unshare) nobody else's can keep our volumes in its cache.

Every strategy starts from an equal host on a disk of its own, and only the
boots are throttled: what happens in between is the same, and quick.

One round: boot from a cold, throttled disk; `after`; flushes of messages; a rest, as flushes are minutes
apart on a host and not milliseconds; `before`; the end
(poweroff, reboot, or a power cut, without `before`). Extents are those that the boot finds in system.journal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from tests.bench import figures
from tests.bench.figures import MIB, side_by_side
from tests.guest.host import Guest, missing
from tests.guest.steps import INSTALL, lend_checkout
from tests.volumes import disk_bytes, extents


class Strategy(NamedTuple):
    """What a host does about its journal: shell commands run in it, each as root; "" is nothing.

    `setup` runs once, after a first boot that is not counted; `between` in the middle of a round's flushes;
    `source` is copied to /opt/source before, which is this checkout where `install` is what
    /etc/journalkeeper.conf shall say. The disk is mounted with `options`; `note` is said in the table.
    """

    name: str
    nocow: bool = False
    setup: str = ""
    after: str = ""
    between: str = ""
    before: str = ""
    source: str = ""
    install: str | None = None
    options: str = ""
    note: str = ""


def drop_in(unit: str, *lines: str) -> str:
    """The shell's words that add lines to the [Service] of a unit of the guest."""
    words = " ".join(f"'{line}'" for line in ("[Service]", *lines))
    place = f"/etc/systemd/system/{unit}.d"
    return f"mkdir -p {place}; printf '%s\\n' {words} >{place}/bench.conf; systemctl daemon-reload"


def filtered(*lines: str) -> str:
    """The same for journald, which runs already."""
    return f"{drop_in('systemd-journald.service', *lines)}; systemctl restart systemd-journald.service"


def before_flush(command: str) -> str:
    """The same for a command that runs before journald opens its persistent files; there are none at the first boot."""
    return drop_in("systemd-journal-flush.service", f"ExecStartPre=-{command}")


DATACOW = "[Nocow]\nNocow=no\n"
DEFRAG = "btrfs filesystem defragment -f /var/log/journal/*/system.journal"
ACTIVE = "/var/log/journal/%m/system.journal"
AT_GROWTH = """cat >/usr/local/bin/at-growth <<'END'
#!/bin/bash
# what a defragmentation in journald's fallocate of 8 MiB would do, up to half a second later
file=$(echo /var/log/journal/*/system.journal)
size=$(stat -c %s "$file" || echo 0)
while sleep 0.5; do
    now=$(stat -c %s "$file" || echo 0)
    [ "$now" -le "$size" ] || btrfs filesystem defragment "$file"
    size=$now
done
END
chmod +x /usr/local/bin/at-growth
printf '%s\\n' '[Service]' 'ExecStart=/usr/local/bin/at-growth' '[Install]' 'WantedBy=multi-user.target' \\
    >/etc/systemd/system/at-growth.service
systemctl enable at-growth.service"""
STRATEGIES = (
    Strategy("untouched"),
    Strategy("nocow", nocow=True),
    Strategy("rotate", before="journalctl --rotate"),
    Strategy("defrag", before=f"journalctl --sync; {DEFRAG}"),
    Strategy("defrag-after", after=f"journalctl --sync; {DEFRAG}"),
    Strategy("rotate-after", after="journalctl --rotate"),
    Strategy("before-flush", setup=before_flush(f"/usr/bin/btrfs filesystem defragment -f {ACTIVE}")),
    Strategy(
        "at-open",
        setup=before_flush(f"/usr/bin/btrfs filesystem defragment {ACTIVE}"),
        note="as before-flush, without its -f",
    ),
    Strategy("at-growth", setup=AT_GROWTH),
    Strategy("autodefrag", options="autodefrag"),
    Strategy("daily", between=DEFRAG),
    Strategy(
        "btrfsmaintenance",
        between="find /var/log/journal -xdev -size +1M -type f -exec btrfs filesystem defragment -t 32m -f '{}' ';'",
    ),
    Strategy(
        "no-fsync",
        setup=filtered("SystemCallFilter=~fsync"),
        note="fsync fails with EPERM, which journald ignores; a round is so short that it is written once",
    ),
    Strategy(
        "no-fallocate",
        setup=filtered("SystemCallFilter=~fallocate", "SystemCallErrorNumber=EOPNOTSUPP"),
        note="libc writes a byte to each block instead",
    ),
    Strategy("service", install=""),
    Strategy("service-datacow", install=DATACOW),
    Strategy("service-shutdown", install=DATACOW, setup="systemctl disable --now journalkeeper.service"),
)
DEFAULT = ("untouched", "nocow", "rotate", "defrag")
WITH_SNAPSHOTS = ("untouched", "nocow", "rotate", "service", "service-datacow")
ALL = "all"
SIZE, SIZE_WITH_SNAPSHOTS = "16G", "64G"


class Boot(NamedTuple):
    """One boot: the extents it found, the seconds userspace and the journal's flush took, and the oldest entry.

    `kept` is how many boots ago that was logged.
    """

    extents: int
    userspace_s: float
    flush_s: float
    kept: int


class Life(NamedTuple):
    """All boots of one host, and what its journal took on disk in the end, in all snapshots too."""

    boots: list[Boot]
    disk_bytes: int


class Rounds(NamedTuple):
    """What happens, the same for every strategy; `snapshots` is how many are taken in a round."""

    release: str
    boots: int
    flushes: int
    messages: int
    iops: int
    end: str
    size: str
    retention: bool
    rest_s: float
    interval: str
    snapshots: int


def measure(strategy: Strategy, rounds: Rounds) -> Life:
    """Let one host live through the rounds."""
    found = []
    with Guest(rounds.release, nocow=strategy.nocow, size=rounds.size, options=strategy.options) as guest:
        prepare(guest, strategy, rounds)
        for number in range(rounds.boots):
            _flushes(guest, strategy, rounds, number)
            time.sleep(rounds.rest_s)
            _end(guest, strategy, rounds.end)
            if rounds.snapshots:
                guest.snapshot(f"{number}")
            found.append(cold_boot(guest, rounds.iops))
            print(f"{strategy.name}: boot {number + 1}: {found[-1]} {guest.blame()[:3]}", file=sys.stderr)
            guest.shell(strategy.after)
        guest.shell("journalctl --sync; sync")
        return Life(found, disk_bytes(*guest.volume.mountpoint.glob("host/var/log/journal"),
                                      *guest.volume.mountpoint.glob("snapshots/*/var/log/journal")))  # fmt: skip


def attempt(strategy: Strategy, rounds: Rounds) -> Life | None:
    """The same; None, with its complaint, for a host that failed: the others' boots took an hour."""
    try:
        return measure(strategy, rounds)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"{strategy.name}: {error}", file=sys.stderr)
        return None


def _flushes(guest: Guest, strategy: Strategy, rounds: Rounds, number: int) -> None:
    """Those of a round, with a snapshot after each part of them but the last: that one is taken before the boot."""
    parts = max(1, rounds.snapshots)
    for part in range(parts):
        if part:
            guest.snapshot(f"{number}-{part}")
        flushes = rounds.flushes * (part + 1) // parts - rounds.flushes * part // parts
        if strategy.between and part == parts // 2:
            guest.age(flushes // 2, rounds.messages)
            guest.shell(strategy.between)
            flushes -= flushes // 2
        guest.age(flushes, rounds.messages)


def cold_boot(guest: Guest, iops: int) -> Boot:
    """Boot a guest that is off from a cold, throttled disk."""
    active = guest.journal / "system.journal"
    before = extents(active) if active.exists() else 0
    guest.remount()  # and not drop_caches, which would reach the other hosts
    guest.throttle(iops)
    guest.boot(timeout_s=3600)
    guest.throttle(0)
    return Boot(before, guest.boot_seconds(), guest.flush_seconds(), _kept(guest))


def prepare(guest: Guest, strategy: Strategy, rounds: Rounds) -> None:
    """A first boot, and all that the strategy needs."""
    place = guest.root / "etc/systemd/journald.conf.d"
    place.mkdir(exist_ok=True)
    limit = "SystemMaxUse=200M\n" if rounds.retention else ""
    (place / "bench.conf").write_text(f"[Journal]\nSyncIntervalSec={rounds.interval}\n{limit}")
    if strategy.source:
        guest.copy_in(strategy.source, "/opt/source")
    if strategy.install is not None:
        lend_checkout(guest)
        (guest.root / "etc/journalkeeper.conf").write_text(strategy.install)
    guest.boot()
    if strategy.install is not None:
        guest.shell(INSTALL, timeout_s=600)
    guest.shell(f"{strategy.setup}\nsync")  # or a power cut finds nothing of it


def _kept(guest: Guest) -> int:
    """How many boots ago the oldest entry was logged that is still there."""
    return -min(
        int(line.split()[0])
        for line in guest.shell("journalctl --list-boots --no-pager").splitlines()
        if line.split()[0].lstrip("-").isdecimal()
    )  # 257 prints a heading


def _end(guest: Guest, strategy: Strategy, how: str) -> None:
    if how == "cut":
        guest.shell("systemd-cat echo the last words, which make the journal ONLINE; sleep 0.3")
        guest.power_cut()  # of which nobody is told before
    else:
        guest.shell(strategy.before)
        guest.poweroff(how=how)


def table(results: dict[str, Life]) -> str:
    """The rows of all strategies, a column a boot, and the medians; what was asked is beside "rotate"."""
    lines = [f"{'strategy':16}  {'':11}  {'median':>8}  {'last':>8}  each boot"]
    for name, (boots, used_bytes) in results.items():
        for word, values, form in (
            ("extents", [boot.extents for boot in boots], "{:.0f}"),
            ("userspace s", [boot.userspace_s for boot in boots], "{:.2f}"),
            ("flush s", [boot.flush_s for boot in boots], "{:.2f}"),
            ("boots kept", [boot.kept for boot in boots], "{:.0f}"),
        ):
            lines.append(_row(name, word, values, form))
        if "rotate" in results:
            lines.append(_beside_rotate(name, boots, results["rotate"].boots))
        if "untouched" in results and name != "untouched":
            lines.append(_younger(name, boots, results["untouched"].boots))
        beside = f"{used_bytes / results['untouched'].disk_bytes:.2f} x untouched" if "untouched" in results else ""
        lines.append(f"{name:16}  {'disk, MiB':11}  {'':8}  {used_bytes / MIB:8.1f}  {beside}".rstrip())
    return "\n".join(lines)


def _row(name: str, word: str, values: Sequence[float], form: str) -> str:
    each = " ".join(f"{form.format(value):>6}" for value in values)
    median, last = form.format(statistics.median(values)), form.format(values[-1])
    return f"{name:16}  {word:11}  {median:>8}  {last:>8}  {each}"


def _beside_rotate(name: str, boots: list[Boot], rotated: list[Boot]) -> str:
    """The median and the last of the userspace times, as multiples of those of the row "rotate"."""
    times, others = ([boot.userspace_s for boot in some] for some in (boots, rotated))
    median, last = statistics.median(times) / statistics.median(others), times[-1] / others[-1]
    return f"{name:16}  {'x rotate':11}  {median:8.2f}  {last:8.2f}"


def _younger(name: str, boots: list[Boot], untouched: list[Boot]) -> str:
    """By how many boots the oldest entry is younger than on the untouched host, in each round, and the worst."""
    younger = [other.kept - boot.kept for boot, other in zip(boots, untouched, strict=True)]
    return f"{_row(name, 'younger by', younger, '{:.0f}')}; worst {max(younger)}"


def added(text: str) -> Strategy:
    """A strategy as --add takes it: NAME:KEY=VALUE, further ones after a second colon pair "::"."""
    name, _, rest = text.partition(":")
    fields = dict(field.split("=", 1) for field in rest.split("::") if field)
    nocow = fields.pop("nocow", "no") == "yes"
    return Strategy(name, nocow=nocow, **fields)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = figures.parser(__doc__)
    parser.add_argument("strategy", nargs="*", help=f"which ones, or {ALL} (default: {' '.join(DEFAULT)})")
    parser.add_argument("--add", action="append", default=[], type=added, metavar="NAME:KEY=VALUE[::KEY=VALUE]",
                        help="one more; keys: setup, after, between, before, nocow=yes, source=DIR")  # fmt: skip
    parser.add_argument("--release", default="bookworm", help="of Debian (default: %(default)s)")
    parser.add_argument("--boots", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--flushes", type=int, default=100, help="between boots (default: %(default)s)")
    parser.add_argument("--messages", type=int, default=40, help="a flush (default: %(default)s)")
    parser.add_argument("--iops", type=int, default=150, help="of the disk during a boot (default: %(default)s)")
    parser.add_argument("--end", choices=("poweroff", "reboot", "cut"), default="poweroff", help="of a round")
    parser.add_argument("--size", help="of the sparse disk; with less than 10G journald's files are smaller than 128M, "
                        f"and rotate sooner (default: {SIZE}, with --snapshots {SIZE_WITH_SNAPSHOTS})")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="hosts at the same time (default: %(default)s)")
    parser.add_argument("--snapshots", type=int, nargs="?", const=1, default=0, metavar="N",
                        help="of the root in each round (default: none, without N one)")  # fmt: skip
    parser.add_argument("--retention", action="store_true", help="SystemMaxUse=200M")
    parser.add_argument("--rest", type=float, default=20, help="seconds before the end (default: %(default)s)")
    parser.add_argument("--interval", default="5s", help="SyncIntervalSec= (default: %(default)s): a service that has "
                        "just been started knows of no timer before it has seen a flush")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main() -> int:
    """Measure and print."""
    parser = arguments()
    words = parser.parse_args()
    if reason := missing():
        parser.exit(1, f"boots: {reason}\n")
    known = {strategy.name: strategy for strategy in (*STRATEGIES, *words.add)}
    names = words.strategy or (WITH_SNAPSHOTS if words.snapshots else DEFAULT)
    if names == [ALL]:
        names = list(known)
    size = words.size or (SIZE_WITH_SNAPSHOTS if words.snapshots else SIZE)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no strategy {unknown[0]}; there are: {' '.join(known)}")
    rounds = Rounds(words.release, words.boots, words.flushes, words.messages, words.iops, words.end, size,
                    words.retention, words.rest, words.interval, words.snapshots)  # fmt: skip
    done = side_by_side(names, lambda name: attempt(known[name], rounds), words.jobs)
    results = {name: life for name, life in done.items() if life is not None}
    if words.json:
        print(json.dumps({name: {"boots": [boot._asdict() for boot in boots], "disk_bytes": used_bytes}
                          for name, (boots, used_bytes) in results.items()}))  # fmt: skip
    else:
        print(f"{rounds.release}, {rounds.flushes} flushes of {rounds.messages}, {rounds.iops} IOPS, {rounds.end}, "
              f"a disk of {rounds.size}, {rounds.snapshots} snapshots a round")  # fmt: skip
        print(table(results))
        for name in names:
            if known[name].note:
                print(f"{name}: {known[name].note}")
    return 0 if len(results) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
