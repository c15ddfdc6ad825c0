# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pieces by the disk's speed: a clock that a made-up disk moves."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from journalkeeper.config.directives import Config, Defrag, WindowSection
from journalkeeper.execute import pace as module
from journalkeeper.execute.pace import LEAST_BYTES, Pace, SlowestPiece
from journalkeeper.execute.runner import Runner
from journalkeeper.model import KIB, MIB, Action, Kind, Plan, Range, Reason, Verb
from tests.hosts import file

PIECE_US = 50_000
Clock = SimpleNamespace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(now_ns=0)
    now = {"monotonic_ns": lambda: made.now_ns, "monotonic": lambda: made.now_ns / 1e9}
    monkeypatch.setattr(module, "time", Mock(**now))
    return made


@pytest.mark.parametrize(
    ("us_per_mib", "total", "first", "longest"),
    [
        (100, 64 * MIB, [256 * KIB, 512 * KIB, MIB, 2 * MIB], 16 * MIB),  # at most double, up to the largest
        (5_000, 64 * MIB, [256 * KIB, 512 * KIB], 5 * MIB),  # 25 ms for what may take 50: half of it
        (1_000_000, 2 * MIB, [LEAST_BYTES] * 3, LEAST_BYTES),  # as long as what the kernel works on at a time
    ],
)
def test_pieces_begin_small_and_grow_with_the_speed_of_the_disk(
    clock: Clock, us_per_mib: int, total: int, first: list[int], longest: int
) -> None:
    pace = Pace(most_bytes=16 * MIB, piece_us=PIECE_US, ask=lambda _: None, tell=lambda _: None)
    found = list[int]()
    for _, length in pace.iterate_pieces((Range(0, total, 0),)):
        found.append(length)
        clock.now_ns += 1000 * us_per_mib * length // MIB
    assert (found[: len(first)], max(found), sum(found)) == (first, longest, total)


def test_without_a_time_every_piece_is_as_long_as_it_may_be(clock: Clock) -> None:
    pace = Pace(most_bytes=3 * MIB, piece_us=None, ask=lambda _: None, tell=lambda _: None)
    assert [length for _, length in pace.iterate_pieces((Range(0, 8 * MIB, 0),))] == [3 * MIB, 3 * MIB, 2 * MIB]
    assert (pace.written_bytes, pace.slowest_us) == (8 * MIB, clock.now_ns)


def test_the_next_piece_is_asked_for_with_the_time_that_it_will_take_and_none_after_the_end(clock: Clock) -> None:
    asked: list[int] = []

    def ask(piece_us: int) -> Reason | None:
        asked.append(piece_us)
        return Reason.INTERRUPTED if len(asked) == 3 else None

    pace = Pace(most_bytes=MIB, piece_us=PIECE_US, ask=ask, tell=lambda _: None)
    for _, length in pace.iterate_pieces((Range(0, 8 * MIB, 0),)):
        clock.now_ns += length * 8
    assert (pace.can_go_on(), pace.ended) == (False, Reason.INTERRUPTED)
    assert asked == [0, 2 * 256 * KIB * 8 // 1000, 2 * 512 * KIB * 8 // 1000]
    assert pace.written_bytes == 768 * KIB


def test_a_slow_piece_counts_half_as_much_every_ten_minutes(clock: Clock) -> None:
    slowest = SlowestPiece()
    slowest.add(800)
    slowest.add(100)
    for minutes, longest_us in ((0, 800), (9.9, 800), (10, 400), (25, 200)):
        clock.now_ns = round(minutes * 60e9)
        assert slowest.get_us() == longest_us


@pytest.mark.parametrize(
    ("kind", "compress", "hurry", "piece_us"),
    [
        (Kind.ACTIVE, "no", True, Defrag().chunk_us),
        (Kind.ARCHIVED, "no", False, None),
        (Kind.ARCHIVED, "zstd", False, 7_000),
        (Kind.ARCHIVED, "zstd", True, None),
    ],
)
def test_the_longest_time_of_a_piece(kind: Kind, compress: str, piece_us: int | None, *, hurry: bool) -> None:
    config, one = Config(window=WindowSection(margin_us=7_000)), file(kind)
    runner = Runner(config, Mock(), SlowestPiece(), hurry=hurry, stop=lambda: False)
    what = Action(one.path, Verb.DEFRAGMENT, Reason.FRAGMENTED, one, compress=compress)
    assert runner._choose_piece_us(what) == piece_us


def test_a_file_that_is_gone_counts_as_done_when_the_next_one_begins() -> None:
    runner, tell = Runner(Config(), Mock(), SlowestPiece(), hurry=False, stop=lambda: False), Mock()
    gone = Action("/gone", Verb.DEFRAGMENT, Reason.FRAGMENTED, file(), (Range(0, MIB, 9),))
    assert len(list(runner.carry_out(Plan({}, (gone, gone), ()), Mock(), tell))) == 2
    assert [call.args[0].done_bytes for call in tell.call_args_list] == [0, MIB]
