# SPDX-License-Identifier: LGPL-2.1-or-later
"""The four charts, each with its table: boots, extents, intake delay, bytes.

What was not measured is a gap and is said; nothing is drawn below zero, whatever a clock did.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import Final, NamedTuple

from journalkeeper.model import Result
from journalkeeper.report import svg
from journalkeeper.report.evidence import Boot, Intake, Recorded
from journalkeeper.report.intake import quantile
from journalkeeper.report.text import UNKNOWN, count, day, hour, seconds, when
from journalkeeper.rows import Entry, Sample, Totals
from journalkeeper.values import format_size, format_span

MOST_BOOTS: Final = 120
MOST_ROWS: Final = 12
"""Rows of a table below a chart; the newest, or sums."""

MOST_COLUMNS: Final = 72
"""Columns of the intake chart."""

MOST_POINTS: Final = 2000
"""Points of a line before it is drawn; of more, the peaks of neighbours."""

HOUR_US: Final = 3600 * 1_000_000
DAY_US: Final = 24 * HOUR_US
COLUMN_HOURS: Final = (1, 2, 3, 4, 6, 8, 12, 24)


class Table(NamedTuple):
    """A caption, headings, and rows of cells; the first `left` columns are words, and the last if so said."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    words_last: bool = False


class Figure(NamedTuple):
    """A chart with what is said of it; `chart` is None where there is nothing to draw, and `said` tells why.

    `key` are the layers that need a name. `notes` stand below the chart: what is missing in it.
    """

    name: str
    title: str
    said: str
    chart: svg.Chart | None = None
    key: tuple[tuple[svg.Boxes | svg.Line | svg.Ticks, str], ...] = ()
    table: Table | None = None
    notes: tuple[str, ...] = ()


def boots(known: Sequence[Boot], samples: Sequence[Sample], since_us: int | None) -> Figure:
    """How long each boot took, how much of it was the flush, and how many extents it found.

    `since_us` is when the record begins: the keeper's first day.
    """
    name, title = "boots", "Boots"
    shown = sorted(known, key=lambda boot: boot.first_us)[-MOST_BOOTS:]
    if not shown:
        return Figure(name, title, "The journal holds no boot.")
    extents = _found(shown, samples)
    userspace = svg.Boxes("userspace", _columns([_s(boot.userspace_us) for boot in shown], shown))
    flush = svg.Boxes("flush", _columns([_s(_flush_us(boot)) for boot in shown], shown))
    gaps = tuple((place + 0.5, "?") for place, boot in enumerate(shown) if _s(boot.userspace_us) is None)
    found = svg.Boxes("extents", _columns(extents, shown))
    lower = tuple((place + 0.5, "?") for place, number in enumerate(extents) if number is None)
    longest = max([_s(boot.userspace_us) or 0.0 for boot in shown] + [_s(_flush_us(boot)) or 0.0 for boot in shown])
    panels = [svg.Panel("seconds", longest, _plain("s"), (userspace, flush, svg.Words("gap", gaps)), height=150)]
    if any(number is not None for number in extents):
        highest = max(number or 0 for number in extents)
        layers = (found, svg.Words("gap", lower))
        panels.append(svg.Panel("extents of the active files at the boot", highest, _number, layers, height=70))
    first = None if since_us is None else bisect_right([boot.first_us for boot in shown], since_us)
    marks = () if first is None or not 0 < first < len(shown) else ((float(first), f"kept since {day(since_us or 0)}"),)
    labels = tuple((place + 0.5, day(boot.first_us)) for place, boot in enumerate(shown))
    said = _boots_said(shown, first)
    chart = svg.Chart(f"Boots: {said}", 0, len(shown), tuple(panels), labels, marks)
    key = ((userspace, "userspace"), (flush, "of it, the journal's flush"))
    return Figure(name, title, said, chart, key, _boots_table(shown, extents), _boots_notes(known, shown))


def _boots_said(shown: Sequence[Boot], first: int | None) -> str:
    """The medians before and since, where both are known."""
    if first is not None and 0 < first < len(shown):
        before, since = _median_s(shown[:first]), _median_s(shown[first:])
        if before is not None and since is not None:
            return (
                f"Before journalkeeper a boot took {seconds(before)} in the median of {count(first, 'boot')},"
                f" since then {seconds(since)} in the median of {count(len(shown) - first, 'boot')}."
            )
    median = _median_s(shown)
    if median is None:
        return f"None of {count(len(shown), 'boot')} has a message that says how long it took."
    return f"A boot takes {seconds(median)} in the median of {count(len(shown), 'boot')}."


