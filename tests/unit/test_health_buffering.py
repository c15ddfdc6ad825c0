# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which programs' output comes in blocks, told from the sizes and times of their lines."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from journalkeeper.health.buffering import BLOCK, Burst, bursts, fits, judge_stream
from journalkeeper.health.evidence import Line, Unknown
from journalkeeper.health.finding import Finding
from journalkeeper.health.rules import RULES
from journalkeeper.model.units import SECOND_US
from tests.evidence import evidence, journal, stream
from tests.hosts import NOW_US

PYTHON_BLOCK = 8192


def drawn(seed: int) -> random.Random:
    """Numbers that are the same at each run."""
    return random.Random(seed)  # noqa: S311 - nothing is kept secret by them


def texts(number: int, shortest: int = 60, longest: int = 90, seed: int = 1) -> list[int]:
    """The lengths of so many lines, without their newlines."""
    chosen = drawn(seed)
    return [chosen.randint(shortest, longest) for _ in range(number)]


def in_bursts(counts: Sequence[Sequence[int]], gap_us: int = 4 * SECOND_US) -> list[Line]:
    """Lines of these lengths, burst by burst, 100 us apart within one."""
    return [Line(NOW_US + n * gap_us + k * 100, size) for n, sizes in enumerate(counts) for k, size in enumerate(sizes)]


def cut_anywhere(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The lines that are whole after each full block of 4,096 bytes, as a C library writes them."""
    written = 0
    burst: list[int] = []
    for length in lengths:
        if written + length + 1 > BLOCK:
            yield burst
            written, burst = written - BLOCK, []
        written += length + 1
        burst.append(length)


def whole_lines(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The lines of each write of Python's, of at most 8,192 bytes."""
    burst: list[int] = []
    for length in lengths:
        if sum(burst) + len(burst) + length + 1 > PYTHON_BLOCK:
            yield burst
            burst = []
        burst.append(length)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("written", [cut_anywhere, whole_lines])
def test_blocks_are_found_within_four_bursts(written: object, seed: int) -> None:
    parts = list(written(texts(600, seed=seed)))[:4]  # type: ignore[operator] # one of two functions
    found = judge_stream(stream(*in_bursts(parts)))
    assert found is not None
    assert found.bursts >= 3
    assert found.interval_us == 4 * SECOND_US


@pytest.mark.parametrize("seed", range(20))
def test_lines_that_come_one_by_one_are_no_blocks(seed: int) -> None:
    lengths = texts(2000, seed=seed)
    lines = [Line(NOW_US + n * SECOND_US // 20, length) for n, length in enumerate(lengths)]
    assert judge_stream(stream(*lines)) is None
    slow = [Line(NOW_US + n * 3 * SECOND_US, length) for n, length in enumerate(lengths)]
    assert judge_stream(stream(*slow)) is None


def test_reports_of_any_size_are_hardly_ever_taken_for_blocks() -> None:
    taken = 0
    for seed in range(500):
        chosen = drawn(seed)
        parts = [texts(chosen.randint(20, 200), 40, 120, seed * 100 + n) for n in range(12)]
        taken += judge_stream(stream(*in_bursts(parts))) is not None
    assert taken <= 5  # ten places for three in a row, one in a thousand each


def blocks(number: int, *, length: int = 63) -> list[list[int]]:
    """Bursts of exactly one block each, of lines of 64 bytes with their newlines."""
    return [[length] * (BLOCK // (length + 1))] * number


@pytest.mark.parametrize(("number", "found"), [(2, False), (3, True)])
def test_three_bursts_in_a_row_are_needed(number: int, *, found: bool) -> None:
    assert (judge_stream(stream(*in_bursts(blocks(number)))) is not None) is found
    broken = [*blocks(2), [63] * 20, *blocks(2)]
    assert judge_stream(stream(*in_bursts(broken))) is None


@pytest.mark.parametrize(("length", "needed"), [(63, 3), (255, 4), (511, 5)])
def test_more_bursts_are_needed_the_longer_the_lines_are(length: int, needed: int) -> None:
    assert judge_stream(stream(*in_bursts(blocks(needed - 1, length=length)))) is None
    assert judge_stream(stream(*in_bursts(blocks(needed, length=length)))) is not None


def test_nothing_is_said_of_very_long_lines() -> None:
    assert judge_stream(stream(*in_bursts(blocks(50, length=1023)))) is None


@pytest.mark.parametrize(
    ("words", "fitting"),
    [
        ({}, True),
        ({"size": BLOCK + 64}, True),
        ({"size": BLOCK + 65}, False),
        ({"size": BLOCK - 64}, True),
        ({"size": BLOCK - 65}, False),
        ({"size": 9 * BLOCK}, True),
        ({"size": 64}, False),
        ({"size": None}, False),
        ({"lines": 1}, False),
        ({"longest": BLOCK // 8 + 1}, False),
        ({"last_us": SECOND_US - 1}, True),
        ({"last_us": SECOND_US}, False),
    ],
)
def test_a_burst_fits_that_is_a_multiple_of_a_block_by_one_line(words: dict[str, Any], *, fitting: bool) -> None:
    assert fits(Burst(0, 10, 64, BLOCK, 64, unended=False)._replace(**words)) is fitting


@pytest.mark.parametrize(("gap_us", "found"), [(SECOND_US - 1, 1), (SECOND_US, 2)])
def test_a_burst_ends_where_nothing_comes_for_a_second(gap_us: int, found: int) -> None:
    assert len(bursts([Line(NOW_US, 1), Line(NOW_US + gap_us, 1)])) == found


def test_a_stream_that_ended_within_a_line_at_a_blocks_end_needs_one_burst_less() -> None:
    parts = in_bursts(blocks(2))
    last = parts[-1]._replace(length=64, unended=True)  # 64 bytes without a newline
    assert judge_stream(stream(*parts[:-1], last)) is not None
    odd = parts[-1]._replace(length=60, unended=True)
    assert judge_stream(stream(*parts[:-1], odd)) is None


def test_a_line_of_unknown_length_makes_its_burst_unknown() -> None:
    parts = in_bursts(blocks(4))
    parts[5] = parts[5]._replace(length=None)
    assert judge_stream(stream(*parts)) is not None  # the other three
    parts[70] = parts[70]._replace(length=None)
    assert judge_stream(stream(*parts)) is None


def answer(*streams: object) -> Finding | Unknown | None:
    (rule,) = [rule for rule in RULES if rule.__name__ == "buffered"]
    return rule(evidence(journal=journal(streams=streams)))


def test_the_finding_names_units_programs_and_the_remedy_for_python() -> None:
    found = answer(
        stream(*in_bursts(blocks(5)), program="python3.11"), stream(*in_bursts(blocks(4), 9 * SECOND_US), unit="b")
    )
    assert isinstance(found, Finding)
    assert found.facts == {
        "units": ["chatty.service", "b"],
        "programs": ["python3.11", "chatty"],
        "interval_s": 9.0,
        "bursts": ["5", "4"],
    }
    assert "PYTHONUNBUFFERED=1" in found.remedy[0]
    assert "9s apart" in found.sentence
    assert answer(stream(*in_bursts([texts(9)] * 20))) is None
    assert answer() is None
