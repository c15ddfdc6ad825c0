# SPDX-License-Identifier: LGPL-2.1-or-later
"""The three charts of the page: boots, extents, and intake delay. Each has a summary, a table, and notes.

A chart is described here in plain numbers; the page's template draws it, COLUMNS wide and ROWS high. An unknown value
is a gap with a note. No bar or line goes below zero, even if a clock was set back. A line is thinned to three points
for each column and keeps its peaks, so a chart's size does not grow with the history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import ceil, log10
from statistics import median
from typing import Final, NamedTuple, Protocol, TypeVar

from journalkeeper.health.evidence import Boot, Intake, Journal, Recorded
from journalkeeper.history.rows import sum_files
from journalkeeper.model import JournalFile, Result
from journalkeeper.model.recorded import Totals
from journalkeeper.model.units import DAY_US, HOUR_US, MINUTE_US, counted, format_span, quantile
from journalkeeper.report.text import UNKNOWN, day, hour, seconds, when

COLUMNS: Final = 1000
ROWS: Final = 160
LABELS: Final = 4
"""The most labels of a time axis: so many fit next to each other on a narrow screen."""

MOST_ROWS: Final = 12
"""The most rows of a table below a chart: the newest rows, or sums."""

MOST_BOOTS: Final = 120
MOST_SPANS: Final = 120
"""The most spans of time in the intake chart; each has its percentiles."""

SPAN_MESSAGES: Final = 100
"""The fewest messages of a span: of fewer, the 99th percentile is the longest wait."""

WAIT_LABELS: Final = ("10us", "100us", "1ms", "10ms", "100ms", "1s", "10s", "100s", "1000s")

FIRST_US: Final = 1_293_840_000_000_000
"""The beginning of 2011, before which journald did not exist."""


class Bars(NamedTuple):
    """Bars from the floor: (x0, x1, height, tooltip or ""). `css` is the class of their colour, `name` is for the key.

    A bar is at least two columns wide.
    """

    css: str
    name: str
    bars: tuple[tuple[float, float, float, str], ...]


class Line(NamedTuple):
    """A stepped line: each (x, y) holds until the next; a y of None is a gap."""

    css: str
    name: str
    points: tuple[tuple[float, float | None], ...]


class Chart(NamedTuple):
    """Layers over an axis from `low` to `high`, with heights from 0 to `top`.

    `levels` are the labels of the heights, `labels` those of the axis, `words` stand on the floor, and `mark` is a
    vertical line with its name.
    """

    low: float
    high: float
    top: float
    levels: tuple[tuple[float, str], ...]
    labels: tuple[tuple[float, str], ...]
    layers: tuple[Bars | Line, ...]
    words: tuple[tuple[float, str], ...] = ()
    mark: tuple[float, str] | None = None

    def across(self, x: float) -> float:
        """Return the SVG x coordinate of `x`. A value outside the axis gets the coordinate of its edge."""
        share = (min(max(x, self.low), self.high) - self.low) / ((self.high - self.low) or 1)
        return round(share * COLUMNS, 1)

    def down(self, y: float) -> float:
        """Return the SVG y coordinate of `y`. A value outside the chart gets the coordinate of its edge."""
        return round(ROWS * (1 - min(max(y, 0), self.top) / (self.top or 1)), 1)

    def boxes(self, layer: Bars) -> list[tuple[float, float, float, float, str]]:
        """Return (x, y, width, height, tooltip) of each bar in SVG coordinates."""
        return [
            (self.across(x0), row := self.down(y), max(2.0, self.across(x1) - self.across(x0)), ROWS - row, said)
            for x0, x1, y, said in layer.bars
        ]

    def path(self, layer: Line) -> str:
        """Return a line as the commands of an SVG path. The line is interrupted where a value is None."""
        found: list[str] = []
        pen = False
        for column, some in groupby(layer.points, key=lambda point: int(self.across(point[0]))):
            heights = [y for _, y in some]
            known = [y for y in heights if y is not None]
            for y in dict.fromkeys([known[0], max(known), known[-1]]) if known else ():
                found.append(f"{'H' if pen else 'M'}{column}{'V' if pen else ' '}{self.down(y):g}")
                pen = True
            pen = pen and heights[-1] is not None
        return "".join([*found, f"H{COLUMNS}"] if pen else found)


class Table(NamedTuple):
    """A caption, headings, and rows of cells. The first `left` columns are text, with `words_last` also the last."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    words_last: bool = False

    def side(self, column: int) -> str:
        """Return the CSS classes of a column's cells: "left", "right", or "left long" for a last column of words."""
        if self.words_last and column == len(self.heads) - 1:
            return "left long"
        return "left" if column < self.left else "right"


