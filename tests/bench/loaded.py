# SPDX-License-Identifier: LGPL-2.1-or-later
"""One journal under load on a volume of its own: what is beside it, and what became of it.

The volume has 12 GiB, sparse (smaller ones commit transactions more often), and its device may be throttled.
tracefs has journald's fsyncs and strace the service's writes, so what overlaps is seen and not guessed.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.history.record import Record
from journalkeeper.journald.journalctl import compute_wait_us, parse_text_fields
from journalkeeper.probe.bed import Bed, bed
from journalkeeper.probe.scratch_volume import undo_at_end
from tests.bench.archive import slowed
from tests.bench.figures import run, timed
from tests.bench.service import (
    PATIENCE_S,
    PIECES,
    STATE,
    Call,
    age,
    calls,
    every_second,
    fsyncs,
    serving,
)
from tests.load import Load
from tests.patience import eventually
from tests.volumes import extents

SETTINGS: Final = ("SystemMaxFileSize=128M", "SystemMaxUse=2G")
SIZE: Final = "12G"
APART_S: Final = 2.0
"""fsyncs that are further apart belong to different flushes."""

COLD_IOPS, COLD_LINES = 150, 1000
STARVE: Final = (sys.executable, "-m", "tests.bench.starve")

Beside = Callable[[Bed], AbstractContextManager[object]]
"""What is beside a journal while it is entered."""


def alone(_: Bed) -> AbstractContextManager[object]:
    """Nothing."""
    return nullcontext()


def flushing(interval_s: float) -> AbstractContextManager[Bed]:
    """A journal that is flushed at this interval."""
    return bed(*SETTINGS, size=SIZE, sync_interval=f"{interval_s:g}s")


class Life(NamedTuple):
    """What became of one journal under load.

    Extents at first, each second, and at last; journald's fsyncs, and those calls of the service that were traced;
    bytes; seconds that each message waited, in the order in which they were logged: for journald, and since the
    moment for which it was planned; and those of a cold read of the active file, where it was asked for.
    """

    first: int
    each: list[int]
    last: int
    fsyncs: list[Call]
    pieces: list[Call]
    other_syncs: list[Call]
    logged_bytes: int
    device_bytes: int
    our_bytes: int
    rotations: int
    intake_s: list[float]
    planned_s: list[float]
    cold_s: float | None

    @property
    def flushes(self) -> int:
        """How many flushes journald made."""
        apart = (later.began_s - call.ended_s > APART_S for call, later in pairwise(self.fsyncs))
        return bool(self.fsyncs) + sum(apart)

    def overlaps(self, ours: list[Call]) -> list[str]:
        """Those of `ours` that overlap an fsync of journald's: from when to when after that one began."""
        found = [(one, theirs) for one in ours for theirs in self.fsyncs if one.overlaps(theirs)]
        return [
            f"{one.words.partition('(')[0]}, {_ms_after(one.began_s, theirs)} to {_ms_after(one.ended_s, theirs)} ms "
            f"after the fsync of {_ms_after(theirs.ended_s, theirs)} ms began"
            for one, theirs in found
        ]

    def fsync_ms(self) -> list[float]:
        """How long journald's fsyncs took."""
        return [(call.ended_s - call.began_s) * 1000 for call in self.fsyncs]


def _ms_after(moment_s: float, call: Call) -> str:
    return f"{(moment_s - call.began_s) * 1000:.1f}"


