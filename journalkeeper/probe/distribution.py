# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waits as percentiles, as a histogram of powers of two, and as a verdict.

Every value is stored, and a percentile is one of the values.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, NamedTuple

from journalkeeper.model.schema import Count, Inline, Key, Seconds
from journalkeeper.model.units import quantile

PER_MILLES: Final = (500, 900, 990, 999)
ABOVE: Final = 10
"""A percentile needs this many values above it; else it is unknown."""

UNITS: Final = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))
BAR: Final = 40


class Limit(NamedTuple):
    """The longest permitted wait, and the setting that it comes from."""

    ns: int
    source: str

    def __str__(self) -> str:
        return f"{format_wait(self.ns)} ({self.source})"


class Series:
    """Timed calls in the order in which they were added, in nanoseconds of one clock.

    A wait lasts from the time in `planned_ns` to the call's end; without a plan these are the calls' starts.
    """

    def __init__(self, name: str, *, planned: bool = False) -> None:
        self.name = name
        self.planned = planned
        self.planned_ns: array[int] = array("q")
        self.began_ns: array[int] = array("q")
        self.took_ns: array[int] = array("q")

    def add(self, began_ns: int, took_ns: int, planned_ns: int | None = None) -> None:
        """Add one call: its start, its duration, and the time for which it was planned (None: its start), in ns."""
        self.began_ns.append(began_ns)
        self.took_ns.append(took_ns)
        self.planned_ns.append(began_ns if planned_ns is None else planned_ns)

    def waits_ns(self) -> list[int]:
        """Return the duration in ns of each wait, from the planned time to the end of the call."""
        calls = zip(self.began_ns, self.took_ns, self.planned_ns, strict=False)
        return [began + took - planned for began, took, planned in calls]


def draw(waits_ns: Iterable[int]) -> list[str]:
    """Return the lines of a histogram, one per power of two from the shortest to the longest wait; [] without waits."""
    counts = Counter(map(bucket, waits_ns))
    most = max(counts.values(), default=0)
    return [
        f"{format_wait(round(_bound_s(number) * 1e9)):>7} {counts[number]:{len(str(most))}} "
        + "@" * -(-counts[number] * BAR // most)
        for number in range(min(counts, default=0), max(counts, default=-1) + 1)
    ]


def bucket(wait_ns: int) -> int:
    """Return n for a wait of at least 2^n us and less than 2^(n+1) us; -1 below 1 us."""
    return (wait_ns // 1000).bit_length() - 1


def _bound_s(number: int) -> float:
    return 2**number / 1e6 if number >= 0 else 0.0


def stalls(series: Series, least_ns: int) -> list[tuple[int, int]]:
    """Return (begin, end) in ns of each time of a wait of at least `least_ns`, in order, overlaps joined."""
    found: list[tuple[int, int]] = []
    waits = zip(series.planned_ns, series.waits_ns(), strict=False)
    for began, ended in sorted((began, began + wait) for began, wait in waits if wait >= least_ns):
        if found and began <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    return found


def verdict(all_series: Sequence[Series], limit: Limit) -> str:
    """Return a sentence: whether the longest wait of all series is within `limit`, and where the limit comes from."""
    waits = [(max(series.waits_ns()), series) for series in all_series if series.began_ns]
    if not waits:
        return f"No wait was measured; the limit is {limit}."
    worst, series = max(waits, key=lambda one: one[0])
    if worst <= limit.ns:
        return f"OK: the longest wait, {format_wait(worst)}, is within {limit}."
    late = sum(wait > limit.ns for wait in series.waits_ns())
    waited = f"{late:,} of {len(series.began_ns):,} waits ({series.name}) {'is' if late == 1 else 'are'} over {limit}"
    return f"Slow: {waited}, the longest {format_wait(worst)}. `journalkeeper doctor` looks for the cause."


class Statistics(NamedTuple):
    """The statistics of some waits."""

    waits: Annotated[Count, Key("count")]
    total_s: Seconds
    mean_s: Seconds | None
    p50_s: Seconds | None
    p90_s: Seconds | None
    p99_s: Seconds | None
    p99_9_s: Seconds | None
    worst_s: Seconds | None


class Bucket(NamedTuple):
    """The number of waits of at least `from_s` and less than twice that."""

    from_s: Seconds
    waits: Annotated[Count, Key("count")]


class SeriesAnswer(NamedTuple):
    """A series in the answer of `probe`."""

    name: str
    waits: Inline[Statistics]
    call: Statistics | None
    """Of the calls' own time, where waits count from a plan."""
    buckets: list[Bucket]


def make_answer(series: Series) -> SeriesAnswer:
    """Return a series for `probe -j`, without empty buckets. `call` is None without planned times."""
    counts = Counter(map(bucket, series.waits_ns()))
    return SeriesAnswer(
        series.name,
        compute_statistics(series.waits_ns()),
        compute_statistics(series.took_ns) if series.planned else None,
        [Bucket(_bound_s(number), counts[number]) for number in sorted(counts)],
    )


def compute_statistics(waits_ns: Iterable[int]) -> Statistics:
    """Return the statistics in seconds: None without waits, and for a percentile that fewer than ABOVE waits exceed."""
    ordered = [wait_ns / 1e9 for wait_ns in sorted(waits_ns)]
    count, total_s = len(ordered), sum(ordered)
    percentiles = (
        quantile(ordered, per_mille) if count * (1000 - per_mille) // 1000 >= ABOVE else None
        for per_mille in PER_MILLES
    )
    return Statistics(count, total_s, *((total_s / count, *percentiles, ordered[-1]) if count else [None] * 6))


def format_wait(span_ns: int | None) -> str:
    """Return a time with its unit and mostly three digits: "262 ms", "1.05 s", "12.3 us"; "-" for None."""
    if span_ns is None:
        return "-"
    unit, size = next(((unit, size) for unit, size in UNITS if abs(span_ns) >= size), UNITS[-1])
    value = span_ns / size
    return f"{value:.{0 if size == 1 else 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f} {unit}"
