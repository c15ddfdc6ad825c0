# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measure one journal under load on its own volume.

The volume has 12 GiB, sparse (smaller ones commit transactions more often), and its device may be throttled. tracefs
shows journald's fsyncs and strace the service's writes, so that an overlap is measured.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.history.store import Record
from journalkeeper.probe.bed import Bed, bed
from journalkeeper.probe.compare import time_limited_s
from journalkeeper.probe.scratch_volume import run
from tests.bench.service import PIECES, STATE, Call, age, calls, every_second, fsyncs, serving
from tests.load import Load
from tests.patience import eventually
from tests.volumes import extents

SETTINGS: Final = ("SystemMaxFileSize=128M", "SystemMaxUse=2G")
SIZE: Final = "12G"
APART_S: Final = 2.0
"""fsyncs that are further apart belong to different flushes."""

EXTENTS_A_FLUSH: Final = 20
"""The approximate number of extents that one flush of 40 messages adds to a datacow file."""

COLD_IOPS, COLD_LINES = 150, 1000

Beside = Callable[[Bed], AbstractContextManager[object]]
"""Returns what runs next to a journal during the block."""


def alone(_: Bed) -> AbstractContextManager[object]:
    """Run nothing next to the journal."""
    return nullcontext()


def make_bed(interval_s: float) -> AbstractContextManager[Bed]:
    """Make a journal that is flushed at this interval."""
    return bed(*SETTINGS, f"SyncIntervalSec={interval_s:g}s", size=SIZE)


class Life(NamedTuple):
    """The measurements of one journal under load.

    The extents of the active file at first, each second, and at last; journald's fsyncs, and the traced calls of the
    service that write files; bytes; the seconds that each message waited for journald; and the seconds of a cold read
    of the active file, if that was requested.
    """

    first: int
    each: list[int]
    last: int
    fsyncs: list[Call]
    pieces: list[Call]
    logged_bytes: int
    device_bytes: int
    our_bytes: int
    rotations: int
    intake_s: list[float]
    cold_s: float | None

    @property
    def flushes(self) -> int:
        """The number of flushes that journald made."""
        apart = (later.began_s - call.ended_s > APART_S for call, later in pairwise(self.fsyncs))
        return bool(self.fsyncs) + sum(apart)

    def count_overlaps(self) -> int:
        """Return the number of the service's calls during which journald synced."""
        return sum(any(one.overlaps(theirs) for theirs in self.fsyncs) for one in self.pieces)

    def fsync_ms(self) -> list[float]:
        """Return the duration of each of journald's fsyncs."""
        return [(call.ended_s - call.began_s) * 1000 for call in self.fsyncs]


def live(asked: Namespace, beside: Beside, *, rest: bool = False, nocow: bool | None = None) -> Life:
    """Let one journal live under load next to what `beside` starts.

    With `rest`, the last flush and a whole interval after it are waited for. With `nocow`, the file is NOCOW or datacow
    from its first byte, has as many flushes as give a datacow file the requested extents, and is read cold at the end.
    """
    with make_bed(asked.interval) as place:
        _age(place, asked.extents, nocow)
        base, active = place.volume.base, place.journald.active
        before_bytes = place.volume.count_written_bytes()
        with ExitStack() as stack:
            first = extents(active)
            place.volume.throttle(asked.iops)
            theirs = stack.enter_context(fsyncs(place.journald.pid))
            with Load(place, asked.rate) as load:
                # the file is ONLINE now: a first append would sync without a timer
                stack.enter_context(beside(place))
                seen = [(active.stat().st_ino, extents(active)) for _ in every_second(asked.minutes * 60)]
            if rest:
                eventually(lambda: not place.journald.read_state(), 3 * asked.interval + 30, pause_s=0.1)
                time.sleep(asked.interval)
            else:
                place.journald.sync()
            last = extents(active)
        place.volume.throttle(0)
        return Life(
            first,
            [count for _, count in seen],
            last,
            theirs,
            calls(base / "ours", PIECES) if (base / "ours").exists() else [],
            load.sent_bytes,
            place.volume.count_written_bytes() - before_bytes,
            _count_our_bytes(place.volume.mountpoint / STATE),
            len({inode for inode, _ in seen}) - 1,
            _read_intake_s(place, load.sent),
            None if nocow is None else _read_cold_s(place),
        )


def _age(place: Bed, wanted: int, nocow: bool | None) -> None:
    if nocow is None:
        age(place, wanted)
        place.journald.sync()
        return
    run("chattr", "+C" if nocow else "-C", place.journald.journal)
    place.journald.rotate()
    place.journald.age(wanted // EXTENTS_A_FLUSH)


def _count_our_bytes(state: Path) -> int:
    """Return the bytes that the service reports as written."""
    if not state.exists():
        return 0
    with Record(str(state), read_only=True) as record:
        return sum(entry.outcome.bytes_written for entry in record.list_entries())


def _read_intake_s(place: Bed, wanted: int) -> list[float]:
    """Return the seconds that each message of the load waited for journald.

    Raises: RuntimeError if a message is missing.
    """
    words = ("--output=json", "--output-fields=LAB_USER,_SOURCE_REALTIME_TIMESTAMP", "SYSLOG_IDENTIFIER=load")
    lines = run("journalctl", "-D", place.journald.journal, "--quiet", *words).encode().splitlines()
    if len(lines) != wanted:
        raise RuntimeError(f"{wanted} messages were logged, {len(lines)} are in the journal")
    entries = map(json.loads, lines)
    times = [(int(one["__REALTIME_TIMESTAMP"]), int(one["_SOURCE_REALTIME_TIMESTAMP"])) for one in entries]
    return [(taken_us - sent_us) / 1e6 for taken_us, sent_us in times]


def _read_cold_s(place: Bed) -> float:
    """Return the seconds in which the newest entries of the active file are read from a slow disk. Stop journald."""
    place.journald.stop()
    place.volume.remount()
    words = ("journalctl", f"--file={place.journald.active}", "--quiet", f"--lines={COLD_LINES}")
    return time_limited_s(place.volume, COLD_IOPS, lambda: run(*words))


def trace(config: str) -> Beside:
    """Return what runs the service under strace."""
    return lambda place: serving(place, config, trace=place.volume.base / "ours")
