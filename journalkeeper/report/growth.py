# SPDX-License-Identifier: LGPL-2.1-or-later
"""The charts of the history: extents and their ideal, and bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import Final

from journalkeeper.health.evidence import Recorded
from journalkeeper.history.samples import totals
from journalkeeper.model import JournalFile, Result, Sums
from journalkeeper.model.recorded import Entry, Totals
from journalkeeper.model.units import DAY_US, HOUR_US, counted, format_size
from journalkeeper.report import svg
from journalkeeper.report.figure import (
    MOST_ROWS,
    Figure,
    Table,
    describe_omission,
    in_time,
    number_label,
    size_label,
    time_labels,
)
from journalkeeper.report.text import day, when

MOST_BARS: Final = 120
MOST_POINTS: Final = 2000
"""The most points of a line before it is drawn; of more, the peaks of neighbours are kept."""


def growth(record: Recorded, files: Sequence[JournalFile], now_us: int) -> tuple[Figure, Figure]:
    """Return the charts of extents and of bytes, which end with the present `files`.

    Rows with an implausible time are left out, and a note reports their number.
    """
    kept = in_time(record.totals, now_us)
    if not kept:
        why = "The history is empty: the service records extents and sizes when they change."
        return Figure("extents", "Extents", why), Figure("bytes", "Bytes", why)
    moments = [one for one in sum_instances(kept) if not files or one.when_us < now_us]
    if files:
        moments.append(sum_now(files, now_us))
    notes = describe_omission(len(record.totals) - len(kept), "note")
    entries = in_time(record.entries, now_us)
    extents, sizes = _extents(moments, entries), _sizes(moments, entries, Sums.of(files).known_disk_bytes)
    return extents._replace(notes=notes), sizes._replace(notes=notes)


def sum_now(files: Sequence[JournalFile], now_us: int) -> Totals:
    """Return the sums over the present files."""
    return Totals(now_us, "", *totals(files))


def _extents(moments: Sequence[Totals], entries: Sequence[Entry]) -> Figure:
    """Return the chart of the extents of all files, their ideal number, and the time of each rewrite."""
    low, high = _span([one.when_us for one in moments])
    line = svg.Line("extents", _thin([(one.when_us, one.extents) for one in moments]))
    ideal = svg.Line("ideal", _thin([(one.when_us, one.ideal_extents) for one in moments]))
    done = [entry.when_us for entry in entries if entry.outcome.result is Result.DONE]
    ticks = svg.Ticks("rewrites", tuple(place for place in done if low <= place <= high))
    panel = svg.Panel("extents", max(one.extents for one in moments), number_label, (ideal, line, ticks), height=170)
    last = moments[-1]
    said = f"{counted(last.extents, 'extent')} at {when(last.when_us)}, where {last.ideal_extents:,} would be ideal."
    chart = svg.Chart(f"Extents over time: {said}", low, high, (panel,), time_labels(low, high))
    rows = tuple(
        (when(one.when_us), f"{one.extents:,}", f"{one.ideal_extents:,}", f"{one.active_extents:,}", f"{one.files:,}")
        for one in reversed(_spread(moments))
    )
    heads = ("Time", "Extents", "Ideal", "In active files", "Files")
    table = Table(_spread_caption("Extents", rows, moments), heads, rows)
    key = ((line, "extents"), (ideal, "ideal"), (ticks, "a rewrite or rotation"))
    return Figure("extents", "Extents", said, chart, key, table)


def sum_instances(totals: Sequence[Totals]) -> list[Totals]:
    """Return the sums over all instances at each time at which one of them was recorded, by time."""
    latest: dict[str, Totals] = {}
    sums = [0] * 6
    moments: dict[int, Totals] = {}
    for one in sorted(totals, key=lambda row: row.when_us):
        before = latest.get(one.instance)
        sums = [total + number for total, number in zip(sums, one[2:], strict=True)]
        if before is not None:
            sums = [total - number for total, number in zip(sums, before[2:], strict=True)]
        latest[one.instance] = one
        moments[one.when_us] = Totals(one.when_us, "", *sums)
    return list(moments.values())


def _sizes(moments: Sequence[Totals], entries: Sequence[Entry], disk_bytes: int | None) -> Figure:
    """Return the chart of logged, allocated and disk bytes, and of the bytes that journalkeeper wrote."""
    low, high = _span([one.when_us for one in moments])
    logged = svg.Line("logged", _thin([(one.when_us, one.size_bytes) for one in moments]))
    allocated = svg.Line("allocated", _thin([(one.when_us, one.allocated_bytes) for one in moments]))
    layers: list[svg.Layer] = [logged, allocated]
    key: list[tuple[svg.Boxes | svg.Line | svg.Ticks, str]] = [(logged, "logged (size)"), (allocated, "allocated")]
    if disk_bytes is not None:
        edge = (high - low) / 40
        disk = svg.Boxes("disk", ((high - edge, 0, high, disk_bytes, f"{format_size(disk_bytes)} on disk"),))
        layers.append(disk)
        key.append((disk, "on disk, now"))
    highest = max([max(one.size_bytes, one.allocated_bytes) for one in moments] + [disk_bytes or 0])
    panels = [svg.Panel("bytes of all files", highest, size_label, tuple(layers), height=130, binary=True)]
    days = ceil((high - low) / DAY_US / MOST_BARS)
    written = _sum_written(entries, days * DAY_US)
    if written:
        boxes = ((max(at, low), 0, min(at + days * DAY_US, high), number, "") for at, number in written if at < high)
        bars = svg.Boxes("written", tuple(box for box in boxes if box[0] < box[2]))
        title = f"written by journalkeeper in {counted(days, 'day')}"
        most = max(number for _, number in written)
        panels.append(svg.Panel(title, most, size_label, (bars,), height=60, binary=True))
        key.append((bars, "written by journalkeeper"))
    last = moments[-1]
    said = f"{format_size(last.size_bytes)} logged, {format_size(last.allocated_bytes)} allocated"
    said += f", {format_size(disk_bytes)} on disk" if disk_bytes is not None else ", on disk unknown"
    said += f"; {format_size(sum(number for _, number in written))} written by journalkeeper since {day(low)}."
    chart = svg.Chart(f"Bytes over time: {said}", low, high, tuple(panels), time_labels(low, high))
    return Figure("bytes", "Bytes", said, chart, tuple(key), _sizes_table(moments, entries))


def _sizes_table(moments: Sequence[Totals], entries: Sequence[Entry]) -> Table:
    chosen = _spread(moments)
    ends = [one.when_us for one in chosen]
    sums = [0] * len(chosen)
    for entry in entries:
        sums[min(bisect_left(ends, entry.when_us), len(sums) - 1)] += entry.outcome.bytes_written
    rows = tuple(
        (when(one.when_us), format_size(one.size_bytes), format_size(one.allocated_bytes), format_size(number))
        for one, number in reversed(list(zip(chosen, sums, strict=True)))
    )
    heads = ("Time", "Logged", "Allocated", "Written by us since the row below")
    return Table(_spread_caption("Bytes", rows, moments), heads, rows)


def _sum_written(entries: Sequence[Entry], span_us: int) -> list[tuple[int, int]]:
    """Return the bytes that journalkeeper wrote in each span, by the span's start; a day is a UTC day."""
    spans: Counter[int] = Counter()
    for entry in entries:
        spans[entry.when_us // span_us * span_us] += entry.outcome.bytes_written
    return sorted((at, number) for at, number in spans.items() if number)


def _spread(moments: Sequence[Totals]) -> list[Totals]:
    """Return at most MOST_ROWS moments at even distances, including the last."""
    every = ceil(len(moments) / MOST_ROWS)
    return [*moments[::-1][::every]][::-1]


def _spread_caption(what: str, rows: Sequence[object], moments: Sequence[object]) -> str:
    part = f"{len(rows)} of {len(moments):,} notes" if len(rows) < len(moments) else "all notes"
    return f"{what}, {part}, the newest first"


def _thin(points: Sequence[tuple[int, int]]) -> tuple[tuple[float, float | None], ...]:
    """Return the line with at most twice MOST_POINTS points: of each group of neighbours the highest and the last."""
    every = ceil(len(points) / MOST_POINTS)
    groups = (points[start : start + every] for start in range(0, len(points), max(1, every)))
    return tuple(
        point for group in groups for point in dict.fromkeys(sorted([max(group, key=lambda one: one[1]), group[-1]]))
    )


def _span(times: Sequence[int]) -> tuple[int, int]:
    """Return the first and the last time, at least an hour apart."""
    low, high = min(times), max(times)
    return min(low, high - HOUR_US), high