class Figure(NamedTuple):
    """A chart with its title, its summary, its table, and notes that describe missing data.

    `chart` is None if there is nothing to draw; then the summary is the reason.
    """

    name: str
    title: str
    said: str
    chart: Chart | None = None
    table: Table | None = None
    notes: tuple[str, ...] = ()


class _Timed(Protocol):
    @property
    def when_us(self) -> int: ...


T = TypeVar("T", bound=_Timed)


def _drop_implausible(rows: Iterable[T], now_us: int) -> list[T]:
    """Return the rows with a plausible time: neither before journald existed nor after now."""
    return [row for row in rows if FIRST_US <= row.when_us <= now_us + HOUR_US]


def _describe_omission(number: int, noun: str) -> list[str]:
    """Return a note with the number of rows that `_drop_implausible` left out; [] if there are none."""
    return [f"{counted(number, noun)} dated before 2011 or after now by a wrong clock, left out."] if number else []


def _choose_levels(high: float, unit: str = "") -> tuple[tuple[float, str], ...]:
    """Return about four labels of round numbers from 0 to at least `high`: multiples of 1, 2 or 5 times 10^n."""
    step = max(high, 1e-6) / 4
    power = 10.0 ** (ceil(log10(step)) - 1)
    size = next(power * times for times in (1, 2, 5, 10) if power * times >= step * 0.999)
    levels = [number * size for number in range(ceil(high / size - 1e-9) + 1)]
    return tuple((level, f"{level:g}{unit}" if unit else f"{level:,.0f}") for level in levels if unit or level % 1 == 0)