def live(asked: Namespace, beside: Beside, *, ready: Beside = alone, rest: bool = False,
         nocow: bool | None = None) -> Life:  # fmt: skip
    """Let one journal live under load, with what is `beside` it.

    `ready` is entered before its file is counted first and the disk is slow. With `rest` the last flush and a whole
    interval after it are waited for. `nocow` says what the file is from the first byte: it then has lived through
    as many flushes as give a datacow one so many extents, and is read cold at the end.
    """
    with flushing(asked.interval) as place:
        _aged(place, asked.extents, nocow)
        base, active = place.volume.base, place.journald.active
        before_bytes = place.volume.count_written_bytes()
        with ExitStack() as stack:
            stack.enter_context(ready(place))
            first = extents(active)
            stack.enter_context(slowed(place.volume, asked.iops))
            theirs = stack.enter_context(fsyncs(place.journald.pid))
            with Load(place, asked.rate) as load:
                # after the load, so that the file is ONLINE: what a first append syncs is no timer's flush
                stack.enter_context(beside(place))
                with _starved(place, asked):
                    seen = [(active.stat().st_ino, extents(active)) for _ in every_second(asked.minutes * 60)]
            if rest:
                _after_the_last_flush(place, asked.interval)
            else:
                place.journald.sync()
            last = extents(active)
        device_bytes = place.volume.count_written_bytes() - before_bytes
        ours = base / "ours"
        return Life(
            first, [count for _, count in seen], last,
            theirs,
            calls(ours, PIECES) if ours.exists() else [],
            calls(ours, rf"f(data)?sync\(.*/{STATE}/") if ours.exists() else [],
            load.sent_bytes, device_bytes, _our_bytes(place.volume.mountpoint / STATE),
            len({inode for inode, _ in seen}) - 1,
            *_delays_s(place, load.sent),
            None if nocow is None else _cold_read_s(place),
        )  # fmt: skip


EXTENTS_A_FLUSH: Final = 20
"""Which one flush of 40 messages adds to a datacow file, roughly."""


def _aged(place: Bed, wanted: int, nocow: bool | None) -> None:
    if nocow is None:
        age(place, wanted)
        place.journald.sync()
        return
    run("chattr", "+C" if nocow else "-C", place.journald.journal)
    place.journald.rotate()
    place.journald.age(wanted // EXTENTS_A_FLUSH)


def _starved(place: Bed, asked: Namespace) -> AbstractContextManager[object]:
    percent = getattr(asked, "starve", None)
    return undo_at_end(*STARVE, str(place.journald.pid), str(percent)) if percent else nullcontext()


def _after_the_last_flush(place: Bed, interval_s: float) -> None:
    """Wait until what was logged is flushed, and for a whole interval more."""
    eventually(lambda: not place.journald.state(), 3 * interval_s + 30, pause_s=0.1)
    time.sleep(interval_s)


def _our_bytes(state: Path) -> int:
    """What the service says that it wrote; the record itself not counted."""
    if not state.exists():
        return 0
    with Record(str(state), read_only=True) as record:
        return sum(entry.outcome.bytes_written for entry in record.history())


def _delays_s(place: Bed, wanted: int) -> tuple[list[float], list[float]]:
    """What the entries tell of journald's delays, and of those since the planned moments.

    Raises: RuntimeError if one is missing.
    """
    words = ("--output=json", "--output-fields=LAB_PLANNED,_SOURCE_REALTIME_TIMESTAMP")
    lines = run("journalctl", "-D", place.journald.journal, "--quiet", *words).encode().splitlines()
    found = [entry for entry in map(parse_text_fields, lines) if "LAB_PLANNED" in entry]
    if len(found) != wanted:
        raise RuntimeError(f"{wanted} messages were logged, {len(found)} are in the journal")
    return [(compute_wait_us(entry) or 0) / 1e6 for entry in found], [
        (int(entry["__REALTIME_TIMESTAMP"]) - int(entry["LAB_PLANNED"])) / 1e6 for entry in found
    ]


def _cold_read_s(place: Bed) -> float:
    """How long the newest entries of the active file take to be read from a slow disk; journald is ended before."""
    place.journald.stop()
    place.volume.remount()
    with slowed(place.volume, COLD_IOPS):
        return timed(lambda: run("journalctl", f"--file={place.journald.active}", "--quiet", f"--lines={COLD_LINES}"))


def whole_life(one: Life) -> Life:
    """The same, of one file only.

    Raises: RuntimeError if there was another: extents of two are not compared.
    """
    if one.rotations:
        raise RuntimeError("journald rotated: fewer messages, or a larger SystemMaxFileSize=")
    return one


# what is beside it


def traced(config: str) -> Beside:
    """The service under strace."""

    return lambda place: serving(place, config, trace=place.volume.base / "ours")


@contextmanager
def made_whole(place: Bed, config: str) -> Iterator[None]:
    """The service, which has left at most a tenth of the active file's extents.

    Raises: RuntimeError if it does not.
    """
    active = place.journald.active
    torn = extents(active)
    with serving(place, config):
        if not eventually(lambda: extents(active) <= torn / 10, PATIENCE_S, pause_s=1):
            raise RuntimeError(f"the service left {extents(active)} of {torn} extents")
        yield
