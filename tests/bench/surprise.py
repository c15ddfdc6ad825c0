# SPDX-License-Identifier: LGPL-2.1-or-later
"""A message of priority crit while a piece is being rewritten: the arm `surprise` of tests/bench/windows.py.

The disk is tests/slowdisk.py, where an I/O that is one too many costs what an I/O costs. Every
30 s the kernel ends a transaction of the volume, and writes back old metadata, for which an fsync
waits, whoever is at work (200 to 400 ms): before each try the volume is synced, while its disk is
quick, and tries that a transaction's end fell into all the same, as commit_stats tells, are counted apart.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import btrfsutil

from journalkeeper.btrfs import volume
from journalkeeper.config.directives import Config
from journalkeeper.journald import opening
from journalkeeper.probe.bed import OFFLINE, Bed, PrivateJournald
from tests.bench.figures import Figure, Option, at_least, at_most, engine, show
from tests.bench.loaded import SETTINGS, SIZE
from tests.bench.service import OUR_CALLS, PIECES, STATE, Call, calls, fsyncs
from tests.daemon import environment
from tests.journal_files import count_entries
from tests.slowdisk import Control, on_slow_disk

FLUSHES = 10
CONFIG = "[Nocow]\nNocow=no\n[Window]\nPressureMax=100%\n[Budget]\nBytesPerDay=infinity\n"
"""The defaults, but begun also on a busy machine, and however often it was before."""

CRIT = "2"
CHUNK_MS = Config().defrag.chunk_us / 1000
JITTER_S = 0.01
LAST_S = 0.2
TRIES_AT_MOST = 5
"""For each one that is wanted."""


class Try(NamedTuple):
    """One message: when it was sent, when the next thing was begun, and the trace of what was beside it.

    `transactions` is how many of the volume's ended from when the disk became slow until its sync was over.
    """

    sent_s: float
    end_s: float
    trace: Path | None
    transactions: int


Slowed = Callable[[], AbstractContextManager[None]]
"""The disk is slow while this lasts."""


@contextmanager
def serial(asked: Namespace) -> Iterator[tuple[Bed, Slowed]]:
    """A bed on a disk that does one I/O after the other."""
    with on_slow_disk(SIZE) as (volume, disk), PrivateJournald(volume.mountpoint, settings=SETTINGS) as journald:
        yield Bed(volume, journald), lambda: _slow(disk, asked.iops)


@contextmanager
def _slow(disk: Control, iops: int) -> Iterator[None]:
    disk.set_iops(iops)
    try:
        yield
    finally:
        disk.set_iops(0)


def attempt(place: Bed, trace: Path | None, slow: Slowed) -> Try:
    """Tear the file, send one message on a slow device, with a rewrite beside it if there is a place for its trace."""
    place.journald.age(FLUSHES)
    btrfsutil.sync(os.fspath(place.volume.mountpoint))
    with slow():
        return _sent(place, trace)


def _sent(place: Bed, trace: Path | None) -> Try:
    before = commits(place).ended
    rewrite = None if trace is None else _rewriting(place, trace)
    sent_s, entries = time.time(), count_entries(place.journald.active)
    place.journald.log("a disk is failing", PRIORITY=CRIT)
    # ONLINE may be over between two looks; the entry stays
    while count_entries(place.journald.active) == entries or place.journald.state() != OFFLINE:
        time.sleep(0.001)
    time.sleep(LAST_S)  # of the fsync that follows OFFLINE
    ended = sum(commits(place)) - before
    if rewrite is not None and rewrite.wait() != 0:
        raise RuntimeError(f"journalkeeper defrag: exit {rewrite.returncode}")
    return Try(sent_s, time.time(), trace, ended)


class Commits(NamedTuple):
    """How many of a volume's transactions were ended, and how many are being ended just now, none or one."""

    ended: int
    under_way: int


def commits(place: Bed) -> Commits:
    """Of the volume. Its generation would not tell: while one is being ended, the next is under way already."""
    with opening.open_directory(os.fspath(place.volume.mountpoint)) as fd:
        uuid = volume.read_volume(fd).uuid
    lines = (line.split() for line in Path(f"/sys/fs/btrfs/{uuid}/commit_stats").read_text().splitlines())
    stats = {name: int(value) for name, value in lines}
    return Commits(stats["commits"], int(stats["cur_commit_ms"] > 0))


