# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""A week of a host that is looked after by snapper and btrbk, with their own snapshots and their own clean-up.

    sudo unshare --mount python -m tests.bench.week                       # 25 minutes
    sudo unshare --mount python -m tests.bench.week --days 1 --rest 2     # 4 minutes
    sudo unshare --mount python -m tests.bench.week service untouched     # and what it would be without

A guest has Debian's snapper and btrbk. A day is 24 hours of some flushes and a rest, in which the service
acts; after each hour snapper takes its timeline's snapshot; once a day its three clean-ups run with the
limits of its default configuration, and `btrbk run` takes a snapshot and deletes what its retention no longer
keeps; twice a day the guest shuts down and boots from a cold, throttled disk, and snapper takes its snapshot
of a boot. None is taken by us, and none deleted.

What is simulated is time. A guest has the clock of this machine, which nobody sets: snapper and btrbk, whose
clean-up goes by the age of snapshots, are run under libfaketime with the hour that it is in the simulated
week, by the commands that their timers start, and the timers are masked. The service and journald have the
real clock: libfaketime would have it that the times of all files change, or differ from those in the journal.
For the service a day is as much shorter as it is here: RotationsPerDay= and BytesPerDay= are as many times
larger (1000 rotations at the most, which the configuration allows), and files settle in seconds. What it
does once a day it does once in the whole bench. An hour has fewer flushes than 12 where --flushes says so.

Rewritten twice is a file whose name stands twice in the record as done, archives only: ranges of an
active file are rewritten when they are fragmented anew.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from collections import Counter
from typing import Any, NamedTuple

from tests.bench.boots import STRATEGIES, Boot, Rounds, cold_boot, prepare
from tests.bench.day import DAY_S, HOSTS, SIZE, hurried, outcomes, tool, tool_lines, tools
from tests.bench.figures import Figure, add_options, at_most, count_is, mib, parser, show, side_by_side
from tests.guest.host import Guest, missing
from tests.volumes import disk_bytes

HOURS = 24
BOOT_HOURS = (11, 23)
"""After which the guest boots."""

WORK_S, BOOT_S = 1.5, 8.0
"""What an hour's flushes and snapshots, and a boot, take roughly: by how much a day is shorter follows from it."""

TOOLS = """
apt-get -q update
apt-get install -qy --no-install-recommends snapper btrbk faketime
systemctl mask --now snapper-boot.timer snapper-timeline.timer snapper-cleanup.timer btrbk.timer
snapper --no-dbus --config root create-config /
mkdir /.btrbk
cat >/etc/btrbk/btrbk.conf <<END
snapshot_dir /.btrbk
snapshot_preserve_min latest
snapshot_preserve 3d
subvolume /
  snapshot_name root
END
"""
SNAPPER = "snapper --no-dbus --config root"
TIMELINE = f"{SNAPPER} create --cleanup-algorithm timeline --description timeline"
BOOTED = f"{SNAPPER} create --cleanup-algorithm number --description boot"
DAILY = f"{SNAPPER} cleanup number\n{SNAPPER} cleanup timeline\n{SNAPPER} cleanup empty-pre-post\nbtrbk --quiet run"
"""What snapper-timeline.service, snapper-boot.service, and snapper-cleanup.service and btrbk.service do."""

LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
COPIES = ("host/.snapshots/*/snapshot", "host/.btrbk/*")
"""Where the snapshots are, below the volume."""


class Week(NamedTuple):
    """The boots of one host, what the record has, the journal's bytes on disk in all snapshots, and these at last."""

    boots: list[Boot]
    outcomes: list[dict[str, Any]]
    disk_bytes: int
    snapshots_taken: int
    snapshots_left: int


def in_the_week(hour: int, commands: str) -> str:
    """The script that runs commands at an hour of the simulated week."""
    fake = f"LD_PRELOAD={LIBRARY} FAKETIME=+{hour}h FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1"
    return "\n".join(f"{fake} {command}" for command in commands.splitlines())


