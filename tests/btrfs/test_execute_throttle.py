# SPDX-License-Identifier: LGPL-2.1-or-later
"""Feedback from a real journald and a real volume."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from journalkeeper.btrfs.maintenance import find_maintenance
from journalkeeper.config.directives import Config, WatchSection, WindowSection
from journalkeeper.engine import Engine
from journalkeeper.execute import runner
from journalkeeper.execute.pace import PieceTimes
from journalkeeper.execute.runner import Runner, Throttle
from journalkeeper.model import Action, Kind, Reason, Request, Verb
from journalkeeper.observe.flushes import Flushes
from journalkeeper.observe.observer import Observer, Seen
from journalkeeper.policy.backpressure import Advice
from journalkeeper.probe.bed import ONLINE, Bed
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.journals import ALWAYS, log_until_online
from tests.journal_files import count_entries, put
from tests.patience import TRIES, eventually
from tests.volumes import limit

pytestmark = pytest.mark.root


def test_a_real_scrub_and_a_real_balance_are_seen_while_they_go_on(make_volume: Callable[..., ScratchVolume]) -> None:
    volume = make_volume("2G")
    uuid = run("findmnt", "-no", "UUID", volume.mountpoint).strip()
    (volume.mountpoint / "data").write_bytes(os.urandom(64 << 20))
    os.sync()
    assert find_maintenance(uuid) == ""
    limit(volume, 40)
    for doing, command in {
        "scrub": ("scrub", "start", "-B"),
        "balance": ("balance", "start", "--full-balance"),
    }.items():
        null = subprocess.DEVNULL
        with subprocess.Popen(("btrfs", *command, volume.mountpoint), stdout=null, stderr=null) as process:
            seen = eventually(lambda expected=doing: find_maintenance(uuid) == expected)  # type: ignore[misc]
            volume.throttle(0)
            process.wait()
        assert seen
        assert eventually(lambda: find_maintenance(uuid) == "")
        volume.throttle(40)


@contextmanager
def writing(volume: ScratchVolume) -> Iterator[None]:
    """Somebody writes there as fast as it goes."""
    command = f"while :; do dd if=/dev/zero of={volume.mountpoint}/backup bs=64k count=2000 conv=fsync,notrunc; done"
    with subprocess.Popen(("sh", "-c", command), stderr=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_plan_waits_for_who_uses_its_own_disk_and_not_for_another(
    make_volume: Callable[..., ScratchVolume], journal_bytes: bytes, make_engine: Callable[..., Engine]
) -> None:
    volumes = make_volume("1G"), make_volume("1G")
    put(volumes[0].mountpoint, journal_bytes)
    os.sync()
    at_once = ALWAYS.model_copy(update={"watch": WatchSection(settle_us=0)})
    config = at_once.model_copy(update={"window": WindowSection(pressure_max_percent=0)})
    engine = make_engine(volumes[0].mountpoint, config=config)

    def reasons() -> list[Reason]:
        return [skip.reason for skip in engine.plan(Request()).skipped]

    with writing(volumes[1]):
        assert eventually(lambda: reasons() == [])
    with writing(volumes[0]):
        assert eventually(lambda: reasons() == [Reason.PRESSURE])
        assert engine.plan(Request(now=True)).actions


# Before each piece


class Asked:
    """A Throttle for one file of a bed, with what it was made of."""

    def __init__(self, bed: Bed, kind: Kind, *, hurry: bool = False) -> None:
        self.flushes = Flushes()
        self.stopped = False
        self.seen = self.look(bed)
        file = next(file for file in self.seen.files if file.kind is kind)
        action = Action(file.path, Verb.DEFRAGMENT, Reason.FRAGMENTED, file)
        config = Config(window=WindowSection(margin_us=500_000))
        made = Runner(config, self.flushes, PieceTimes(), hurry=hurry, stop=lambda: self.stopped)
        self.throttle = Throttle(made, action, self.seen)

    def look(self, bed: Bed) -> Seen:
        seen = Observer().look([str(bed.directory)], now_us=time.time_ns() // 1000)
        # The instance's own settings are in journald's namespace.
        seen = seen._replace(instances=tuple(one._replace(sync_interval_us=3_000_000) for one in seen.instances))
        self.flushes.look(seen.instances, seen.files)
        return seen


@pytest.fixture
def short(make_bed: Callable[..., Bed]) -> Bed:
    """A journald that flushes 3 s after the first append, and has one archive and nothing unsynced."""
    bed = make_bed("SyncIntervalSec=3s")
    bed.journald.rotate()
    bed.journald.log("so that there is an active file")
    assert eventually(lambda: count_entries(bed.journald.active) > 0)
    bed.journald.sync()
    return bed


def begin_interval(short: Bed, kind: Kind) -> Asked | None:
    """Return an Asked that saw nothing unsynced, after a message; None if the file was not ONLINE before the flush."""
    assert eventually(lambda: short.journald.state() != ONLINE)
    one = Asked(short, kind)
    short.journald.log("the timer starts")
    return one if eventually(lambda: short.journald.state() == ONLINE, 10) else None


def test_once_something_is_unsynced_the_window_closes_before_the_flush(short: Bed) -> None:
    """The plan saw it OFFLINE and knew no limit: what came after it does."""

    def closes_before(_: int) -> bool:
        if (one := begin_interval(short, Kind.ACTIVE)) is None:
            return False
        answers = [one.throttle(0), one.throttle(3_000_000)]
        while not one.throttle(0) and short.journald.state() == ONLINE:
            time.sleep(0.02)
        answers.append(one.throttle(0))
        return answers == [None, *[Reason.WINDOW_CLOSED] * 2] and short.journald.state() == ONLINE

    assert any(map(closes_before, TRIES))


def test_an_archives_piece_waits_until_the_flush_is_over(short: Bed) -> None:
    def waits(_: int) -> bool:
        if (one := begin_interval(short, Kind.ARCHIVED)) is None:
            return False
        one.look(short)
        assert one.throttle(0) is None, "not yet due"
        while not (is_due := one.flushes.is_flush_due(500_000)) and short.journald.state() == ONLINE:
            time.sleep(0.02)
        assert one.throttle(0) is None
        return is_due and short.journald.state() != ONLINE and one.flushes.take_plan_need()

    assert any(map(waits, TRIES))


def test_a_stop_ends_a_pause(short: Bed) -> None:
    def ends(_: int) -> bool:
        if (one := begin_interval(short, Kind.ARCHIVED)) is None:
            return False
        one.look(short)
        os.kill(short.journald.pid, signal.SIGSTOP)  # the flush does not come
        try:
            if short.journald.state() != ONLINE:  # or it has come
                return False
            assert eventually(lambda: one.flushes.is_flush_due(500_000))
            threading.Timer(0.5, setattr, (one, "stopped", True)).start()
            return one.throttle(0) is Reason.INTERRUPTED
        finally:
            os.kill(short.journald.pid, signal.SIGCONT)

    assert any(map(ends, TRIES))


def test_a_hurried_request_waits_for_no_flush(short: Bed) -> None:
    one = Asked(short, Kind.ACTIVE, hurry=True)
    short.journald.log("the timer starts")
    assert one.throttle(10_000_000) is None


def test_above_half_of_a_limit_it_rests_as_long_as_the_piece_takes(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 50 and 250 ms."""
    log_until_online(bed.journald, "after all that it says of its start")
    bed.journald.sync()
    monkeypatch.setattr(runner, "REST_EVERY_S", math.inf)
    one, rests = Asked(bed, Kind.ACTIVE), list[float]()
    monkeypatch.setattr(runner, "advise", lambda *_: Advice.SLOW_DOWN)
    monkeypatch.setattr(Throttle, "_rest", lambda _, rest_s: rests.append(rest_s))
    for piece_us in (10_000, 120_000, 900_000):
        assert one.throttle(piece_us) is None
    assert rests == [0.05, 0.12, 0.25]
