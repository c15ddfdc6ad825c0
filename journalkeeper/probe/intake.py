# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe intake`: how long messages waited for journald, computed from the time stamps in the journal.

For each unit, compares the time at which journald accepted an entry with the time at which the
kernel queued its datagram. Lines that units write to stdout are not measured, nor how long
programs waited for room in journald's socket. It only reads the journal.

examples:
  journalkeeper probe intake --boot            since this machine was started
  journalkeeper probe intake --since=-1h       in the last hour
"""

# An entry from /dev/log or the native socket has the kernel's time of its datagram (_SOURCE_REALTIME_TIMESTAMP) and
# the time at which journald received it (__REALTIME_TIMESTAMP).

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from journalkeeper.journald.entries import WallClock
from journalkeeper.journald.journalctl import compute_wait_us, parse_text_fields, run_journalctl
from journalkeeper.model.units import escape, pluralize
from journalkeeper.probe.base import Measurement
from journalkeeper.probe.distribution import Series

FIELDS: Final = ("_SOURCE_REALTIME_TIMESTAMP", "_SYSTEMD_UNIT", "_TRANSPORT", "N_DROPPED")


class IntakeTally:
    """The waits of journal entries, which are added in the order in which journald received them."""

    def __init__(self) -> None:
        self.all = Series("all")
        self.units: dict[str, Series] = {}
        self.unclear = self.dropped = 0
        self.clock = WallClock()

    def take(self, entry: Mapping[str, Any]) -> None:
        """Add one entry's intake delay, if it has one, and what the entry says of lost messages and the clock.

        A delay that a change of the wall clock may explain only counts in `unclear`.
        """
        taken_us, wait_us = int(entry["__REALTIME_TIMESTAMP"]), compute_wait_us(entry)
        monotonic_us = int(entry["__MONOTONIC_TIMESTAMP"])
        waited = self.clock.take_entry(entry["_BOOT_ID"], taken_us, monotonic_us, wait_us or 0)
        if entry.get("_TRANSPORT") == "driver":
            self.dropped += int(entry.get("N_DROPPED", 0))
        if wait_us is None or entry.get("_TRANSPORT") not in {"syslog", "journal"}:
            return
        if not waited:
            self.unclear += 1
            return
        unit = entry.get("_SYSTEMD_UNIT", "no unit")
        for series in (self.all, self.units.setdefault(unit, Series(escape(unit)))):
            series.waits_ns.append(wait_us * 1000)


def measure(asked: Namespace, found: Measurement) -> None:
    """Measure the intake delay, in all and by unit, of the entries that --since, --boot and --follow select.

    Raises: KeeperError if journalctl fails; OSError if it cannot be started.
    """
    options = [f"--since={asked.since}"] if asked.since else []
    options += ["--boot"] if asked.boot else []
    options += ["--follow", *([] if asked.since or asked.boot else ["--lines=0"])] if asked.follow else []
    intake = IntakeTally()
    found.series.append(intake.all)
    found.judged.append(intake.all)
    try:
        with run_journalctl(FIELDS, *options, directory=asked.directory) as journalctl:
            for line in journalctl.output:
                intake.take(parse_text_fields(line))
            if journalctl.child.wait():
                raise journalctl.make_error()
    finally:
        found.series += sorted(intake.units.values(), key=lambda one: (-max(one.waits_ns), one.name))
        if intake.clock.steps:
            found.notes.append(f"The clock was set {pluralize(intake.clock.steps, 'time')} meanwhile.")
        if intake.unclear:
            left_out = pluralize(intake.unclear, "entry")
            found.notes.append(f"{left_out} left out: the clock may have been set while they waited.")
        if intake.dropped:
            found.losses.append(f"journald dropped {pluralize(intake.dropped, 'message')} (RateLimitBurst=).")
