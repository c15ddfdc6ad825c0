# SPDX-License-Identifier: LGPL-2.1-or-later
"""The three charts of the page: boots, extents, and intake delay. Each has a summary, a table, and notes.

A chart is described here in plain numbers: a column for each boot or span of time, and the height of each layer there.
The page's template draws it, ROWS high. An unknown value is a gap with a note. A column shows the peak of its span, and
the number of columns does not grow with the history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import ceil, log10
from operator import attrgetter
from statistics import median
from typing import Final, NamedTuple, TypeVar

from journalkeeper.health.evidence import Boot, Evidence, Intake, Journal, Recorded, Unknown
from journalkeeper.health.finding import supply
from journalkeeper.model import Result
from journalkeeper.model.run import HistoryEntry, Totals
from journalkeeper.model.units import DAY_US, HOUR_US, pluralize, quantile, spell_time
from journalkeeper.report.text import UNKNOWN, format_axis_time, format_day, format_minute

ROWS: Final = 160
LABELS: Final = 4
"""The most labels of a time axis. A narrow screen shows only the outer ones."""

LEAST_BARS: Final = 12
"""The fewest columns of a chart of bars, so that one boot is no giant bar."""

MOST_ROWS: Final = 12
"""The most rows of a table below a chart: the newest rows, or sums."""

MOST_BOOTS: Final = 120
MOST_SPANS: Final = 240
"""The most columns of a chart of boots, and of a chart of spans of time."""

SPAN_MESSAGES: Final = 100
"""The fewest messages of a span: of fewer, the 99th percentile is the longest wait."""

WAIT_LABELS: Final = ("10us", "100us", "1ms", "10ms", "100ms", "1s", "10s", "100s", "1000s")

FIRST_US: Final = 1_293_840_000_000_000
"""The beginning of 2011, before which journald did not exist."""


class Layer(NamedTuple):
    """Bars, or a stepped line, with a height for each column of a chart; None is a gap.

    `css` is the class of their colour, `name` is for the key.
    """

    css: str
    name: str
    heights: tuple[float | None, ...]
    bars: bool = False


class Chart(NamedTuple):
    """Layers over columns that begin at `times`. `levels` are the heights on the scale with their labels.

    `mark` is a vertical line at the left of a column, with its name.
    """

    times: Sequence[int]
    levels: tuple[tuple[float, str], ...]
    layers: tuple[Layer, ...]
    mark: tuple[int, str] | None = None

    @property
    def columns(self) -> int:
        """The width in columns. A chart of bars only has at least LEAST_BARS, and the last ones are then free."""
        only_bars = self.layers and all(layer.bars for layer in self.layers)
        return max(len(self.times), LEAST_BARS if only_bars else 1)

    @property
    def labels(self) -> list[tuple[float, str, str]]:
        """At most LABELS tuples of the middle of a column in percent, CSS classes and the column's time.

        They are evenly spread over all `columns`, but those of free columns are left out. `times` must not be empty.
        """
        last, form = self.columns - 1, _choose_time_format(self.times)
        chosen = sorted({last * part // (LABELS - 1) for part in range(LABELS)})
        places = [
            (round((column + 0.5) / self.columns * 100, 2), column) for column in chosen if column < len(self.times)
        ]
        return [(x, _align_label(x), form(self.times[column])) for x, column in places]

    def get_y(self, height: float) -> float:
        """Return the SVG y coordinate of `height`. A value outside the chart gets the coordinate of its edge."""
        top = self.levels[-1][0] or 1
        return round(ROWS * (1 - min(max(height, 0), top) / top), 1)

    def make_path(self, layer: Layer) -> str:
        """Return the commands of an SVG path that draws the layer as a stepped line, with a gap for each None."""
        found, pen = [], False
        for column, height in enumerate(layer.heights):
            if height is not None:
                found.append(f"{'V' if pen else f'M{column} '}{self.get_y(height):g}H{column + 1}")
            pen = height is not None
        return "".join(found)


def _align_label(percent: float) -> str:
    """Return "label first" or "label last" near an edge, else "label inner", which a narrow screen hides."""
    return "label first" if percent < 50 / LABELS else "label last" if percent > 100 - 50 / LABELS else "label inner"


class ChartTable(NamedTuple):
    """A caption, headings, and rows of cells. The first column is text, with `words_last` also the last."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words_last: bool = False

    def align_cell(self, column: int) -> str:
        """Return the CSS classes of a cell: "left" for the first column, "left long" for last words, else "right"."""
        if self.words_last and column == len(self.heads) - 1:
            return "left long"
        return "right" if column else "left"


