# SPDX-License-Identifier: LGPL-2.1-or-later
"""The load on journald and on its disks, and the host's power supply.

The load on journald is the intake delay: how long messages wait until journald receives them. It comes from journald's
newest entries. An entry from /dev/log or the native socket contains the sender's time and journald's own time. So the
effect of a stall is known when the stall ends.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from glob import glob
from typing import Any, Final

from psutil import disk_io_counters

from journalkeeper.btrfs.maintenance import list_disks
from journalkeeper.journald import layout, opening
from journalkeeper.journald.journal_file import Entry, WallClock, read_newest
from journalkeeper.model import JournalFile, Kind
from journalkeeper.model.units import quantile
from journalkeeper.observe.snapshot_tools import read_text

ENTRIES: Final = 16
"""The number of newest entries that are read at a time between two pieces of work."""

ENTRIES_PER_FLUSH: Final = 128
"""The number of newest entries that are read after each flush of journald; this takes some 13 ms."""

KEPT: Final = 1000

LOOK_S: Final = 0.25
"""How long to watch the disks before a run. The kernel counts their busy time in ticks of 1 to 10 ms."""

SUPPLIES: Final = "/sys/class/power_supply"


class IntakeMeter:
    """The waits of messages for journald, from the newest `entries` entries of active files.

    No file stays open between two calls, because an open file keeps its space after its deletion.
    """

    def __init__(self, entries: int = ENTRIES) -> None:
        self._entries = entries
        self._waits_us: deque[int] = deque(maxlen=KEPT)
        self._seen: dict[str, tuple[int, int]] = {}
        """By path, the inode of the file and the number of its newest entry that was read."""
        self._clock = WallClock()

    def add_new_delays(self, paths: Collection[str]) -> int | None:
        """Add the new intake delays (us) in `paths` to the KEPT ones of `p99_us`; return the longest new one, or None.

        Of each path and of each call, only the newest `entries` count. Not counted: entries without a sender's time
        or of a path that is new to this call; a delay that is negative or distorted by a set clock; unreadable files.
        """
        before = self._seen
        self._seen = {path: before[path] for path in paths if path in before}
        came = [(path in before, one) for path in paths for one in self._read_new(path)]
        found_us = []
        for is_known, one in sorted(came, key=lambda pair: pair[1].monotonic_us):
            wait_us = 0 if one.source_us is None else one.realtime_us - one.source_us
            waited = self._clock.take_entry(one.boot_id, one.realtime_us, one.monotonic_us, wait_us)
            if is_known and waited and one.source_us is not None:
                found_us.append(wait_us)
        del found_us[: -self._entries]
        self._waits_us.extend(found_us)
        return max(found_us, default=None)

    @property
    def p99_us(self) -> int:
        """The 99th percentile of the newest KEPT intake delays, in microseconds; 0 without any."""
        return quantile(sorted(self._waits_us), 990)

    def _read_new(self, path: str) -> list[Entry]:
        """Return the newest entries, newest first, after `_seen[path]` (any of another inode). Set it; [] on errors."""
        seen, seqnum = self._seen.get(path, (0, 0))
        # It was rotated away, or journald is writing it: the next call reads the entries.
        with suppress(OSError, ValueError), opening.open_path(path) as fd:
            inode = os.fstat(fd).st_ino
            after_seqnum = seqnum if seen == inode else 0
            came = read_newest(fd, after_seqnum, self._entries)
            self._seen[path] = inode, came[0].seqnum if came else after_seqnum
            return came
        return []


def list_journald_files(files: Iterable[JournalFile]) -> list[str]:
    """Return the paths of the readable active files that are not in remote/, where journald does not write."""
    active = (file for file in files if file.kind is Kind.ACTIVE and file.problem is None)
    return [file.path for file in active if file.instance != layout.REMOTE]


def is_on_battery(supplies: str = SUPPLIES) -> bool:
    """Return whether a battery of the host discharges while no supply of type Mains is online; False if unknown.

    psutil takes the battery of a mouse for the host's, and knows no supply that is not named AC or AC0.

    Source: Documentation/ABI/testing/sysfs-class-power; systemd, battery-util.c.
    """
    found = [
        [read_text(f"{one}/{name}").strip() for name in ("type", "scope", "status", "online")]
        for one in glob(f"{supplies}/*")
    ]
    if any(kind == "Mains" and online not in {"", "0"} for kind, _, _, online in found):
        return False
    return any(one[0] == "Battery" and one[1] != "Device" and one[2] == "Discharging" for one in found)


def measure_busy_percent(uuids: Iterable[str], length_s: float) -> dict[str, int]:
    """Sleep for `length_s`, and return by volume how busy its busiest disk was, in percent.

    A volume without known disks or statistics is missing. The caller has written back its own work before.
    """
    names = {uuid: list_disks(uuid) for uuid in uuids}
    began_s, before = time.monotonic(), _read_busy_ms()
    time.sleep(length_s)
    after, length_ms = _read_busy_ms(), (time.monotonic() - began_s) * 1000
    shares = {
        name: min(100, round(100 * (after[name] - ms) / length_ms)) for name, ms in before.items() if name in after
    }
    known = {uuid: [shares[name] for name in found if name in shares] for uuid, found in names.items()}
    return {uuid: max(found) for uuid, found in known.items() if found}


def _read_busy_ms() -> dict[str, int]:
    counters: dict[str, Any] = disk_io_counters(perdisk=True, nowrap=False) or {}
    return {name: one.busy_time for name, one in counters.items()}
