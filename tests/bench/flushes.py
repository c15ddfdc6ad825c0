# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""An active datacow file under load, with the service and without: flushes, extents, bytes.

    sudo python -m tests.bench.flushes                       # 6 minutes
    sudo python -m tests.bench.flushes --minutes 1 --extents 800
    sudo python -m tests.bench.flushes --curve --minutes 3   # extents against bytes, by ExtentsPerMiB=
    sudo python -m tests.bench.flushes --nocow --iops 500    # 8 minutes: NOCOW against datacow, both with the service

Two private journalds flush every 10 s under the same load, each on a volume of its own (12 GiB,
sparse: smaller ones commit transactions more often), and beside one of them runs the service.
tracefs has journald's fsyncs and strace the service's writes, so what overlaps is seen and not guessed.
The extents are counted once a second, and once more when the load has ended, the last flush has
come and a whole interval after it has passed. Bytes are those that the volume's device was given.

With --nocow both have the service, one with Nocow=yes and one with Nocow=no, and no snapshots. Both files are
born so, and have lived through as many flushes as give a datacow one --extents. The intake delay is journald's
own, as in the bench `intake`; the cold read is one of the active file from an unmounted volume at 150 IOPS.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from journalkeeper.history.record import Record
from journalkeeper.lab.bed import Bed, bed
from journalkeeper.lab.load import Load
from journalkeeper.lab.volume import extents
from journalkeeper.report.distribution import quantile
from tests.bench.archive import slowed
from tests.bench.figures import (
    Figure,
    at_least,
    at_most,
    count_is,
    mib,
    need_a_bed,
    parser,
    run,
    show,
    timed,
    versions,
)
from tests.bench.intake import delays
from tests.bench.service import (
    DATACOW,
    OUR_CALLS,
    PIECES,
    STATE,
    Call,
    Service,
    add_config,
    age,
    calls,
    every_second,
    fsyncs,
)

SETTINGS = ("SystemMaxFileSize=128M", "SystemMaxUse=2G")
SIZE = "12G"
EXTENTS_A_FLUSH = 20
"""Which one flush of 40 messages adds to a datacow file, roughly."""

COLD_IOPS, COLD_LINES = 150, 1000
APART_S = 2.0
"""fsyncs that are further apart belong to different flushes."""

THRESHOLDS = (4, 8, 16, 32, 64, 128)


class Waits(NamedTuple):
    """What loggers and a reader waited for: each message's intake delay, and a cold read of the active file."""

    intake_s: list[float]
    cold_s: float


class Run(NamedTuple):
    """What became of one journal: extents at first, each second, and at last; calls; bytes; `waits` if asked for."""

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
    waits: Waits | None

    @property
    def flushes(self) -> int:
        """How many flushes journald made."""
        return sum(
            number == 0 or call.began_s - self.fsyncs[number - 1].ended_s > APART_S
            for number, call in enumerate(self.fsyncs)
        )

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


