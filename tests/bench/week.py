# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""Measure a week of a host on which snapper and btrbk make and delete snapshots.

    sudo python -m tests.bench.week                       # 25 minutes
    sudo python -m tests.bench.week --days 1 --rest 2     # 4 minutes

A guest has Debian's snapper and btrbk. A day is 24 hours of some flushes and a rest, in which the service acts. After
each hour snapper takes its timeline's snapshot. Once a day its three clean-ups run with the limits of its default
configuration, and `btrbk run` takes a snapshot and deletes what its retention no longer keeps. Twice a day the guest
shuts down and boots from a cold, throttled disk, and snapper takes its snapshot of a boot.

Time is simulated: snapper and btrbk, whose clean-up goes by the age of snapshots, run under libfaketime with the hour
of the simulated week, by the commands that their timers start, and the timers are masked. The service and journald have
the real clock, because libfaketime would change the times of all files. For the service a day is as much shorter as it
is here: RotationsPerDay= and BytesPerDay= are as many times larger (1000 rotations at most), and files settle in
seconds. What the service does once a day happens once in the whole bench.

An archive is rewritten twice if its name is twice in the history as done.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.boots import MESSAGES, STRATEGIES, Boot, boot_cold, prepare, read_outcomes
from tests.bench.figures import Figure, Option, at_most, count_is, mib, parser, show, start
from tests.guest.host import Guest, missing
from tests.volumes import disk_bytes

DAY_S, HOURS = 86400, 24
BOOT_HOURS = (11, 23)
"""After which the guest boots."""

WORK_S, BOOT_S = 1.5, 8.0
"""The approximate seconds of an hour's flushes and snapshots, and of a boot: they give the factor of a day."""

ROTATIONS_PER_DAY, ROTATIONS_MOST = 4, 1000
"""The default of RotationsPerDay=, and the most that it may be."""

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
    """The boots of one host, the outcomes in its history, the disk usage of its journal in all snapshots, and these."""

    boots: list[Boot]
    outcomes: list[dict[str, Any]]
    disk_bytes: int
    snapshots_taken: int
    snapshots_left: int


def hurry(factor: float) -> str:
    """Return the configuration of a service for which a day is `factor` times shorter, on a machine under any load."""
    return (
        "[Watch]\nSettleSec=1s\nNocowSettleSec=5s\n"
        "[Window]\nMarginSec=200ms\nPressureMax=100%\n"
        f"[Budget]\nRotationsPerDay={min(ROTATIONS_MOST, round(ROTATIONS_PER_DAY * factor))}\n"
        f"BytesPerDay={round(factor)}G\n"
    )


def fake_time(hour: int, commands: str) -> str:
    """Return the script that runs commands at an hour of the simulated week."""
    fake = f"LD_PRELOAD={LIBRARY} FAKETIME=+{hour}h FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1"
    return "\n".join(f"{fake} {command}" for command in commands.splitlines())


def live(asked: Namespace) -> Week:
    """Let one host live through the week."""
    day_s = HOURS * (asked.rest + WORK_S) + len(BOOT_HOURS) * BOOT_S
    strategy = STRATEGIES["service"]._replace(config=hurry(DAY_S / day_s), setup=TOOLS)
    boots: list[Boot] = []
    taken = 0
    with Guest(asked.release, size="64G") as guest:
        prepare(guest, strategy)
        for hour in range(asked.days * HOURS):
            guest.age(asked.flushes, MESSAGES)
            time.sleep(asked.rest)
            guest.shell(fake_time(hour, TIMELINE))
            taken += 1
            if hour % HOURS == HOURS - 1:
                guest.shell(fake_time(hour, DAILY))
                taken += 1
            if hour % HOURS in BOOT_HOURS:
                guest.poweroff()
                boots.append(boot_cold(guest, asked.iops))
                print(f"hour {hour}: {boots[-1]}", file=sys.stderr)
                guest.shell(fake_time(hour, BOOTED))
                taken += 1
        guest.shell("journalctl --sync; sync")
        top = guest.volume.mountpoint
        copies = [path for pattern in COPIES for path in top.glob(f"{pattern}/var/log/journal")]
        outcomes = read_outcomes(guest)
        return Week(boots, outcomes, disk_bytes(guest.root / "var/log/journal", *copies), taken, len(copies))


def name_tool(outcome: dict[str, Any]) -> str:
    """Return the tool of an outcome: "compaction" for an archive (its name has an "@"), "ranges" for an active file."""
    if outcome["action"] in {"rotate", "set-nocow"}:
        return str(outcome["action"])
    return "compaction" if "@" in Path(outcome["path"]).name else "ranges"


def describe_tools(outcomes: list[dict[str, Any]]) -> list[str]:
    """Return a line for each tool: its outcomes, the bytes written, and the extents that a reader no longer seeks."""
    lines = []
    for tool in sorted(set(map(name_tool, outcomes))):
        ours = [one for one in outcomes if name_tool(one) == tool]
        done = [one for one in ours if one["result"] == "done"]
        saved = sum(max(0, one["extents_before"] - one["extents_after"]) for one in done)
        written = mib(sum(one["bytes_written"] for one in ours))
        lines.append(f"{tool}: {len(done)} of {len(ours)} done, {written} written, {saved} extents saved")
    return lines


OPTIONS = {
    "release": Option("bookworm", "of Debian"),
    "days": Option(7, "of the week"),
    "flushes": Option(12, "an hour"),
    "rest": Option(5.0, "seconds after an hour's flushes"),
    "iops": Option(150, "of the disk during a boot; 0 for as many as it has"),
}


def main() -> None:
    """Measure, and print the table."""
    asked = start(parser(__doc__, OPTIONS), missing)
    week = live(asked)
    times_s = [boot.userspace_s for boot in week.boots]
    archives = Counter(
        one["path"] for one in week.outcomes if name_tool(one) == "compaction" and one["result"] == "done"
    )
    notes = [
        f"{asked.release}, {asked.days} days of 24 x {asked.flushes} flushes, {asked.iops} IOPS at boots",
        f"userspace s {' '.join(f'{one:.2f}' for one in times_s)}",
        f"extents {' '.join(str(boot.extents) for boot in week.boots)}",
        f"{week.snapshots_taken} snapshots taken, {week.snapshots_left} left",
        *describe_tools(week.outcomes),
    ]
    rows = [
        Figure("first boot, userspace, s", f"{times_s[0]:.2f}"),
        Figure("median", f"{statistics.median(times_s):.2f}"),
        at_most("slowest / first", max(times_s) / times_s[0], 1.5),
        count_is("files rewritten twice", sum(count > 1 for count in archives.values()), 0),
        Figure("journal on disk, with all snapshots, MiB", mib(week.disk_bytes).split()[0]),
    ]
    show("A week", notes, rows)


if __name__ == "__main__":
    main()
