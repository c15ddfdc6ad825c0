# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe intake`: how long messages waited for journald, computed from the time stamps in the journal.

For each unit, compares the time at which journald accepted an entry with the time at which the
kernel queued its datagram. For each stall, names what journald did just before. It only reads the
journal.

examples:
  journalkeeper probe intake --boot            since this machine was started
  journalkeeper probe intake --since=-1h       in the last hour
"""

# An entry from /dev/log or the native socket has the kernel's time of its datagram (_SOURCE_REALTIME_TIMESTAMP) and
# the time at which journald received it (__REALTIME_TIMESTAMP).

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Final

from journalkeeper.journald import header, opening
from journalkeeper.journald.entries import STEP_US, WallClock
from journalkeeper.journald.journalctl import FLUSHED, compute_wait_us, parse_text_fields, run_journalctl
from journalkeeper.model.units import escape, parse_span_us, pluralize
from journalkeeper.probe.base import Measurement, Steps, read_lines
from journalkeeper.probe.distribution import Series, stalls
from journalkeeper.probe.distribution import format_wait as span

FIELDS: Final = (*("_SOURCE_REALTIME_TIMESTAMP", "_SYSTEMD_UNIT", "_TRANSPORT", "PRIORITY", "MESSAGE", "N_DROPPED"),)
CRIT: Final = 2
STALL_NS: Final = 100_000_000
"""The shortest wait that is reported with its cause: the default of IntakeDelayMaxSec=."""

STALLS_SHOWN: Final = 10
NOT_SEEN: Final = (
    "Not measured: lines that units write to stdout, waits of programs for room in journald's socket, and stalls "
    "without messages. The length of a stall is exact to 10% if at least 10 messages are logged during it."
)


class IntakeTally:
    """The waits of journal entries, which are added in the order in which journald received them."""

    def __init__(self) -> None:
        self.all = Series("all")
        self.units: dict[str, Series] = {}
        self.crits_us: list[int] = []
        self.flushes_us: list[tuple[int, int]] = []
        """The start and end of each of journald's flushes to /var."""
        self.unclear = self.dropped = 0
        self.clock = WallClock()

    def take(self, entry: Mapping[str, Any]) -> None:
        """Add one entry's intake delay, if it has one, and what the entry says of rotations, flushes and the clock.

        A delay that a change of the wall clock may explain only counts in `unclear`.
        """
        taken_us, wait = int(entry["__REALTIME_TIMESTAMP"]), compute_wait_us(entry)
        monotonic_us = int(entry["__MONOTONIC_TIMESTAMP"])
        waited = self.clock.take_entry(entry["_BOOT_ID"], taken_us, monotonic_us, wait or 0)
        if entry.get("PRIORITY", "6") <= str(CRIT):
            self.crits_us.append(taken_us)
        if entry.get("_TRANSPORT") == "driver":
            self.dropped += int(entry.get("N_DROPPED", 0))
            if flushed := FLUSHED.match(entry.get("MESSAGE", "")):
                self.flushes_us.append((taken_us - parse_span_us(flushed[1]), taken_us))
        if wait is None or entry.get("_TRANSPORT") not in {"syslog", "journal"}:
            return
        if not waited:
            self.unclear += 1
            return
        unit = entry.get("_SYSTEMD_UNIT", "no unit")
        for series in (self.all, self.units.setdefault(unit, Series(escape(unit)))):
            series.add((taken_us - wait) * 1000, wait * 1000)

    def describe_stalls(self, rotations_us: list[int]) -> Iterator[str]:
        """Yield a line for each of the STALLS_SHOWN longest stalls (waits of at least STALL_NS), in order of time."""
        found = sorted(stalls(self.all, STALL_NS), key=lambda one: one[0] - one[1])[:STALLS_SHOWN]
        for began_ns, ended_ns in sorted(found):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began_ns // 10**9))
            cause = self._find_cause(began_ns // 1000, ended_ns // 1000, rotations_us)
            yield f"stall of {span(ended_ns - began_ns)} at {when}: {cause}"

    def _find_cause(self, began_us: int, ended_us: int, rotations_us: list[int]) -> str:
        overlaps = (min(ended_us, ended) - max(began_us, began) for began, ended in self.flushes_us)
        if any(overlap * 2 >= ended_us - began_us for overlap in overlaps):
            return "boot flush"
        first_us, last_us = began_us - STALL_NS // 1000, began_us + STEP_US
        if any(first_us <= moment <= last_us for moment in self.crits_us):
            return "a message of priority crit or higher"
        if any(first_us <= moment <= last_us for moment in rotations_us):
            return "rotation"
        return "no event explains it: a sync, a slow disk, or a journald that did not run"

    def describe_clock(self) -> Iterator[str]:
        """Yield a sentence if the clock was set, and one if entries were left out because it may have been set."""
        if self.clock.steps:
            yield f"The clock was set {pluralize(self.clock.steps, 'time')} meanwhile."
        if self.unclear:
            yield f"{pluralize(self.unclear, 'entry')} left out: the clock may have been set while they waited."


def rotations_us(directory: str) -> list[int]:
    """Return the rotations' times, ascending: the first entries of all system journals below `directory` but the first.

    Raises: OSError if a journal cannot be read, such as EACCES.
    """
    found = []
    for place, _, names in os.walk(os.path.realpath(directory)):
        for name in names:
            if name.startswith("system@") or name == "system.journal":
                try:
                    with opening.open_directory(place) as dir_fd, opening.hold_open(name, dir_fd) as fd:
                        found.append(header.read(fd, os.fstat(fd).st_size).head_time_us)
                except (FileNotFoundError, header.HeaderError):
                    continue  # vacuumed meanwhile, or none of journald's
    return sorted(filter(None, found))[1:]  # a file without an entry has 0; before the first was nothing to archive


def measure(asked: Namespace) -> Steps:
    """Measure the intake delay, in all and by unit, of the entries that --since, --boot and --follow select.

    Raises: KeeperError if journalctl fails; OSError if it cannot be started, or as `rotations_us`.
    """
    options = [f"--since={asked.since}"] if asked.since else []
    options += ["--boot"] if asked.boot else []
    options += ["--follow", *([] if asked.since or asked.boot else ["--lines=0"])] if asked.follow else []
    with run_journalctl(FIELDS, *options, directory=asked.directory) as journalctl:
        intake = IntakeTally()
        found = Measurement([intake.all], judged=[intake.all], notes=[NOT_SEEN])
        yield found
        try:
            for lines in read_lines(journalctl.output.fileno()):
                for entry in map(parse_text_fields, lines):
                    intake.take(entry)
                yield found
            if journalctl.child.wait():
                raise journalctl.make_error()
        finally:
            found.series += sorted(intake.units.values(), key=lambda one: (-max(one.waits_ns()), one.name))
            found.notes[:0] = intake.describe_stalls(rotations_us(asked.directory or "/var/log/journal"))
            found.notes += intake.describe_clock()
            if intake.dropped:
                found.losses.append(f"journald dropped {pluralize(intake.dropped, 'message')} (RateLimitBurst=).")
