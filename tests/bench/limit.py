# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""Simulate years of journald's files and vacuum, with the real policy and without it.

    python -m tests.bench.limit     # a minute, no root

A day has four parts. In each the host logs a quarter of its messages; after each, a snapshot may be taken, and the
service makes its plan. The day ends with the plan before a shutdown, and a boot, which reads the active file. The
active file is NOCOW, and each snapshot makes journald's next writes copy-on-write once: some 480 extents for 4 MiB in
100 flushes (six boots with snapshots, 150 IOPS), fewer for less. Archives are compacted at once.

`Journal` models one journald, and uses the same vacuum as the policy. tests/btrfs/test_history_loss.py compares both
with a real one, the history within 5%. Unlike journald, it does not count what is allocated and unused in the file that
ends, at most 8 MiB.
"""

from __future__ import annotations

import argparse
from itertools import product
from statistics import mean, median_high
from typing import Final, NamedTuple

from journalkeeper.config import Config
from journalkeeper.journald.conf import Settings, fill_defaults
from journalkeeper.model import GIB, MIB, Host, Kind, Request, Verb
from journalkeeper.model.units import DAY_US
from journalkeeper.policy.history_loss import GROWTH_BYTES, REPEATED_BYTES, TABLE_SHARE, Limits, count_vacuumed
from journalkeeper.policy.plan import plan
from tests.hosts import DIRECTORY, NOW_US, extents, file, host, instance

FULL: Final = 1 / 2
"""The part of SystemMaxFileSize= at which journald ends a file, because its hash table is full: at 52 to 83 of 128 MiB,
by the headers of seven files of three public bug reports."""

PARTS: Final = 4
DAYS: Final = 3 * 365
RATES_MIB = (1, 10, 100, 1000)
VOLUMES_GIB = (10, 40, 1024)


class Journal:
    """The files of one journald: archives as (allocated bytes, bytes of entries, begin in us), the oldest first."""

    def __init__(self, limits: Limits, begin_us: int) -> None:
        self.limits = limits
        self.archives: list[tuple[int, float, int]] = []
        self.overhead_bytes = limits.max_file_bytes // TABLE_SHARE + REPEATED_BYTES
        self._begin(begin_us)

    def _begin(self, now_us: int) -> None:
        self.entry_bytes, self.begin_us, self.extents, self.shared = 0.0, now_us, 2, False

    @property
    def active_bytes(self) -> int:
        """The used bytes of the active file."""
        return self.overhead_bytes + round(self.entry_bytes)

    @property
    def history_bytes(self) -> float:
        """The bytes of all entries that are kept."""
        return self.entry_bytes + sum(entries for _, entries, _ in self.archives)

    def log(self, entry_bytes: float, now_us: int) -> None:
        """Append entries, in further files where the active file is full."""
        while entry_bytes > 0:
            part = min(entry_bytes, self.limits.full_file_bytes - self.active_bytes)
            self.entry_bytes += part
            entry_bytes -= part
            if self.active_bytes >= self.limits.full_file_bytes:
                self.rotate(now_us)

    def rotate(self, now_us: int) -> int:
        """Archive the active file, vacuum, and return the deleted bytes."""
        self.archives.append((self.active_bytes, self.entry_bytes, self.begin_us))
        self._begin(now_us)
        sizes = [size for size, _, _ in self.archives]
        gone = count_vacuumed(sizes, 1, min(GROWTH_BYTES, self.limits.max_file_bytes), self.limits)
        del self.archives[:gone]
        return sum(sizes[:gone])


class Life(NamedTuple):
    """A simulated life: the mean days of history and number of files at boots, and the extents that boots found."""

    history_days: float
    least_days: float
    files: float
    rotations: int
    extents: list[int]


def look(journal: Journal, now_us: int, rotations: list[int]) -> Host:
    """Return the host as the service sees it."""
    limits, used = journal.limits, journal.active_bytes
    active = file(
        Kind.ACTIVE,
        size_bytes=used,
        allocated_bytes=used,
        full_bytes=limits.full_file_bytes,
        nocow=True,
        head_time_us=journal.begin_us,
        extents=extents(journal.extents, used, shared_bytes=used if journal.shared else 0),
    )
    archives = [
        active._replace(
            path=f"{DIRECTORY}/a@{number}.journal",
            kind=Kind.ARCHIVED,
            allocated_bytes=size,
            head_time_us=begin_us,
            nocow=False,
            extents=extents(1, size, encoded_bytes=size),
            inode=1000 + number,
        )
        for number, (size, _, begin_us) in enumerate(journal.archives)
    ]
    one = instance(
        nocow=True,
        rotatable=True,
        inode=256,
        max_file_us=30 * DAY_US,
        available_bytes=1 << 50,
        system_keep_free_bytes=0,
        system_max_use_bytes=limits.most_bytes,
        system_max_file_size_bytes=limits.max_file_bytes,
        system_max_files=limits.max_files,
    )
    recent = sum(now_us - DAY_US < when_us for when_us in rotations)
    return host(active, *archives, instances=(one,), now_us=now_us, rotations=recent)


def live(rate_mib: int, limits: Limits, snapshots: bool, config: Config | None) -> Life:
    """Return the life of a host that logs `rate_mib` a day; without a service if `config` is None."""
    journal, rotations, found = Journal(limits, NOW_US), list[int](), list[tuple[float, int, int]]()
    for part in range(DAYS * PARTS):
        now_us = NOW_US + (part + 1) * DAY_US // PARTS
        journal.log(rate_mib * MIB / PARTS, now_us)
        if journal.shared:
            journal.extents += round(min(480, 20 + 120 * rate_mib / PARTS))
        ends = part % PARTS == PARTS - 1
        if config is not None:
            for request in (Request(upkeep=True), *([Request(before_shutdown=True, upkeep=True)] if ends else [])):
                made = plan(look(journal, now_us, rotations), request, config)
                if any(action.action is Verb.ROTATE for action in made.actions):
                    rotations.append(now_us)
                    journal.rotate(now_us)
        journal.shared = snapshots
        if ends:
            if journal.shared:
                journal.extents += 20
            found.append((journal.history_bytes / MIB / rate_mib, 1 + len(journal.archives), journal.extents))
    late = found[len(found) // 3 :]
    history = [days_kept for days_kept, _, _ in late]
    return Life(mean(history), min(history), mean(n for _, n, _ in late), len(rotations), sorted(e for *_, e in late))


def main() -> None:
    """Simulate, and print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("volume  MiB/day  snapshots  rotations  files      history/untouched  least  extents p50/max")
    for size_gib, rate, snapshots in product(VOLUMES_GIB, RATES_MIB, (False, True)):
        defaults = fill_defaults(Settings(), size_gib * GIB)
        largest = defaults.system_max_file_size_bytes or 0
        limits = Limits(defaults.system_max_use_bytes or 0, largest, 100, round(largest * FULL))
        bare, ours = (live(rate, limits, snapshots, config) for config in (None, Config()))
        print(
            f"{size_gib:5}G  {rate:7}  {4 * snapshots:9}  {ours.rotations:9}  {bare.files:4.0f} {ours.files:4.0f}"
            f"  {ours.history_days / bare.history_days:17.3f}  {ours.least_days / bare.least_days:5.3f}  "
            + " ".join(f"{median_high(one.extents)}/{one.extents[-1]}" for one in (bare, ours))
        )


if __name__ == "__main__":
    main()