def _boots_notes(known: Sequence[Boot], shown: Sequence[Boot]) -> tuple[str, ...]:
    notes = []
    without = sum(_s(boot.userspace_us) is None for boot in shown)
    if without:
        notes.append(
            f"{count(without, 'boot')} shown as “?” {'has' if without == 1 else 'have'} no “Startup finished” message:"
            " it was interrupted, or the message is not kept."
        )
    if len(known) > len(shown):
        notes.append(f"The newest {len(shown)} of {len(known):,} boots are shown.")
    return tuple(notes)


def _boots_table(shown: Sequence[Boot], extents: Sequence[int | None]) -> Table:
    newest = list(zip(shown, extents, strict=True))[-MOST_ROWS:]
    rows = [
        (when(boot.first_us), _seconds(boot.userspace_us), _seconds(_flush_us(boot)), _known(number))
        for boot, number in reversed(newest)
    ]
    part = f"The newest {len(rows)} of {len(shown)} boots" if len(rows) < len(shown) else "Boots, the newest first"
    return Table(part, ("Boot of", "Userspace", "Flush", "Extents found"), tuple(rows))


def _flush_us(boot: Boot) -> int | None:
    """The unit's time, else what journald itself says."""
    return boot.said_flush_us if boot.flush_us is None else boot.flush_us


def _found(shown: Sequence[Boot], samples: Sequence[Sample]) -> list[int | None]:
    """The extents of the active files when each boot began: every file's last count before it."""
    waiting = deque(sorted(samples, key=lambda sample: sample.when_us))
    latest: dict[str, int] = {}
    found: list[int | None] = []
    for boot in shown:
        while waiting and waiting[0].when_us <= boot.first_us:
            sample = waiting.popleft()
            latest[sample.path] = sample.extents
        found.append(sum(latest.values()) if latest else None)
    return found