def live(asked: Namespace, name: str) -> Week:
    """One host's week."""
    strategy = next(one for one in STRATEGIES if one.name == name)
    day_s = HOURS * (asked.rest + WORK_S) + len(BOOT_HOURS) * BOOT_S
    factor = DAY_S / day_s
    if strategy.install is not None:
        hurry = hurried(factor) + f"BytesPerDay={round(factor)}G\n"
        strategy = strategy._replace(install=strategy.install + hurry + asked.config)
    rounds = Rounds(asked.release, 0, asked.flushes, asked.messages, asked.iops, "poweroff", SIZE,
                    retention=False, rest_s=asked.rest, interval=asked.interval, snapshots=0)  # fmt: skip
    boots: list[Boot] = []
    with Guest(asked.release, nocow=strategy.nocow, size=SIZE) as guest:
        prepare(guest, strategy._replace(setup=f"{strategy.setup}\n{TOOLS}"), rounds)
        taken = 0
        for hour in range(asked.days * HOURS):
            guest.age(asked.flushes, asked.messages)
            time.sleep(asked.rest)
            guest.shell(in_the_week(hour, TIMELINE))
            taken += 1
            if hour % HOURS == HOURS - 1:
                guest.shell(in_the_week(hour, DAILY))
                taken += 1
            if hour % HOURS in BOOT_HOURS:
                guest.shell(strategy.before)
                guest.poweroff()
                boots.append(cold_boot(guest, asked.iops))
                print(f"{name}: hour {hour}: {boots[-1]}", file=sys.stderr)
                guest.shell(in_the_week(hour, BOOTED))
                taken += 1
        guest.shell("journalctl --sync; sync")
        top = guest.volume.mountpoint
        copies = [path for pattern in COPIES for path in top.glob(f"{pattern}/var/log/journal")]
        found = outcomes(guest) if strategy.install is not None else []
        return Week(boots, found, disk_bytes(guest.root / "var/log/journal", *copies), taken, len(copies))


def twice(found: list[dict[str, Any]]) -> list[str]:
    """The archives that were rewritten more than once."""
    times = Counter(one["path"] for one in found if tool(one) == "compaction" and one["result"] == "done")
    return [path for path, count in times.items() if count > 1]


def figures(found: dict[str, Week]) -> list[Figure]:
    """The rows that were asked for, and what the snapshots cost."""
    rows = []
    for name, week in found.items():
        times = [boot.userspace_s for boot in week.boots]
        rows += [
            Figure(f"{name}: first boot, userspace, s", f"{times[0]:.2f}"),
            Figure(f"{name}: median", f"{statistics.median(times):.2f}"),
            at_most(f"{name}: slowest / first", max(times) / times[0], 1.5),
            count_is(f"{name}: files rewritten twice", len(twice(week.outcomes)), 0),
            Figure(f"{name}: journal on disk, with all snapshots, MiB", mib(week.disk_bytes).split()[0]),
        ]
    return rows


def notes(name: str, week: Week) -> list[str]:
    """What became of the week in lines."""
    lines = [
        f"{name}: userspace s {' '.join(f'{boot.userspace_s:.2f}' for boot in week.boots)}",
        f"{name}: / first    {' '.join(f'{boot.userspace_s / week.boots[0].userspace_s:.2f}' for boot in week.boots)}",
        f"{name}: extents    {' '.join(str(boot.extents) for boot in week.boots)}",
        f"{name}: {week.snapshots_taken} snapshots taken, {week.snapshots_left} left",
    ]
    if week.outcomes:
        lines += tool_lines(week.outcomes)
        reasons = Counter((tool(one), one["result"], one["reason"]) for one in week.outcomes)
        lines += [f"{count} x {' '.join(words)}" for words, count in sorted(reasons.items())]
        idle = [which for which, one in tools(week.outcomes).items() if not one.extents_spared]
        lines += [f"brought nothing on this host: {', '.join(idle)}"] if idle else []
        lines += [f"rewritten twice: {path}" for path in twice(week.outcomes)]
    return lines


def main() -> int:
    """Measure and print."""
    known = [one.name for one in STRATEGIES]
    words = parser(__doc__)
    words.add_argument("strategy", nargs="*", help="of tests.bench.boots (default: service)")
    words.add_argument("--days", type=int, default=7, help="(default: %(default)s)")
    words.add_argument("--flushes", type=int, default=12, help="an hour (default: %(default)s)")
    words.add_argument("--rest", type=float, default=5, help="seconds after an hour's flushes (default: %(default)s)")
    words.add_argument("--iops", type=int, default=150, help="of the disk during a boot; 0 for as many as it has")
    add_options(words, HOSTS)
    asked = words.parse_args()
    names = asked.strategy or ["service"]
    if unknown := [name for name in names if name not in known]:
        words.error(f"no strategy {unknown[0]}; there are: {' '.join(known)}")
    if reason := missing():
        words.exit(1, f"week: {reason}\n")
    found = side_by_side(names, lambda name: live(asked, name), asked.jobs)
    said = [f"{asked.release}, {asked.days} days of 24 x {asked.flushes} flushes, {asked.iops} IOPS at boots"]
    show("A week", [*said, *(line for name, week in found.items() for line in notes(name, week))], figures(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