def live(asked: Namespace, config: str | None, *, nocow: bool | None = None) -> Run:
    """Let one journal live, with the service if there is a configuration for it.

    Where `nocow` says what its file is from the first byte, what others waited for is measured, too.
    """
    with bed(*SETTINGS, size=SIZE, sync_interval=f"{asked.interval}s") as place:
        if nocow is None:
            age(place, asked.extents)
        else:
            run("chattr", "+C" if nocow else "-C", place.journald.journal)
            place.journald.rotate()
            place.journald.age(asked.extents // EXTENTS_A_FLUSH)
        base, active = place.volume.base, place.journald.active
        first = extents(active)
        before_bytes = place.volume.written_bytes()
        with ExitStack() as stack:
            stack.enter_context(slowed(place.volume, asked.iops))
            theirs = stack.enter_context(fsyncs(place.journald.pid))
            load = Load(place, asked.rate)
            with load:  # first, so that the file is ONLINE: what a first append syncs is no timer's flush
                if config is not None:
                    wrapper = (*OUR_CALLS, "-o", f"{base / 'ours'}")
                    stack.enter_context(Service(place, config, wrapper=wrapper))
                seen = [(active.stat().st_ino, extents(active)) for _ in every_second(asked.minutes * 60)]
            _after_the_last_flush(place, asked.interval)
            last = extents(active)
        device_bytes = place.volume.written_bytes() - before_bytes
        ours = base / "ours"
        return Run(
            first, [count for _, count in seen], last,
            theirs,
            calls(ours, PIECES) if config is not None else [],
            calls(ours, rf"f(data)?sync\(.*/{STATE}/") if config is not None else [],
            load.sent_bytes, device_bytes, _our_bytes(place.volume.mountpoint / STATE),
            len({inode for inode, _ in seen}) - 1,
            None if nocow is None else Waits(delays(place, load.sent)[0], _cold_read_s(place)),
        )  # fmt: skip


def whole_life(one: Run) -> Run:
    """The same run, of one file only.

    Raises: RuntimeError if there was another: extents of two are not compared.
    """
    if one.rotations:
        raise RuntimeError("journald rotated: fewer messages, or a larger SystemMaxFileSize=")
    return one


def _cold_read_s(place: Bed) -> float:
    """How long the newest entries of the active file take to be read from a slow disk; journald is ended before."""
    place.journald.stop()
    place.volume.remount()
    with slowed(place.volume, COLD_IOPS):
        return timed(lambda: run("journalctl", f"--file={place.journald.active}", "--quiet", f"--lines={COLD_LINES}"))


def _after_the_last_flush(place: Bed, interval_s: float) -> None:
    """Wait until what was logged is flushed, and for a whole interval more."""
    deadline = time.monotonic() + 3 * interval_s + 30
    while place.journald.state() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(interval_s)


def _our_bytes(state: Path) -> int:
    """What the service says that it wrote; the record itself not counted."""
    if not state.exists():
        return 0
    with Record(str(state), read_only=True) as record:
        return sum(entry.outcome.bytes_written for entry in record.history())


def compare(asked: Namespace) -> None:
    """With and without, at the same time."""
    with ThreadPoolExecutor(2) as pool:
        configs = (DATACOW + asked.config, None)
        ours, theirs = pool.map(lambda config: whole_life(live(asked, config)), configs)
    took, took_without = ours.fsync_ms(), theirs.fsync_ms()
    logged = mib(ours.logged_bytes)
    notes = [
        f"{asked.rate:g} messages/s for {asked.minutes:g} min, {logged} logged, SyncIntervalSec={asked.interval:g}s",
        f"with: {ours.first} extents at first, {ours.last} at last, mean {statistics.mean(ours.each):.0f}, "
        f"most {max(ours.each)}; {len(ours.pieces)} writing calls, {mib(ours.our_bytes)} rewritten",
        f"without: {theirs.first} at first, {theirs.last} at last, mean {statistics.mean(theirs.each):.0f}",
        f"journald's fsyncs with: {len(took)}, median {statistics.median(took):.2f} ms, worst {max(took):.1f}",
        f"without: {len(took_without)}, median {statistics.median(took_without):.2f} ms, worst {max(took_without):.1f}",
        *(f"overlapping: {overlap}" for overlap in ours.overlaps(ours.pieces)),
    ]
    show("Flushes", notes, figures(ours, theirs))


def figures(ours: Run, theirs: Run) -> list[Figure]:
    """The rows that were asked for, and what they cost."""
    took, took_without = ours.fsync_ms(), theirs.fsync_ms()
    return [
        at_least("flushes of journald's timer", ours.flushes, 25),
        at_least("writing calls of the service", len(ours.pieces), 1),
        count_is("of them overlapping a flush", len(ours.overlaps(ours.pieces)), 0),
        Figure("syncs of its record overlapping a flush", str(len(ours.overlaps(ours.other_syncs)))),
        at_most("extents at last, with / without", ours.last / theirs.last, 0.1),
        Figure("mean extents, with / without", f"{statistics.mean(ours.each) / statistics.mean(theirs.each):.3g}"),
        Figure("written by the service / logged", f"{ours.our_bytes / ours.logged_bytes:.3g}"),
        Figure("device's bytes / logged, with", f"{ours.device_bytes / ours.logged_bytes:.3g}"),
        Figure("device's bytes / logged, without", f"{theirs.device_bytes / theirs.logged_bytes:.3g}"),
        at_most(
            "journald's fsyncs, median, with / without", statistics.median(took) / statistics.median(took_without), 1.1
        ),
        at_most("journald's fsyncs, worst, with / without", max(took) / max(took_without), 1.1),
    ]


def curve(asked: Namespace) -> None:
    """Extents against bytes, by threshold."""

    def at(threshold: int) -> Run:
        return whole_life(live(asked, f"{DATACOW}[Defrag]\nExtentsPerMiB={threshold}\n{asked.config}"))

    with ThreadPoolExecutor(asked.jobs) as pool:
        runs = dict(zip(THRESHOLDS, pool.map(at, THRESHOLDS), strict=True))
    print(f"Extents against bytes, {asked.rate:g} messages/s for {asked.minutes:g} min\n{versions()}\n")
    print(f"{'ExtentsPerMiB':>13}  {'mean':>6}  {'last':>6}  {'rewritten / logged':>18}  {'device / logged':>15}")
    for threshold, one in runs.items():
        ours, device = one.our_bytes / one.logged_bytes, one.device_bytes / one.logged_bytes
        print(f"{threshold:13}  {statistics.mean(one.each):6.0f}  {one.last:6}  {ours:18.2f}  {device:15.2f}")


def nocow(asked: Namespace) -> None:
    """NOCOW against datacow, both with the service, at the same time."""
    arms = {"nocow": ("[Nocow]\nNocow=yes\n", True), "datacow": (DATACOW, False)}

    def at(arm: tuple[str, bool]) -> Run:
        return live(asked, arm[0] + asked.config, nocow=arm[1])

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(arms, pool.map(at, arms.values()), strict=True))
    notes = [
        f"{asked.rate:g} messages/s for {asked.minutes:g} min, SyncIntervalSec={asked.interval:g}s, {asked.iops} IOPS"
    ]
    rows: list[Figure] = []
    for name, one in found.items():
        tenth = max(1, len(one.each) // 10)
        notes.append(f"{name}: extents {one.first} at first, then {' '.join(map(str, one.each[tenth - 1 :: tenth]))}")
        rows += nocow_figures(name, one)
    show("NOCOW and datacow, with the service", notes, rows)


def nocow_figures(name: str, one: Run) -> list[Figure]:
    """What one of the two cost and brought."""
    assert one.waits is not None
    intake_ms, fsync_ms = sorted(1000 * wait for wait in one.waits.intake_s), one.fsync_ms()
    return [
        Figure(f"{name}: extents of the active file, mean", f"{statistics.mean(one.each):.0f}"),
        Figure(f"{name}: extents at last", str(one.last)),
        Figure(f"{name}: rotations", str(one.rotations)),
        Figure(f"{name}: cold journalctl -n {COLD_LINES}, s", f"{one.waits.cold_s:.2f}"),
        Figure(f"{name}: intake delay p99, ms", f"{quantile(intake_ms, 990):.2f}"),
        Figure(f"{name}: worst, ms", f"{intake_ms[-1]:.1f}"),
        Figure(f"{name}: journald's fsyncs, median, ms", f"{statistics.median(fsync_ms):.2f}"),
        Figure(f"{name}: worst fsync, ms", f"{max(fsync_ms):.1f}"),
        Figure(f"{name}: written by us / logged", f"{one.our_bytes / one.logged_bytes:.3g}"),
        Figure(f"{name}: device's bytes / logged", f"{one.device_bytes / one.logged_bytes:.3g}"),
    ]


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--minutes", type=float, default=5, help="of load (default: %(default)s)")
    words.add_argument("--rate", type=float, default=100, help="messages a second (default: %(default)s)")
    words.add_argument("--extents", type=int, default=3000, help="of the file at first (default: %(default)s)")
    words.add_argument("--interval", type=float, default=10, help="SyncIntervalSec= in seconds (default: %(default)s)")
    add_config(words)
    words.add_argument("--curve", action="store_true", help=f"with ExtentsPerMiB= {', '.join(map(str, THRESHOLDS))}")
    words.add_argument("--jobs", type=int, default=len(THRESHOLDS), help="of the curve at a time (default: all)")
    words.add_argument("--nocow", action="store_true", help="NOCOW against datacow, both with the service")
    words.add_argument("--iops", type=int, default=0, help="of each device under load (default: as many as it has)")
    asked = words.parse_args()
    need_a_bed(words)
    (curve if asked.curve else nocow if asked.nocow else compare)(asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
