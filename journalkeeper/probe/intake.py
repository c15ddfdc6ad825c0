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
from collections.abc import Iterable
from typing import Final

from journalkeeper.journald.journal_file import WallClock
from journalkeeper.journald.journalctl import Entry, parse_number, read_entries
from journalkeeper.model.units import escape, pluralize
from journalkeeper.observe.machine import ENTRY_FIELDS, compute_intake
from journalkeeper.probe.base import Measurement, Series

FIELDS: Final = (*ENTRY_FIELDS, "N_DROPPED")


def measure(asked: Namespace, found: Measurement) -> None:
    """Measure the intake delay, in all and by unit, of the entries that --since, --boot and --follow select.

    Without these, all count; --follow never ends, and alone selects only new entries. Raises: as `read_entries`.
    """
    options = [f"--since={asked.since}"] if asked.since else []
    options += ["--boot"] if asked.boot else []
    options += ["--follow", *([] if asked.since or asked.boot else ["--lines=0"])] if asked.follow else []
    add_waits(read_entries(FIELDS, options, most=None, directory=asked.directory), found)


def add_waits(entries: Iterable[Entry], found: Measurement) -> None:
    """Add the waits of `entries`, the oldest first, to `found`, and the messages that journald dropped as losses.

    The judged series "all" has all waits, except those in which the clock may have been set: a note counts them. Each
    unit has a series, too, the longest wait first. The entries so far also count if an exception ends the iteration.
    """
    every, units, clock, dropped = Series("all"), dict[str, Series](), WallClock(), 0
    found.series.append(every)
    found.judged.append(every)
    try:
        for entry in entries:
            if entry.get("_TRANSPORT") == "driver":
                dropped += parse_number(entry.get("N_DROPPED")) or 0
            if (intake := compute_intake(entry, clock)) is not None:
                unit = escape(intake.unit) or "no unit"
                for series in (every, units.setdefault(unit, Series(unit))):
                    series.waits_ns.append(intake.wait_us * 1000)
    finally:
        found.series += sorted(units.values(), key=lambda one: (-max(one.waits_ns), one.name))
        if clock.unclear:
            left_out = pluralize(clock.unclear, "entry")
            found.notes.append(f"{left_out} left out: the clock may have been set while they waited.")
        if dropped:
            found.losses.append(f"journald dropped {pluralize(dropped, 'message')} (RateLimitBurst=).")