class Figure(NamedTuple):
    """The summary of a chart, the chart, its table, and notes that describe missing data.

    `chart` is None if there is nothing to draw; then the summary is the reason.
    """

    summary: str
    chart: Chart | None = None
    table: ChartTable | None = None
    notes: tuple[str, ...] = ()


T = TypeVar("T", Boot, Totals, HistoryEntry, Intake)


def _drop_implausible(rows: Iterable[T], now_us: int) -> list[T]:
    """Return the rows that are dated between FIRST_US and an hour after now."""
    return [row for row in rows if FIRST_US <= row.when_us <= now_us + HOUR_US]


def _describe_omission(number: int, noun: str) -> list[str]:
    """Return a list with the sentence on `number` rows that `_drop_implausible` left out, [] for 0."""
    return [f"{pluralize(number, noun)} dated before 2011 or after now by a wrong clock, left out."] if number else []


def _choose_levels(high: float, unit: str = "") -> tuple[tuple[float, str], ...]:
    """Return about four round heights with labels, 0 to at least `high` (only 0 for 0), whole numbers without unit."""
    step = max(high, 1e-6) / 4
    power = 10.0 ** (ceil(log10(step)) - 1)
    size = next(power * times for times in (1, 2, 5, 10) if power * times >= step * 0.999)
    levels = [number * size for number in range(ceil(high / size - 1e-9) + 1)]
    return tuple((level, f"{level:g}{unit}" if unit else f"{level:,.0f}") for level in levels if unit or level % 1 == 0)


def _choose_time_format(times: Sequence[int]) -> Callable[[int], str]:
    """Return format_day if the sorted `times`, at least one, span over four days, else format_axis_time."""
    return format_day if times[-1] - times[0] > 4 * DAY_US else format_axis_time


def _divide(low_us: int, high_us: int, most: int) -> range:
    """Return the beginnings of at most `most` equal spans. The last span contains `high_us` itself."""
    return range(low_us, high_us + 1, ceil((high_us - low_us + 1) / most))


