# SPDX-License-Identifier: LGPL-2.1-or-later
"""Percentiles and verdicts of waits, by hand."""

from __future__ import annotations

from array import array

import pytest

from journalkeeper.model.units import quantile, spell_time
from journalkeeper.probe.base import Measurement, Series, compute_statistics

MS = 1_000_000
S = 1000 * MS


def series(*waits_ns: int) -> Series:
    return Series("one", array("q", waits_ns))


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
def test_a_percentile_with_fewer_than_ten_values_above_is_unknown(count: int, known: dict[str, float | None]) -> None:
    found = compute_statistics(series(*range(S, (count + 1) * S, S)))
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
    ("span_ns", "text"),
    [(0, "0ns"), (999, "999ns"), (1000, "1us"), (9_994_000, "9.99ms"), (9_996_000, "10ms"),
     (262_144_000, "262ms"), (999_960_000, "1s"), (1_048_576_000, "1.05s"),
     (59_900 * MS, "59.9s"), (75_500 * MS, "1min 16s")],
)  # fmt: skip
def test_a_time_has_three_digits(span_ns: int, text: str) -> None:
    assert spell_time(span_ns / 1e9) == text


@pytest.mark.parametrize(
    ("waits_ns", "says"),
    [
        ((), "No wait was measured; the limit is 100ms (X=)."),
        ((100 * MS,), "OK: the longest wait, 100ms, is within 100ms (X=)."),
    ],
)
def test_a_wait_at_the_limit_is_within_it(waits_ns: tuple[int, ...], says: str) -> None:
    assert Measurement([series(), series(*waits_ns)]).describe_verdict(100 * MS, "X=") == says
