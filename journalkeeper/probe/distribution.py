# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waits and their percentiles. Every value is stored, and a percentile is one of the values."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple

from journalkeeper.model.schema import Count, Key, Seconds
from journalkeeper.model.units import quantile

PER_MILLES: Final = (500, 900, 990, 999)
ABOVE: Final = 10
"""A percentile needs this many values above it; else it is unknown."""


@dataclass
class Series:
    """Waits in nanoseconds, in the order in which they ended."""

    name: str
    waits_ns: array[int] = field(default_factory=lambda: array("q"))


class Statistics(NamedTuple):
    """A series in the answer of `probe`."""

    name: str
    waits: Annotated[Count, Key("count")]
    total_s: Seconds
    mean_s: Seconds | None
    p50_s: Seconds | None
    p90_s: Seconds | None
    p99_s: Seconds | None
    p99_9_s: Seconds | None
    worst_s: Seconds | None


def compute_statistics(series: Series) -> Statistics:
    """Return the statistics in seconds: None without waits, and for a percentile that fewer than ABOVE waits exceed."""
    ordered = [wait_ns / 1e9 for wait_ns in sorted(series.waits_ns)]
    count, total_s = len(ordered), sum(ordered)
    percentiles = (
        quantile(ordered, per_mille) if count * (1000 - per_mille) // 1000 >= ABOVE else None
        for per_mille in PER_MILLES
    )
    known = (total_s / count, *percentiles, ordered[-1]) if count else [None] * 6
    return Statistics(series.name, count, total_s, *known)
