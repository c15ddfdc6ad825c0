# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long messages waited for journald, by the journal itself: it is read, and nothing is changed.

An entry from /dev/log or the native socket bears the kernel's time of its datagram
(_SOURCE_REALTIME_TIMESTAMP) beside that at which journald took it (__REALTIME_TIMESTAMP).
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from argparse import Namespace
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Final

from journalkeeper.journald import header, opening
from journalkeeper.journald.journalctl import FLUSHED, plain, running, wait_us
from journalkeeper.model.escape import shown
from journalkeeper.probe.base import Lines, Measurement, Steps, floor
from journalkeeper.report.distribution import Series, stalls
from journalkeeper.report.distribution import shown as span

FIELDS: Final = ("_SOURCE_REALTIME_TIMESTAMP", "_SYSTEMD_UNIT", "_TRANSPORT", "PRIORITY", "MESSAGE")
CRIT: Final = 2
SO_TIMESTAMP: Final = 29
"""Source: asm-generic/socket.h."""

STEP_US: Final = 10_000
SLEW: Final = 0.001
"""The clock was set where it moved by more than STEP_US, and more than adjtime(3) moves it in that time."""

STALL_NS: Final = 100_000_000
"""Waits from here on are looked into: IntakeDelayMaxSec= by default."""

STALLS_SHOWN: Final = 10
MOMENT_S: Final = 0.2
NOT_SEEN: Final = (
    "Not seen: what units write to stdout (journald keeps no time of it), how long a sender waited before "
    "the kernel took its datagram, and stalls in which nobody logged: one of S seconds shows within 10% "
    "where 10/S messages a second are logged."
)


class Intake:
    """Takes in entries one after the other, in the order in which journald took them."""

    def __init__(self) -> None:
        self.all = Series("all")
        self.units: dict[str, Series] = {}
        self.crits_us: list[int] = []
        self.flushes_us: list[int] = []
        self.unclear = 0
        self._clock = ("", 0, 0)
        self._doubtful_us = 0

    def take(self, entry: Mapping[str, Any]) -> None:
        """One entry: a wait across which the clock was set is no wait."""
        taken_us = int(entry["__REALTIME_TIMESTAMP"])
        self._watch_clock(entry["_BOOT_ID"], taken_us, int(entry["__MONOTONIC_TIMESTAMP"]))
        if entry.get("PRIORITY", "6") <= str(CRIT):
            self.crits_us.append(taken_us)
        if entry.get("_TRANSPORT") == "driver" and FLUSHED.match(entry.get("MESSAGE", "")):
            self.flushes_us.append(taken_us)
        wait = wait_us(entry)
        if wait is None or entry.get("_TRANSPORT") not in {"syslog", "journal"}:
            return
        if wait < 0 or taken_us - wait < self._doubtful_us:
            self.unclear += 1
            return
        unit = entry.get("_SYSTEMD_UNIT", "no unit")
        for series in (self.all, self.units.setdefault(unit, Series(shown(unit)))):
            series.add((taken_us - wait) * 1000, wait * 1000)

    def _watch_clock(self, boot: str, taken_us: int, monotonic_us: int) -> None:
        before, offset_us, then_us = self._clock
        moved_us = abs(taken_us - monotonic_us - offset_us)
        if boot == before and moved_us > STEP_US + SLEW * abs(monotonic_us - then_us):
            self._doubtful_us = taken_us
        self._clock = (boot, taken_us - monotonic_us, monotonic_us)

    def causes(self, rotations_us: list[int]) -> Iterator[str]:
        """The longest stalls, the first first, each with what journald did meanwhile."""
        found = sorted(stalls(self.all, STALL_NS), key=lambda one: one[0] - one[1])[:STALLS_SHOWN]
        for began_ns, ended_ns in sorted(found):
            began_us, ended_us = began_ns // 1000, ended_ns // 1000
            known = (
                ("boot flush", self.flushes_us, began_us, ended_us + STEP_US),
                ("a message of priority crit", self.crits_us, began_us - STALL_NS // 1000, ended_us),
                ("rotation", rotations_us, began_us, ended_us + STEP_US),
            )
            cause = next((word for word, moments, *ends in known if _between(moments, *ends)), "sync or disk")
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began_us // 10**6))
            yield f"stall of {span(ended_ns - began_ns)} at {when}: {cause}"


def _between(moments: list[int], first: int, last: int) -> bool:
    at = bisect_left(moments, first)
    return at < len(moments) and moments[at] <= last


def rotations_us(directory: str) -> list[int]:
    """When each system journal's first entry was logged, which is when the one before it was archived."""
    found = []
    for place, _, names in os.walk(directory):
        for name in names:
            if name.startswith("system@") or name == "system.journal":
                try:
                    with opening.directory(place) as dir_fd, opening.opened(name, dir_fd) as fd:
                        found.append(header.read(fd, os.fstat(fd).st_size).head_time_us)
                except (FileNotFoundError, header.HeaderError):
                    continue  # vacuumed meanwhile, or none of journald's
    return sorted(found)[1:]  # before the first there was nothing to archive


def sink() -> Series:
    """What the two stamps differ by where nobody is kept waiting: the kernel's, and that of who wakes for it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    series = Series("floor")
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)

        def stamped() -> None:
            ours.send(b"x")
            _, ((_, _, stamp),), _, _ = theirs.recvmsg(1, 64)
            seconds, micros = struct.unpack("ll", stamp)
            series.add(0, max(0, time.time_ns() - seconds * 10**9 - micros * 1000))

        floor(stamped)
    return series


def measured(asked: Namespace) -> Steps:
    """Read the journal that `asked` names."""
    options = [f"--since={asked.since}"] if asked.since else []
    options += ["--boot"] if asked.boot else []
    options += ["--follow", *([] if asked.since or asked.boot else ["--lines=0"])] if asked.follow else []
    with running(FIELDS, *options, directory=asked.directory) as journalctl:
        intake, lines = Intake(), Lines(journalctl.output.fileno())
        found = Measurement([intake.all], sink(), notes=[NOT_SEEN], wall_ns=0)
        found.judged = lambda series: series is intake.all
        yield found
        try:
            while not lines.ended:
                for line in lines.take() if select.select([lines.fd], [], [], MOMENT_S)[0] else ():
                    intake.take(plain(line))
                yield found
            if journalctl.status():
                raise journalctl.broke_off()
        finally:
            found.series += sorted(intake.units.values(), key=lambda one: (-max(one.waits_ns()), one.name))
            found.notes += intake.causes(rotations_us(asked.directory or "/var/log/journal"))
            if intake.unclear:
                found.notes.append(f"{intake.unclear} entries left out: the clock was set while they waited")
