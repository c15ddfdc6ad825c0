# SPDX-License-Identifier: LGPL-2.1-or-later
"""Percentiles, rows and verdicts of waits, by hand."""

from __future__ import annotations

import pytest

from journalkeeper.model.schema import to_json
from journalkeeper.model.units import quantile
from journalkeeper.probe import distribution as report
from journalkeeper.probe.distribution import Limit, Series

MS = 1_000_000
S = 1000 * MS


def series(*waits_ns: int) -> Series:
    one = Series("one")
    for number, wait in enumerate(waits_ns):
        one.add(number * MS, wait)
    return one


@pytest.mark.parametrize(
    ("count", "known"),
    [
        (0, {"p50_s": None, "worst_s": None, "mean_s": None, "total_s": 0}),
        (19, {"p50_s": None, "p90_s": None}),
        (20, {"p50_s": 10, "p90_s": None}),  # ten are above 10
        (100, {"p50_s": 50, "p90_s": 90, "p99_s": None, "mean_s": 50.5}),
        (1000, {"p99_s": 990, "p99_9_s": None}),
        (10_000, {"p99_s": 9900, "p99_9_s": 9990, "worst_s": 10_000}),
    ],
)
def test_a_percentile_with_fewer_than_ten_values_above_it_is_not_known(
    count: int, known: dict[str, float | None]
) -> None:
    found = report.compute_statistics(range(S, (count + 1) * S, S))
    assert {name: getattr(found, name) for name in known} == known
    assert found.waits == count


@pytest.mark.parametrize(
    ("values", "per_mille", "one"),
    [([], 990, 0), ([5], 990, 5), (range(1, 101), 990, 99), (range(1, 102), 990, 100), ([1] * 98 + [7, 7], 990, 7),
     ([1] * 99 + [7], 990, 1), ([1, 2], 500, 1), ([1, 2], 501, 2), (range(1, 1001), 999, 999)],
)  # fmt: skip
def test_a_quantile_is_one_of_the_values(values: list[int], per_mille: int, one: int) -> None:
    assert quantile(values, per_mille) == one


@pytest.mark.parametrize(
    ("wait_ns", "number"), [(0, -1), (999, -1), (1000, 0), (1999, 0), (2000, 1), (262_143_999, 17), (262_144_000, 18)]
)
def test_a_bucket_is_the_floor_of_the_logarithm_in_microseconds_as_in_sd_events_profile(
    wait_ns: int, number: int
) -> None:
    assert report.bucket(wait_ns) == number


@pytest.mark.parametrize(
    ("span_ns", "text"),
    [(None, "-"), (0, "0 ns"), (999, "999 ns"), (1000, "1.00 us"), (9_994_000, "9.99 ms"), (9_996_000, "10.0 ms"),
     (262_144_000, "262 ms"), (999_960_000, "1000 ms"), (1_048_576_000, "1.05 s"), (75_500 * MS, "75.5 s")],
)  # fmt: skip
def test_a_time_has_three_digits(span_ns: int | None, text: str) -> None:
    assert report.format_wait(span_ns) == text


def test_a_histogram_has_a_line_for_each_power_of_two_and_no_gap() -> None:
    assert report.draw([300 * MS] * 12 + [70 * MS] * 4) == [
        f"65.5 ms  4 {'@' * 14}",
        " 131 ms  0 ",
        f" 262 ms 12 {'@' * 40}",
    ]
    assert report.draw([]) == []


def test_waits_count_from_the_planned_moment_where_there_was_a_plan() -> None:
    planned, free = Series("planned", planned=True), Series("free")
    planned.add(50, 7, 30)
    free.add(50, 7)
    assert (planned.waits_ns(), free.waits_ns()) == ([27], [7])
    assert to_json(report.make_answer(planned))["call"]["worst_s"] == 7e-9
    assert report.make_answer(free).call is None


def test_stalls_are_what_long_waits_cover_together() -> None:
    one = Series("one")
    for began, took in ((0, 300), (100, 200), (150, 10), (299, 101), (401, 99), (500, 100)):
        one.add(began, took)
    assert report.stalls(one, 100) == [(0, 400), (500, 600)]


@pytest.mark.parametrize(
    ("waits_ns", "says"),
    [
        ((), "No wait was measured; the limit is 100 ms (X=)."),
        ((100 * MS,), "OK: the longest wait, 100 ms, is within 100 ms (X=)."),
    ],
)
def test_a_wait_at_the_limit_is_within_it(waits_ns: tuple[int, ...], says: str) -> None:
    assert report.verdict([series(*waits_ns)], Limit(100 * MS, "X=")) == says
