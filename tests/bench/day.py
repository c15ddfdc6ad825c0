# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the service writes in a day of flushes, for each byte that is logged: a stock Debian host, and a datacow one.

    sudo unshare --mount python -m tests.bench.day                   # 16 minutes
    sudo unshare --mount python -m tests.bench.day --flushes 40      # 4 minutes
    sudo unshare --mount python -m tests.bench.day --release trixie stock

A day has 288 flushes, one each five minutes. Here journald's own timer brings one each two seconds, and
after each nothing is logged for half a second, so that the service meets the same windows, only shorter:
after the flush, and before the next. What the service counts by time is shortened alike: how long a file
settles, the margin of a window, and rotations a day. BytesPerDay= is left as it is: this is one day.

`stock` is a host whose journal is NOCOW, as Debian makes it, and the service's configuration is the default;
`datacow` has Nocow=no. What was logged is by how much the objects in all journal files have grown, the hash
tables left out; what was written is the record's sum, also over files that were there before.
"""

from __future__ import annotations

import json
import statistics
import struct
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from journalkeeper.model.units import parse_span_us
from tests.bench import boots
from tests.bench.boots import Rounds, Strategy, prepare
from tests.bench.figures import Figure, Option, add_options, at_most, mib, parser, show, side_by_side
from tests.bench.service import CONFIG
from tests.guest.host import Guest, missing
from tests.volumes import extents

DAY_S = 86400
FLUSHES = 288
SLACK_S = 0.3
"""By which a flush is later than its interval, roughly."""

SIZE = "64G"
QUIET_S = 70.0
"""After the installation, before the day: of a NOCOW file's timer a service that was just started learns nothing
before it has found the file OFFLINE, for which it looks each minute. On a host that is a fifth of an interval."""

ROTATIONS_PER_DAY, ROTATIONS_MOST = 4, 1000
"""The default of RotationsPerDay=, and the most that it may be."""

HOSTS = {
    "release": Option("bookworm", "of Debian"),
    "messages": Option(40, "a flush"),
    "interval": Option("2s", "SyncIntervalSec="),
    "config": CONFIG,
    "jobs": Option(2, "hosts at the same time"),
}
"""The options of benches of guests that live through many flushes."""

ARMS = {"stock": ("", True), "datacow": (boots.DATACOW, False)}
"""The configuration, and whether the journal is NOCOW from the start."""

TABLES = struct.Struct("<4Q")
TABLES_OFFSET = 104
TAIL = struct.Struct("<Q")
TAIL_OFFSET = 136


class Tool(NamedTuple):
    """What one of the service's tools has done: how often, what it wrote, what a reader no longer seeks for."""

    done: int
    not_done: int
    bytes_written: int
    extents_spared: int


class Day(NamedTuple):
    """One host's day, in bytes, the record's outcomes, and the extents of the active file after each part of it."""

    logged_bytes: int
    outcomes: list[dict[str, Any]]
    extents: list[int]

    @property
    def written_bytes(self) -> int:
        """By the service."""
        return sum(one["bytes_written"] for one in self.outcomes)


def hurried(factor: float) -> str:
    """The configuration of a service for which a day is `factor` times shorter; no window waits for this machine."""
    rotations = min(ROTATIONS_MOST, round(ROTATIONS_PER_DAY * factor))
    return (
        "[Watch]\nSettleSec=1s\nNocowSettleSec=5s\n"
        "[Window]\nMarginSec=200ms\nPressureMax=100%\n"
        f"[Budget]\nRotationsPerDay={rotations}\n"
    )


def logged_bytes(journal: Path) -> int:
    """What the objects in all journal files take, without header and hash tables.

    Source: systemd, journal-def.h, struct Header: the tables' offsets and sizes at 104, tail_object_offset at 136.
    """
    total = 0
    for path in journal.glob("*.journal*"):
        header = path.read_bytes()[: TAIL_OFFSET + TAIL.size]
        data, data_size, field, field_size = TABLES.unpack_from(header, TABLES_OFFSET)
        total += max(0, TAIL.unpack_from(header, TAIL_OFFSET)[0] - max(data + data_size, field + field_size))
    return total


def outcomes(guest: Guest) -> list[dict[str, Any]]:
    """What the record says was done in a guest, the oldest first."""
    found: list[dict[str, Any]] = json.loads(guest.shell("journalkeeper history -j"))["outcomes"]
    return found