def _group_by_time(times: range, rows: Iterable[T]) -> list[list[T]]:
    """Return a list for each span that begins at `times`, with its rows in order, without rows outside of all."""
    found: list[list[T]] = [[] for _ in times]
    for row in rows:
        if times.start <= row.when_us < times[-1] + times.step:
            found[(row.when_us - times.start) // times.step].append(row)
    return found


# boots


def draw_boots(journal: Journal, evidence: Evidence) -> Figure:
    """Return the chart of the newest MOST_BOOTS boots: the userspace time of each, and the part of the journal's flush.

    A mark shows the first boot after the history began. The table has the newest MOST_ROWS boots, and a note counts
    boots without a duration. Without plausibly dated boots, the figure has only a sentence.
    """
    record = None if isinstance(evidence.record, Unknown) else evidence.record
    kept = sorted(_drop_implausible(journal.boots, evidence.now_us), key=attrgetter("when_us"))
    shown = kept[-MOST_BOOTS:]
    if not shown:
        return Figure("The journal contains no boot with a plausible date.")
    counters = record and record.counters
    since_us = (counters and counters.since_us) or 0
    times = [boot.when_us for boot in shown]
    first = bisect_right(times, since_us) % len(shown)  # 0 also where all boots are older
    userspace = _make_bars_in_seconds("userspace", "userspace", [boot.userspace_us for boot in shown])
    flush = _make_bars_in_seconds("flush", "the journal's flush, a part of it", [boot.flush_us for boot in shown])
    known_s = [height for height in (*userspace.heights, *flush.heights) if height is not None]
    chart = Chart(
        times=times,
        levels=_choose_levels(max(known_s, default=0.0), " s"),
        layers=(userspace, flush),
        mark=(first, f"installed {_choose_time_format(times)(since_us)}") if first else None,
    )
    columns = list(zip(times, userspace.heights, flush.heights, strict=True))[::-1]
    rows = tuple((format_minute(at), *map(_describe_time, spans_s)) for at, *spans_s in columns[:MOST_ROWS])
    part = f"The newest {len(rows)} of {len(kept):,} boots"
    caption = part if len(rows) < len(shown) else "Boots, the newest first"
    table = ChartTable(caption, ("Boot of", "Userspace", "Flush"), rows)
    without = userspace.heights.count(None)
    has = "has" if without == 1 else "have"
    note = f"{pluralize(without, 'boot')} {has} no “Startup finished” message: it was deleted, or the boot interrupted."
    notes = ([note] if without else []) + _describe_omission(len(journal.boots) - len(kept), "boot")
    return Figure(_describe_boots(userspace.heights, first), chart, table, tuple(notes))


def _make_bars_in_seconds(css: str, name: str, spans_us: list[int | None]) -> Layer:
    heights = (None if span_us is None else span_us / 1e6 for span_us in spans_us)
    return Layer(css, name, tuple(heights), bars=True)


def _describe_time(time_s: float | None) -> str:
    return UNKNOWN if time_s is None else spell_time(time_s)


def _describe_boots(times_s: Sequence[float | None], first: int) -> str:
    """Return a sentence on boots before and since index `first`, on all if a side is unknown, or that none is known."""
    before, since = _describe_median(times_s[:first]), _describe_median(times_s[first:])
    if before and since:
        return f"Before journalkeeper a boot took {before}, since then {since}."
    all_boots = _describe_median(times_s)
    if not all_boots:
        return f"None of {pluralize(len(times_s), 'boot')} has a message with its duration."
    return f"A boot takes {all_boots}."


def _describe_median(times_s: Sequence[float | None]) -> str:
    """Return "1.6s in the median of 3 boots" for the known times, "" if none is known."""
    known = [time_s for time_s in times_s if time_s is not None]
    return f"{spell_time(median(known))} in the median of {pluralize(len(known), 'boot')}" if known else ""


# extents


def draw_extents(record: Recorded, evidence: Evidence) -> Figure:
    """Return the chart of extents until the present look, in all and active files, ideal ones, rewrites and rotations.

    A span shows its highest counts, or repeats the last ones. The table has at most MOST_ROWS times, at equal steps
    back from the newest. Without plausible counts, the figure has only a sentence.
    """
    look, now_us = evidence.look, evidence.now_us
    files = [] if isinstance(look, Unknown) else [file for file in look.host.files if file.problem is None]
    kept = _drop_implausible(record.totals, now_us)
    if not kept:
        return Figure("The history has no counts: the service records extents when they change.")
    moments = [one for one in sum_instances(kept) if not files or one.when_us < now_us]
    if files:
        moments.append(Totals.of(now_us, "", files))
    last = moments[-1]
    times = _divide(moments[0].when_us, last.when_us, MOST_SPANS)
    spans = _group_by_time(times, moments)
    for place in range(1, len(spans)):
        spans[place] = spans[place] or spans[place - 1][-1:]  # without a note, nothing changed
    levels = _choose_levels(max(one.extents for one in moments))
    done = [entry for entry in record.entries if entry.outcome.result is Result.DONE]
    ticks = tuple(levels[-1][0] / 16 if some else None for some in _group_by_time(times, done))
    layers = (
        Layer("ideal", "ideal", tuple(max(one.ideal_extents for one in some) for some in spans)),
        Layer("active", "in active files", tuple(max(one.active_extents for one in some) for some in spans)),
        Layer("extents", "in all files", tuple(max(one.extents for one in some) for some in spans)),
        Layer("rewrites", "a rewrite or rotation", ticks, bars=True),
    )
    said = f"{pluralize(last.extents, 'extent')} at {format_minute(last.when_us)}"
    said += f", where {last.ideal_extents:,} would be ideal."
    chosen = moments[:: -ceil(len(moments) / MOST_ROWS)]
    rows = tuple(map(_tabulate_totals, chosen))
    table = ChartTable(
        "Extents over time, the newest first", ("Time", "Extents", "Ideal", "In active files", "Files"), rows
    )
    notes = _describe_omission(len(record.totals) - len(kept), "note")
    return Figure(said, Chart(times, levels, layers), table, tuple(notes))


def _tabulate_totals(one: Totals) -> tuple[str, ...]:
    """Return a row: the time, all extents, ideal ones, those of active files, and the number of files."""
    counts = (one.extents, one.ideal_extents, one.active_extents, one.files)
    return format_minute(one.when_us), *(f"{count:,}" for count in counts)


def sum_instances(rows: Sequence[Totals]) -> list[Totals]:
    """Return the sums over all instances at each time at which one of them was recorded, by time.

    An instance counts with its newest row until then. The sums have "" as their instance.
    """
    latest: dict[str, Totals] = {}
    moments: dict[int, Totals] = {}
    for one in sorted(rows, key=lambda row: row.when_us):
        latest[one.instance] = one
        sums = map(sum, zip(*(row[2:] for row in latest.values()), strict=True))
        moments[one.when_us] = Totals(one.when_us, "", *sums)
    return list(moments.values())


# intake delay


def draw_intake(journal: Journal, now_us: int) -> Figure:
    """Return the chart of waits (median, p99, longest) and a table of up to MOST_ROWS spans; without any a sentence."""
    kept = sorted(_drop_implausible(journal.intake, now_us))
    if not kept:
        return Figure("No message in the journal has a plausible time at which it was sent.")
    waits = sorted(entry.wait_us for entry in kept)
    most, longest = spell_time(quantile(waits, 990) / 1e6), spell_time(waits[-1] / 1e6)
    said = f"Of {pluralize(len(waits), 'message')}, 99 in 100 waited at most {most}, the longest {longest}."
    notes = []
    if not journal.complete and journal.oldest_us is not None:
        oldest = format_minute(journal.oldest_us)
        notes.append(f"The journal was read back to {oldest} only; older messages are not counted.")
    notes += _describe_omission(len(journal.intake) - len(kept), "message")
    times = _divide(kept[0].when_us, kept[-1].when_us, min(MOST_SPANS, max(MOST_ROWS, len(kept) // SPAN_MESSAGES)))
    spans = [sorted(entry.wait_us for entry in some) for some in _group_by_time(times, kept)]
    lines = tuple(
        Layer(css, label, tuple(_scale_wait(quantile(some, per_mille)) if some else None for some in spans))
        for css, label, per_mille in (("worst", "longest", 1000), ("p99", "p99", 990), ("p50", "median", 500))
    )
    begins_us = _divide(kept[0].when_us, kept[-1].when_us, MOST_ROWS)
    parts = [*zip(begins_us, _group_by_time(begins_us, kept), strict=True)]
    levels = tuple(enumerate(WAIT_LABELS[: max(1, ceil(_scale_wait(waits[-1]))) + 1]))
    table = ChartTable(
        caption="Waits by the time of the message, the newest first",
        heads=("From", "Messages", "Median", "p99", "Longest", "The unit that waited longest"),
        rows=tuple(_tabulate_span(begin_us, entries) for begin_us, entries in reversed(parts) if entries),
        words_last=True,
    )
    return Figure(said, Chart(times, levels, lines), table, tuple(notes))


def _tabulate_span(begin_us: int, entries: Sequence[Intake]) -> tuple[str, ...]:
    """Return a row: the time, number, median, p99 and longest wait of `entries`, at least one, and that wait's unit."""
    waits = sorted((entry.wait_us, entry.unit) for entry in entries)
    spans = (spell_time(quantile([wait_us for wait_us, _ in waits], part) / 1e6) for part in (500, 990, 1000))
    return format_minute(begin_us), f"{len(waits):,}", *spans, waits[-1][1] or UNKNOWN


def _scale_wait(wait_us: float) -> float:
    """Return the position of a wait on the logarithmic axis of WAIT_LABELS: 0 for up to 10 us, 1 for 100 us."""
    return max(0.0, log10(max(wait_us, 1)) - 1)


FIGURES: Final[dict[str, Callable[..., Figure]]] = {
    "Boots": draw_boots,
    "Extents": draw_extents,
    "Intake delay": draw_intake,
}
"""The function of each figure by its title. Its parameters are the parts of the evidence that it needs."""


def draw_all(evidence: Evidence) -> dict[str, Figure]:
    """Return each of FIGURES by its title. Without its evidence, its summary is the reason."""
    drawn = {title: supply(draw, evidence) for title, draw in FIGURES.items()}
    return {title: Figure(f"Unknown: {one.why}.") if isinstance(one, Unknown) else one for title, one in drawn.items()}