def _rewriting(place: Bed, trace: Path) -> subprocess.Popen[bytes]:
    """Have the active file rewritten; returns a moment after the trace shows a piece.

    Raises: RuntimeError if it ends before.
    """
    config = place.volume.base / "journalkeeper.conf"
    config.write_text(CONFIG)
    words = engine("defrag", "--active", "--no-pager", f"--config={config}", os.fspath(place.journald.active))
    surroundings = environment(place.volume.mountpoint / STATE)
    said = trace.with_suffix(".said")
    with open(said, "wb") as file:
        rewrite = subprocess.Popen(
            [*OUR_CALLS, "-o", os.fspath(trace), *words], env=surroundings, stdout=file, stderr=file
        )
    while not (trace.exists() and "DEFRAG" in trace.read_text(errors="replace")):
        if rewrite.poll() is not None:
            raise RuntimeError(f"journalkeeper defrag found nothing to do: {said.read_text()}")
        time.sleep(0.0005)
    time.sleep(random.random() * JITTER_S)  # noqa: S311 - no secret
    return rewrite


def in_a_piece(one: Try) -> bool:
    """Whether the message was sent while a piece was being rewritten or written back."""
    return one.trace is not None and any(
        call.began_s <= one.sent_s <= call.ended_s for call in calls(one.trace, PIECES)
    )


def attempts(asked: Namespace, place: Bed, slow: Slowed) -> tuple[list[Try], list[Try]]:
    """Tries within a piece; before and after each one with nothing beside it, of a file that is torn as much."""
    for trace in (None, place.volume.base / "first"):  # a minute old, the volume makes room in whole transactions
        attempt(place, trace, slow)
    hit: list[Try] = []
    alone = [attempt(place, None, slow)]
    for number in range(asked.tries * TRIES_AT_MOST):
        one = attempt(place, place.volume.base / f"ours-{number}", slow)
        if in_a_piece(one):
            hit.append(one)
            alone.append(attempt(place, None, slow))
        if sum(map(undisturbed, hit, alone, alone[1:])) == asked.tries:
            break
    return hit, alone


def undisturbed(*tries: Try) -> bool:
    """Whether no transaction ended in any of them."""
    return not any(one.transactions for one in tries)


def took_ms(one: Try, syncs: list[Call]) -> float:
    """From the message until its sync was over."""
    _, last, *_ = (call for call in syncs if one.sent_s <= call.began_s < one.end_s)
    return 1000 * (last.ended_s - one.sent_s)


OPTIONS: Final = {
    "tries": Option(100, "within a piece"),
    "iops": Option(500, "of the device; 0 for as many as it has"),
}


def measure(asked: Namespace) -> None:
    """A message of priority crit while a piece is being rewritten: how much later its sync is over.

    journald syncs at once for such a message, and no timer foretells it. For each try the active
    file is torn by real flushes, `journalkeeper defrag --active` rewrites it, as the service does,
    and as soon as strace shows a piece, the message is sent. What was not sent while a piece was
    under way, by the same trace, is no try. The sync is over with the second fsync of the thread that
    journald has for it, the one after OFFLINE. The extra delay is what that takes longer than tries
    with nothing beside them, just before and just after, of a file that was torn as much: their mean,
    as a sync writes now 40, now 70 blocks, and two of them that follow each other differ, too.
    """
    with serial(asked) as (place, slow):
        place.journald.age(60)
        with fsyncs(place.journald.pid) as seen:
            hit, alone = attempts(asked, place, slow)
        # the first append's own is the main thread's; a timer's or a rotation's may come after it
        syncs = [call for call in seen if call.thread != place.journald.pid]
    took, took_alone = ([took_ms(one, syncs) for one in tries] for tries in (hit, alone))
    extra = [
        ours - (before + after) / 2
        for ours, before, after, *tries in zip(took, took_alone, took_alone[1:], hit, alone, alone[1:], strict=False)
        if undisturbed(*tries)
    ]
    apart = [
        abs(after - before)
        for before, after, *tries in zip(took_alone, took_alone[1:], alone, alone[1:], strict=False)
        if undisturbed(*tries)
    ]
    ending = [
        [f"{ms:.0f}" for one, ms in zip(tries, times, strict=True) if one.transactions]
        for tries, times in ((alone, took_alone), (hit, took))
    ]
    notes = [
        f"{asked.iops} IOPS; pieces are made to take {CHUNK_MS:g} ms",
        f"alone: median {statistics.median(took_alone):.1f} ms, worst {max(took_alone):.1f}",
        f"in a piece: median {statistics.median(took):.1f} ms, worst {max(took):.1f}",
        "while a transaction ended, ms: alone {}, in a piece {}".format(*(" ".join(one) or "none" for one in ending)),
    ]
    figures = [
        at_least("messages sent while a piece was under way", len(extra), asked.tries),
        at_most("extra delay of the sync, median, ms", statistics.median(extra), CHUNK_MS),
        at_most("extra delay, worst, ms", max(extra), CHUNK_MS),
        Figure("the five longest, ms", " ".join(f"{one:.0f}" for one in sorted(extra)[-5:])),
        Figure("two alone that follow each other differ by, at most, ms", f"{max(apart):.3g}"),
    ]
    show("A surprise", notes, figures)