def tool(outcome: dict[str, Any]) -> str:
    """The name of the tool: an archive, whose name has an "@", is compacted, of an active file ranges are rewritten."""
    action = str(outcome["action"])
    if action in {"rotate", "set-nocow"}:
        return action
    return "compaction" if "@" in Path(outcome["path"]).name else "ranges"


def tools(found: Sequence[dict[str, Any]]) -> dict[str, Tool]:
    """What each did, also those that did nothing."""
    result = {}
    for name in ("rotate", "ranges", "compaction", "set-nocow"):
        ours = [one for one in found if tool(one) == name]
        done = [one for one in ours if one["result"] == "done"]
        spared = sum(max(0, one["extents_before"] - one["extents_after"]) for one in done)
        written = sum(one["bytes_written"] for one in ours)
        result[name] = Tool(len(done), len(ours) - len(done), written, spared)
    return result


def tool_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """A table of them."""
    lines = [f"{'tool':12} {'done':>6} {'not':>6} {'written, MiB':>13} {'extents spared':>15}"]
    for name, one in tools(found).items():
        written = mib(one.bytes_written).split()[0]
        lines.append(f"{name:12} {one.done:6} {one.not_done:6} {written:>13} {one.extents_spared:15}")
    return lines


def live(asked: Namespace, name: str) -> Day:
    """One host's day."""
    config, nocow = ARMS[name]
    apart_s = parse_span_us(asked.interval) / 1e6 + asked.pause + SLACK_S
    config += hurried(DAY_S / (FLUSHES * apart_s)) + asked.config
    rounds = Rounds(asked.release, 0, asked.flushes, asked.messages, 0, "poweroff", SIZE,
                    retention=False, rest_s=0, interval=asked.interval, snapshots=0)  # fmt: skip
    with Guest(asked.release, nocow=nocow, size=SIZE) as guest:
        prepare(guest, Strategy(name, install=config), rounds)
        time.sleep(asked.quiet)
        before, known = logged_bytes(guest.journal), len(outcomes(guest))
        counts = []
        for part in range(asked.parts):
            flushes = asked.flushes * (part + 1) // asked.parts - asked.flushes * part // asked.parts
            guest.age(flushes, asked.messages, pause_s=asked.pause)
            counts.append(extents(guest.journal / "system.journal"))
        return Day(logged_bytes(guest.journal) - before, outcomes(guest)[known:], counts)


def figures(found: dict[str, Day]) -> list[Figure]:
    """The rows that were asked for."""
    rows = []
    for name, day in found.items():
        percent = 100 * day.written_bytes / day.logged_bytes
        what = f"{name}: written by us / logged, %"
        rows += [
            Figure(f"{name}: logged, MiB", mib(day.logged_bytes).split()[0]),
            Figure(f"{name}: written by us, MiB", mib(day.written_bytes).split()[0]),
            at_most(what, percent, 1) if name == "stock" else Figure(what, f"{percent:.3g}"),
            Figure(f"{name}: extents of the active file, median", f"{statistics.median(day.extents):g}"),
        ]
    return rows


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("arm", nargs="*", help=f"which hosts (default: {' '.join(ARMS)})")
    words.add_argument("--flushes", type=int, default=FLUSHES, help="(default: %(default)s)")
    words.add_argument("--pause", type=float, default=0.5, help="seconds after a flush (default: %(default)s)")
    words.add_argument("--quiet", type=float, default=QUIET_S, help="seconds before the day (default: %(default)s)")
    words.add_argument("--parts", type=int, default=12, help="of the day, after which extents are counted")
    add_options(words, HOSTS)
    asked = words.parse_args()
    names = asked.arm or list(ARMS)
    if not set(names) <= ARMS.keys():
        words.error(f"there are: {' '.join(ARMS)}")
    if reason := missing():
        words.exit(1, f"day: {reason}\n")
    found = side_by_side(names, lambda name: live(asked, name), asked.jobs)
    notes = [f"{asked.release}, {asked.flushes} flushes of {asked.messages}, SyncIntervalSec={asked.interval}"]
    for name, day in found.items():
        notes += [f"{name}: extents of the active file {' '.join(map(str, day.extents))}", *tool_lines(day.outcomes)]
    show("A day", notes, figures(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