def _median_s(some: Sequence[Boot]) -> float | None:
    known = sorted(boot.userspace_us for boot in some if boot.userspace_us is not None and boot.userspace_us >= 0)
    return known[len(known) // 2] / 1e6 if known else None


def _columns(
    heights: Sequence[float | None], shown: Sequence[Boot]
) -> tuple[tuple[float, float, float, float, str], ...]:
    """One bar for each known height, from a tenth of its place to nine tenths."""
    return tuple(
        (place + 0.1, 0.0, place + 0.9, max(0.0, height), when(boot.first_us))
        for place, (height, boot) in enumerate(zip(heights, shown, strict=True))
        if height is not None
    )


def extents(totals: Sequence[Totals], entries: Sequence[Entry]) -> Figure:
    """The extents of all files against the number they would have if they were whole, and each rewrite."""
    name, title = "extents", "Extents"
    moments = summed(totals)
    if not moments:
        return Figure(name, title, "No extent counts are recorded yet: the service notes them as they change.")
    low, high = _span([one.when_us for one in moments])
    line = svg.Line("extents", _thinned([(one.when_us, one.extents) for one in moments]))
    ideal = svg.Line("ideal", _thinned([(one.when_us, one.ideal_extents) for one in moments]))
    done = [entry.when_us for entry in entries if entry.outcome.result is Result.DONE]
    ticks = svg.Ticks("rewrites", tuple(place for place in done if low <= place <= high))
    panel = svg.Panel("extents", max(one.extents for one in moments), _number, (ideal, line, ticks), height=170)
    last = moments[-1]
    said = f"{count(last.extents, 'extent')} at {when(last.when_us)}, where {last.ideal_extents:,} would be ideal."
    chart = svg.Chart(f"Extents over time: {said}", low, high, (panel,), _times(low, high))
    rows = tuple(
        (when(one.when_us), f"{one.extents:,}", f"{one.ideal_extents:,}", f"{one.active_extents:,}", f"{one.files:,}")
        for one in reversed(_spread(moments))
    )
    table = Table(
        _spread_caption("Extents", rows, moments), ("Time", "Extents", "Ideal", "In active files", "Files"), rows
    )
    key = ((line, "extents"), (ideal, "ideal"), (ticks, "a rewrite or rotation"))
    return Figure(name, title, said, chart, key, table)


def summed(totals: Sequence[Totals]) -> list[Totals]:
    """The sums over all instances at each moment at which one of them was noted, by time."""
    latest: dict[str, Totals] = {}
    moments: dict[int, Totals] = {}
    for one in sorted(totals, key=lambda row: row.when_us):
        latest[one.instance] = one
        numbers = map(sum, zip(*(row[2:] for row in latest.values()), strict=True))
        moments[one.when_us] = Totals(one.when_us, "", *numbers)
    return list(moments.values())


def intake(entries: Sequence[Intake], *, oldest_us: int | None, complete: bool) -> Figure:
    """How many messages waited how long for journald: hours across, powers of two of the delay up."""
    name, title = "intake", "Intake delay"
    waits = sorted(entry.wait_us for entry in entries if entry.wait_us >= 0)
    if not waits:
        return Figure(name, title, "No message in the journal says when it was sent.")
    kept = [entry for entry in entries if entry.wait_us >= 0]
    hours, cells = _cells(kept)
    low = min(column for column, _ in cells)
    wide = max(column for column, _ in cells) - low + 1
    most = max(bucket for _, bucket in cells)
    busiest = log2(max(cells.values()) + 1)
    boxes = tuple(
        (column - low + 0.05, bucket, column - low + 0.95, bucket + 0.15 + 0.8 * log2(number + 1) / busiest,
         f"{number:,}")
        for (column, bucket), number in sorted(cells.items())
    )  # fmt: skip
    layer = svg.Boxes("waits", boxes)
    labels = tuple((bucket, _bucket(bucket)) for bucket in range(0, most + 2, 1 if most < 9 else 2))
    panel = svg.Panel(
        "wait in journald's queue", most + 1, str, (layer,), height=max(90, 13 * (most + 1)), labels=labels
    )
    column_us = hours * HOUR_US
    axis = tuple((place + 0.5, hour((low + place) * column_us)) for place in range(wide))
    said = (
        f"Of {count(len(waits), 'message')}, 99 in 100 waited at most {format_span(quantile(waits, 99), 1)},"
        f" the longest {format_span(waits[-1], 1)}."
    )
    notes = [f"A column is {count(hours, 'hour')}; a bar's height grows with the logarithm of its messages."]
    if not complete and oldest_us is not None:
        notes.append(f"The journal was read back to {when(oldest_us)} only; older messages are not counted.")
    if len(kept) < len(entries):
        back = count(len(entries) - len(kept), "message")
        notes.append(f"{back} seemed to be taken before being sent, as the clock was set, and are left out.")
    chart = svg.Chart(f"Intake delay: {said}", 0, wide, (panel,), axis)
    return Figure(name, title, said, chart, ((layer, "messages"),), _waits_table(waits, entries), tuple(notes))


def bucket_of(wait_us: int) -> int:
    """floor(log2), and 0 for less than 2 us.

    >>> [bucket_of(wait) for wait in (0, 1, 2, 3, 4, 1023, 1024)]
    [0, 0, 1, 1, 2, 9, 10]
    """
    return max(wait_us.bit_length() - 1, 0)


def _cells(kept: Sequence[Intake]) -> tuple[int, Counter[tuple[int, int]]]:
    """How many hours a column is, and the number of messages by (column, bucket)."""
    reach = (max(entry.when_us for entry in kept) - min(entry.when_us for entry in kept)) / HOUR_US
    hours = next((number for number in COLUMN_HOURS if reach / number < MOST_COLUMNS - 1), 0)
    hours = hours or 24 * ceil(reach / 24 / (MOST_COLUMNS - 1))
    return hours, Counter((entry.when_us // (hours * HOUR_US), bucket_of(entry.wait_us)) for entry in kept)


def _bucket(bucket: int) -> str:
    """Where a bucket begins, rounded: 512us, 1ms, 66ms, 4s."""
    if not bucket:
        return "0"
    begins_us = 1 << bucket
    factor, unit = next((one for one in ((1e6, "s"), (1e3, "ms")) if begins_us >= one[0]), (1, "us"))
    return f"{round(begins_us / factor)}{unit}"


def _waits_table(waits: Sequence[int], entries: Sequence[Intake]) -> Table:
    counts = Counter(map(bucket_of, waits))
    worst: dict[int, Intake] = {}
    for entry in entries:
        if entry.wait_us >= 0 and entry.wait_us > worst.get(bucket_of(entry.wait_us), Intake(0, -1, "")).wait_us:
            worst[bucket_of(entry.wait_us)] = entry
    rows = tuple(
        (
            f"{_bucket(bucket)} to {_bucket(bucket + 1)}",
            f"{counts[bucket]:,}",
            f"{counts[bucket] / len(waits):.2%}",
            f"{worst[bucket].unit or UNKNOWN}, {when(worst[bucket].when_us)}",
        )
        for bucket in sorted(counts, reverse=True)
    )
    return Table(
        "Messages by how long they waited", ("Wait", "Messages", "Share", "The longest of them"), rows, words_last=True
    )


def sizes(record: Recorded, disk_bytes: int | None, now_us: int) -> Figure:
    """Bytes that journald logged and the filesystem allocated, what is on the disk, and what we wrote, by day."""
    name, title = "bytes", "Bytes"
    moments = summed(record.totals)
    if not moments:
        return Figure(name, title, "No sizes are recorded yet: the service notes them as they change.")
    low, high = _span([*(one.when_us for one in moments), now_us if disk_bytes is not None else moments[-1].when_us])
    logged = svg.Line("logged", _thinned([(one.when_us, one.size_bytes) for one in moments]))
    allocated = svg.Line("allocated", _thinned([(one.when_us, one.allocated_bytes) for one in moments]))
    layers: list[svg.Boxes | svg.Line | svg.Ticks | svg.Words] = [logged, allocated]
    if disk_bytes is not None:
        edge = (high - low) / 40
        layers.append(svg.Boxes("disk", ((high - edge, 0, high, disk_bytes, f"{format_size(disk_bytes)} on disk"),)))
    written = _written(record.entries)
    bars = svg.Boxes(
        "written",
        tuple(
            (max(at, low), 0, min(at + DAY_US, high), number, "") for at, number in written if low - DAY_US < at < high
        ),
    )
    highest = max([max(one.size_bytes, one.allocated_bytes) for one in moments] + [disk_bytes or 0])
    panels = [svg.Panel("bytes of all files", highest, _size, tuple(layers), height=130, binary=True)]
    key: list[tuple[svg.Boxes | svg.Line | svg.Ticks, str]] = [(logged, "logged (size)"), (allocated, "allocated")]
    if disk_bytes is not None:
        key.append((svg.Boxes("disk", ()), "on disk, now"))
    if written:
        most = max(number for _, number in written)
        panels.append(svg.Panel("written by journalkeeper in a day", most, _size, (bars,), height=60, binary=True))
        key.append((bars, "written by journalkeeper"))
    last = moments[-1]
    said = f"{format_size(last.size_bytes)} logged, {format_size(last.allocated_bytes)} allocated"
    said += f", {format_size(disk_bytes)} on disk" if disk_bytes is not None else ", on disk unknown"
    said += f"; {format_size(sum(number for _, number in written))} written by journalkeeper since {day(low)}."
    chart = svg.Chart(f"Bytes over time: {said}", low, high, tuple(panels), _times(low, high))
    return Figure(name, title, said, chart, tuple(key), _sizes_table(moments, written))


def _sizes_table(moments: Sequence[Totals], written: Sequence[tuple[int, int]]) -> Table:
    chosen = _spread(moments)
    ends = [one.when_us for one in chosen]
    sums = [0] * len(chosen)
    for at, number in written:
        sums[min(bisect_right(ends, at), len(sums) - 1)] += number
    rows = tuple(
        (when(one.when_us), format_size(one.size_bytes), format_size(one.allocated_bytes), format_size(number))
        for one, number in reversed(list(zip(chosen, sums, strict=True)))
    )
    heads = ("Time", "Logged", "Allocated", "Written by us since the row below")
    return Table(_spread_caption("Bytes", rows, moments), heads, rows)


def _written(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """The bytes that we wrote on each day (of 24 hours of UTC), by the day's beginning."""
    days: Counter[int] = Counter()
    for entry in entries:
        days[entry.when_us // DAY_US * DAY_US] += entry.outcome.bytes_written
    return sorted((at, number) for at, number in days.items() if number)


def _spread(moments: Sequence[Totals]) -> list[Totals]:
    """At most MOST_ROWS of them at even distances, the last one among them."""
    every = ceil(len(moments) / MOST_ROWS)
    return [*moments[::-1][::every]][::-1]


def _spread_caption(what: str, rows: Sequence[object], moments: Sequence[object]) -> str:
    part = f"{len(rows)} of {len(moments):,} notes" if len(rows) < len(moments) else "all notes"
    return f"{what}, {part}, the newest first"


def _thinned(points: Sequence[tuple[int, int]]) -> tuple[tuple[float, float | None], ...]:
    """The same line in at most twice MOST_POINTS points: of neighbours the last and the highest, in their order."""
    every = ceil(len(points) / MOST_POINTS)
    groups = (points[start : start + every] for start in range(0, len(points), max(1, every)))
    return tuple(
        point for group in groups for point in dict.fromkeys(sorted([max(group, key=lambda one: one[1]), group[-1]]))
    )


def _span(times: Sequence[int]) -> tuple[int, int]:
    """The first and the last time, an hour apart at the least."""
    low, high = min(times), max(times)
    return low, max(high, low + HOUR_US)


def _times(low: int, high: int) -> tuple[tuple[float, str], ...]:
    """Labels at ten even distances."""
    written = day if high - low > 4 * DAY_US else hour
    labels = [(low + (high - low) * tenth // 10) for tenth in range(11)]
    return tuple((at, written(at)) for at in labels)


def _plain(unit: str) -> Callable[[float], str]:
    return lambda number: f"{number:g} {unit}"


def _number(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else ""


def _size(number: float) -> str:
    return format_size(int(number)).replace(".0", "")


def _s(span_us: int | None) -> float | None:
    """Seconds of a span; one below zero is a clock's, and unknown."""
    return None if span_us is None or span_us < 0 else span_us / 1e6


def _seconds(span_us: int | None) -> str:
    known = _s(span_us)
    return UNKNOWN if known is None else seconds(known)


def _known(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"
