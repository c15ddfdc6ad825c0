# SPDX-License-Identifier: LGPL-2.1-or-later
"""Send a message of priority crit while a piece is being rewritten: the arm `surprise` of tests/bench/windows.py.

The disk is tests/slowdisk.py, where one I/O too many costs what an I/O costs. The volume has commit=300 and is synced
before each try, while its disk is quick: an fsync waits for the end of a transaction, whoever is at work.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import time
from argparse import Namespace
from pathlib import Path
from typing import Final, NamedTuple

import btrfsutil

from journalkeeper.config.directives import Config
from journalkeeper.probe.bed import OFFLINE, Bed, PrivateJournald
from tests.bench.figures import Figure, Option, at_least, at_most, engine, show
from tests.bench.loaded import SETTINGS, SIZE
from tests.bench.service import OUR_CALLS, PIECES, STATE, Call, calls, fsyncs
from tests.daemon import environment
from tests.journal_files import count_entries
from tests.slowdisk import Control, on_slow_disk

FLUSHES = 10
CONFIG = "[Nocow]\nNocow=no\n[Window]\nPressureMax=100%\n[Budget]\nBytesPerDay=infinity\n"
"""The defaults, except that work begins also on a busy machine, and however often it was done before."""

CHUNK_MS = Config().defrag.chunk_us / 1000
JITTER_S = 0.01
LAST_S = 0.2
TRIES_AT_MOST = 5
"""For each one that is wanted."""

OPTIONS: Final = {"tries": Option(100, "within a piece"), "iops": Option(500, "of the device; 0 for as many as it has")}


class Try(NamedTuple):
    """One message: when it was sent, the end of the try, and whether it was sent while a piece was under way."""

    sent_s: float
    end_s: float
    in_a_piece: bool


class Bench(NamedTuple):
    """A bed on a disk that does one I/O after the other, at `iops` during a try."""

    place: Bed
    disk: Control
    iops: int

    def attempt(self, trace: Path | None) -> Try:
        """Fragment the file, and send one message on a slow disk, during a rewrite that is traced to `trace` if any."""
        self.place.journald.age(FLUSHES)
        btrfsutil.sync(os.fspath(self.place.volume.mountpoint))
        self.disk.set_iops(self.iops)
        try:
            return self._send(trace)
        finally:
            self.disk.set_iops(0)

    def _send(self, trace: Path | None) -> Try:
        journald = self.place.journald
        rewrite = None if trace is None else self._rewrite(trace)
        sent_s, entries = time.time(), count_entries(journald.active)
        journald.log("a disk is failing", PRIORITY="2")
        # ONLINE may be over between two looks; the entry stays
        while count_entries(journald.active) == entries or journald.state() != OFFLINE:
            time.sleep(0.001)
        time.sleep(LAST_S)  # of the fsync that follows OFFLINE
        if rewrite is not None and rewrite.wait() != 0:
            raise RuntimeError(f"journalkeeper defrag: exit {rewrite.returncode}")
        pieces = [] if trace is None else calls(trace, PIECES)
        return Try(sent_s, time.time(), any(one.began_s <= sent_s <= one.ended_s for one in pieces))

    def _rewrite(self, trace: Path) -> subprocess.Popen[bytes]:
        """Start a rewrite of the active file, and return it a moment after the trace shows a piece.

        Raises: RuntimeError if it ends before.
        """
        config, said = trace.with_suffix(".conf"), trace.with_suffix(".said")
        config.write_text(CONFIG)
        words = engine("defrag", "--active", "--no-pager", f"--config={config}", os.fspath(self.place.journald.active))
        with open(said, "wb") as file:
            rewrite = subprocess.Popen(
                [*OUR_CALLS, "-o", os.fspath(trace), *words],
                env=environment(self.place.volume.mountpoint / STATE),
                stdout=file,
                stderr=file,
            )
        while not (trace.exists() and "DEFRAG" in trace.read_text(errors="replace")):
            if rewrite.poll() is not None:
                raise RuntimeError(f"journalkeeper defrag found nothing to do: {said.read_text()}")
            time.sleep(0.0005)
        time.sleep(random.random() * JITTER_S)  # noqa: S311 - no secret
        return rewrite

    def attempt_all(self, wanted: int) -> tuple[list[Try], list[Try]]:
        """Return tries within a piece, and one without a rewrite before and after each, of an equally aged file."""
        base = self.place.volume.base
        for trace in (None, base / "first"):  # a minute old, the volume makes room in whole transactions
            self.attempt(trace)
        hit: list[Try] = []
        alone = [self.attempt(None)]
        for number in range(wanted * TRIES_AT_MOST):
            one = self.attempt(base / f"ours-{number}")
            if one.in_a_piece:
                hit.append(one)
                alone.append(self.attempt(None))
            if len(hit) == wanted:
                break
        return hit, alone


def took_ms(one: Try, syncs: list[Call]) -> float:
    """Return the time from the message until its sync was over."""
    _, last, *_ = (call for call in syncs if one.sent_s <= call.began_s < one.end_s)
    return 1000 * (last.ended_s - one.sent_s)


def measure(asked: Namespace) -> None:
    """Measure how much later the sync of a message of priority crit is over while a piece is being rewritten.

    journald syncs at once for such a message, and no timer foretells it. For each try real flushes fragment the active
    file, `journalkeeper defrag --active` rewrites it, as the service does, and as soon as strace shows a piece, the
    message is sent. If no piece was under way by the same trace, the try does not count. The sync is over with the
    second fsync of journald's syncing thread, the one after OFFLINE. The extra delay is what that takes longer than
    the mean of a try without a rewrite just before and one just after: a sync writes now 40, now 70 blocks.
    """
    with (
        on_slow_disk(SIZE, "commit=300") as (volume, disk),
        PrivateJournald(volume.mountpoint, settings=SETTINGS) as journald,
    ):
        journald.age(60)
        with fsyncs(journald.pid) as seen:
            hit, alone = Bench(Bed(volume, journald), disk, asked.iops).attempt_all(asked.tries)
        # the first append's own is the main thread's; a timer's or a rotation's may come after it
        syncs = [call for call in seen if call.thread != journald.pid]
    took, took_alone = ([took_ms(one, syncs) for one in tries] for tries in (hit, alone))
    extra = [ours - (before + after) / 2 for ours, before, after in zip(took, took_alone, took_alone[1:], strict=False)]
    notes = [
        f"{asked.iops} IOPS; pieces are made to take {CHUNK_MS:g} ms",
        f"alone: median {statistics.median(took_alone):.1f} ms, worst {max(took_alone):.1f}",
        f"in a piece: median {statistics.median(took):.1f} ms, worst {max(took):.1f}",
    ]
    figures = [
        at_least("messages sent while a piece was under way", len(extra), asked.tries),
        at_most("extra delay of the sync, median, ms", statistics.median(extra), CHUNK_MS),
        at_most("extra delay, worst, ms", max(extra), CHUNK_MS),
        Figure("the five longest, ms", " ".join(f"{one:.0f}" for one in sorted(extra)[-5:])),
    ]
    show("A surprise", notes, figures)