def _label_times(low: int, high: int) -> tuple[tuple[float, str], ...]:
    """Return LABELS labels at even distances on an axis of time."""
    written = day if high - low > 4 * DAY_US else hour
    return tuple((at, written(at)) for at in (low + (high - low) * part // (LABELS - 1) for part in range(LABELS)))


# boots


def draw_boots(known: Sequence[Boot], record: Recorded | None) -> Figure:
    """Return the chart of boots: the time of each, and the part of the journal's flush.

    A mark shows when the history began, which is the day of the installation.
    """
    name, title = "boots", "Boots"
    shown = sorted(known, key=lambda boot: boot.first_us)[-MOST_BOOTS:]
    if not shown:
        return Figure(name, title, "The journal contains no boot.")
    since_us = None if record is None else record.first_us
    if record is not None and record.counters is not None and record.counters.since_us is not None:
        since_us = record.counters.since_us
    first = None if since_us is None else bisect_right([boot.first_us for boot in shown], since_us)
    written = day if shown[-1].first_us - shown[0].first_us > 4 * DAY_US else hour
    userspace = Bars("userspace", "userspace", _make_bars([_s(boot.userspace_us) for boot in shown], shown))
    flush = Bars("flush", "of it, the journal's flush", _make_bars([_s(boot.waited_us) for boot in shown], shown))
    levels = _choose_levels(max([bar[2] for bar in (*userspace.bars, *flush.bars)], default=0.0), " s")
    chart = Chart(
        low=0,
        high=len(shown),
        top=levels[-1][0],
        levels=levels,
        labels=tuple(
            (place + 0.5, written(shown[place].first_us))
            for place in sorted({(len(shown) - 1) * part // (LABELS - 1) for part in range(LABELS)})
        ),
        layers=(userspace, flush),
        words=tuple((place + 0.5, "?") for place, boot in enumerate(shown) if _s(boot.userspace_us) is None),
        mark=(first, f"kept since {written(since_us or 0)}") if first is not None and 0 < first < len(shown) else None,
    )
    return Figure(name, title, _describe_boots(shown, first), chart, _tabulate_boots(shown), _note_gaps(known, shown))


def _describe_boots(shown: Sequence[Boot], first: int | None) -> str:
    """Return a sentence with the median before and since the boot number `first`, or of all boots."""
    if first is not None and 0 < first < len(shown):
        before, since = _describe_median(shown[:first]), _describe_median(shown[first:])
        if before and since:
            return f"Before journalkeeper a boot took {before}, since then {since}."
    all_boots = _describe_median(shown)
    if not all_boots:
        return f"None of {counted(len(shown), 'boot')} has a message with its duration."
    return f"A boot takes {all_boots}."


def _describe_median(some: Sequence[Boot]) -> str:
    """Return the median time of the boots with a known time, and their number; "" if no time is known."""
    known = [time_s for boot in some if (time_s := _s(boot.userspace_us)) is not None]
    return f"{seconds(median(known))} in the median of {counted(len(known), 'boot')}" if known else ""


def _note_gaps(known: Sequence[Boot], shown: Sequence[Boot]) -> tuple[str, ...]:
    notes = []
    without = sum(_s(boot.userspace_us) is None for boot in shown)
    if without:
        notes.append(
            f"{counted(without, 'boot')} shown as “?” {'has' if without == 1 else 'have'} no “Startup finished”"
            " message: the boot was interrupted, or the message was deleted."
        )
    if len(known) > len(shown):
        notes.append(f"The newest {len(shown)} of {len(known):,} boots are shown.")
    return tuple(notes)


def _tabulate_boots(shown: Sequence[Boot]) -> Table:
    newest = shown[-MOST_ROWS:]
    rows = tuple(
        (when(boot.first_us), _seconds(boot.userspace_us), _seconds(boot.waited_us)) for boot in reversed(newest)
    )
    part = f"The newest {len(rows)} of {len(shown)} boots" if len(rows) < len(shown) else "Boots, the newest first"
    return Table(part, ("Boot of", "Userspace", "Flush"), rows)


def _make_bars(heights: Sequence[float | None], shown: Sequence[Boot]) -> tuple[tuple[float, float, float, str], ...]:
    """Return (left, right, height, tooltip) of the bar of each boot with a known height.

    The bar of boot number N reaches from N + 0.1 to N + 0.9, which leaves gaps on both sides.
    """
    return tuple(
        (place + 0.1, place + 0.9, height, f"{when(boot.first_us)}: {seconds(height)}")
        for place, (height, boot) in enumerate(zip(heights, shown, strict=True))
        if height is not None
    )


def _s(span_us: int | None) -> float | None:
    """Return a time span in seconds; None if it is unknown, or negative because the clock was set."""
    return None if span_us is None or span_us < 0 else span_us / 1e6


def _seconds(span_us: int | None) -> str:
    known = _s(span_us)
    return UNKNOWN if known is None else seconds(known)


# extents


def draw_extents(record: Recorded, files: Sequence[JournalFile], now_us: int) -> Figure:
    """Return the chart of extents over time, their ideal number, and the time of each rewrite, up to the present files.

    Rows with an implausible time are left out, and a note reports their number.
    """
    name, title = "extents", "Extents"
    kept = _drop_implausible(record.totals, now_us)
    if not kept:
        return Figure(name, title, "The history is empty: the service records extents when they change.")
    moments = [one for one in sum_instances(kept) if not files or one.when_us < now_us]
    if files:
        moments.append(sum_files(now_us, "", files))
    last = moments[-1]
    low, high = min(moments[0].when_us, last.when_us - HOUR_US), last.when_us
    levels = _choose_levels(max(one.extents for one in moments))
    top = levels[-1][0]
    done = (entry.when_us for entry in _drop_implausible(record.entries, now_us) if entry.outcome.result is Result.DONE)
    layers = (
        Line("ideal", "ideal", tuple((one.when_us, one.ideal_extents) for one in moments)),
        Line("active", "in active files", tuple((one.when_us, one.active_extents) for one in moments)),
        Line("extents", "in all files", tuple((one.when_us, one.extents) for one in moments)),
        Bars("rewrites", "a rewrite or rotation", tuple((at, at, top / 16, "") for at in done if low <= at <= high)),
    )
    said = f"{counted(last.extents, 'extent')} at {when(last.when_us)}, where {last.ideal_extents:,} would be ideal."
    chosen = moments[:: -ceil(len(moments) / MOST_ROWS)]
    rows = tuple(
        (when(one.when_us), f"{one.extents:,}", f"{one.ideal_extents:,}", f"{one.active_extents:,}", f"{one.files:,}")
        for one in chosen
    )
    part = f"{len(rows)} of {len(moments):,} notes" if len(rows) < len(moments) else "all notes"
    table = Table(f"Extents, {part}, the newest first", ("Time", "Extents", "Ideal", "In active files", "Files"), rows)
    chart = Chart(low, high, top, levels, _label_times(low, high), layers)
    return Figure(name, title, said, chart, table, tuple(_describe_omission(len(record.totals) - len(kept), "note")))


def sum_instances(rows: Sequence[Totals]) -> list[Totals]:
    """Return the sums over all instances at each time at which one of them was recorded, by time."""
    latest: dict[str, Totals] = {}
    sums = [0] * 6
    moments: dict[int, Totals] = {}
    for one in sorted(rows, key=lambda row: row.when_us):
        before = latest.get(one.instance, (0,) * 8)
        sums = [total + now - then for total, now, then in zip(sums, one[2:], before[2:], strict=True)]
        latest[one.instance] = one
        moments[one.when_us] = Totals(one.when_us, "", *sums)
    return list(moments.values())


# intake delay


def draw_intake(journal: Journal, now_us: int) -> Figure:
    """Return the chart of the waits for journald over time: the median, the 99th percentile and the longest wait."""
    name, title = "intake", "Intake delay"
    timely = _drop_implausible(journal.intake, now_us)
    kept = sorted(entry for entry in timely if entry.wait_us >= 0)
    if not kept:
        return Figure(name, title, "No message in the journal has the time at which it was sent.")
    waits = sorted(entry.wait_us for entry in kept)
    said = (
        f"Of {counted(len(waits), 'message')}, 99 in 100 waited at most {format_span(quantile(waits, 990), 1)},"
        f" the longest {format_span(waits[-1], 1)}."
    )
    notes = []
    if not journal.complete and journal.oldest_us is not None:
        notes.append(f"The journal was read back to {when(journal.oldest_us)} only; older messages are not counted.")
    if len(kept) < len(timely):
        back = counted(len(timely) - len(kept), "message")
        notes.append(f"{back} left out: received before being sent, because the clock was set.")
    notes += _describe_omission(len(journal.intake) - len(timely), "message")
    low, high = kept[0].when_us, max(kept[-1].when_us, kept[0].when_us + MINUTE_US)
    number = min(MOST_SPANS, max(MOST_ROWS, len(kept) // SPAN_MESSAGES))
    spans = _group_by_span(kept, low, ceil((high - low + 1) / number))
    lines = tuple(
        Line(
            css,
            label,
            tuple((at, _scale_wait(quantile(some, per_mille)) if some else None) for at, some, _ in spans),
        )
        for css, label, per_mille in (("worst", "longest", 1000), ("p99", "p99", 990), ("p50", "median", 500))
    )
    top = ceil(_scale_wait(waits[-1])) or 1
    levels = tuple((level, label) for level, label in enumerate(WAIT_LABELS) if level <= top)
    chart = Chart(low, high, top, levels, _label_times(low, high), lines)
    rows = tuple(
        (
            when(at),
            f"{len(some):,}",
            *(format_span(quantile(some, part), 1) for part in (500, 990, 1000)),
            unit or UNKNOWN,
        )
        for at, some, unit in reversed(_group_by_span(kept, low, ceil((high - low + 1) / MOST_ROWS)))
        if some
    )
    heads = ("From", "Messages", "Median", "p99", "Longest", "The unit that waited longest")
    table = Table("Waits by the time of the message, the newest first", heads, rows, words_last=True)
    return Figure(name, title, said, chart, table, tuple(notes))


def _group_by_span(kept: Sequence[Intake], low_us: int, span_us: int) -> list[tuple[int, list[int], str]]:
    """Return (start, waits, unit) for each part of `span_us` of the time since `low_us`.

    The waits are sorted. The unit is the one with the longest wait, "" if nothing waited.
    """
    found: list[list[tuple[int, str]]] = [[] for _ in range((kept[-1].when_us - low_us) // span_us + 1)]
    for entry in kept:
        found[(entry.when_us - low_us) // span_us].append((entry.wait_us, entry.unit))
    return [
        (low_us + at * span_us, [wait_us for wait_us, _ in sorted(some)], max(some, default=(0, ""))[1])
        for at, some in enumerate(found)
    ]


def _scale_wait(wait_us: float) -> float:
    """Return the position of a wait on the logarithmic axis of WAIT_LABELS."""
    return max(0.0, log10(max(wait_us, 1)) - 1)
