# SPDX-License-Identifier: LGPL-2.1-or-later
"""The charts of boot times and of intake delay.

An unknown value is a gap with a note. No bar or line goes below zero, even if a clock was set back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, log10
from statistics import median
from typing import Final

from journalkeeper.health.evidence import Boot, Intake, Journal, Recorded
from journalkeeper.model import Result
from journalkeeper.model.units import DAY_US, MINUTE_US, counted, format_span, quantile
from journalkeeper.report import svg
from journalkeeper.report.figure import MOST_ROWS, Figure, Table, describe_omission, in_time, number_label, time_labels
from journalkeeper.report.text import UNKNOWN, day, hour, seconds, when

MOST_BOOTS: Final = 120
MOST_SPANS: Final = 120
"""The most spans of time in the intake chart; each has its percentiles."""

SPAN_MESSAGES: Final = 100
"""The fewest messages of a span: of fewer, the 99th percentile is the longest wait."""

WAIT_LABELS: Final = ("10us", "100us", "1ms", "10ms", "100ms", "1s", "10s", "100s", "1000s")


def boots(known: Sequence[Boot], record: Recorded | None) -> Figure:
    """Return the chart of boots: the time of each, the part of the journal's flush, and the extents that it met.

    A mark shows when the history began, which is the day of the installation.
    """
    name, title = "boots", "Boots"
    shown = sorted(known, key=lambda boot: boot.first_us)[-MOST_BOOTS:]
    if not shown:
        return Figure(name, title, "The journal contains no boot.")
    extents = _count_found_extents(shown, [] if record is None else _counts(record))
    since_us = None if record is None else record.first_us
    if record is not None and record.counters is not None and record.counters.since_us is not None:
        since_us = record.counters.since_us
    userspace = svg.Boxes("userspace", _columns([_s(boot.userspace_us) for boot in shown], shown))
    flush = svg.Boxes("flush", _columns([_s(boot.waited_us) for boot in shown], shown))
    gaps = tuple((place + 0.5, "?") for place, boot in enumerate(shown) if _s(boot.userspace_us) is None)
    found = svg.Boxes("extents", _columns(extents, shown))
    lower = tuple((place + 0.5, "?") for place, number in enumerate(extents) if number is None)
    longest = max([_s(boot.userspace_us) or 0.0 for boot in shown] + [_s(boot.waited_us) or 0.0 for boot in shown])
    panels = [svg.Panel("seconds", longest, _plain("s"), (userspace, flush, svg.Words("gap", gaps)), height=150)]
    if any(number is not None for number in extents):
        highest = max(number or 0 for number in extents)
        layers = (found, svg.Words("gap", lower))
        panels.append(svg.Panel("extents of the active files at the boot", highest, number_label, layers, height=70))
    first = None if since_us is None else bisect_right([boot.first_us for boot in shown], since_us)
    written = day if shown[-1].first_us - shown[0].first_us > 4 * DAY_US else hour
    marks = (
        () if first is None or not 0 < first < len(shown) else ((float(first), f"kept since {written(since_us or 0)}"),)
    )
    labels = tuple((place + 0.5, written(boot.first_us)) for place, boot in enumerate(shown))
    said = _describe_boots(shown, first)
    chart = svg.Chart(f"Boots: {said}", 0, len(shown), tuple(panels), labels, marks)
    key = ((userspace, "userspace"), (flush, "of it, the journal's flush"))
    return Figure(name, title, said, chart, key, _boots_table(shown, extents), _boots_notes(known, shown))


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


def _boots_notes(known: Sequence[Boot], shown: Sequence[Boot]) -> tuple[str, ...]:
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


def _boots_table(shown: Sequence[Boot], extents: Sequence[int | None]) -> Table:
    newest = list(zip(shown, extents, strict=True))[-MOST_ROWS:]
    rows = [
        (when(boot.first_us), _seconds(boot.userspace_us), _seconds(boot.waited_us), _format_count(number))
        for boot, number in reversed(newest)
    ]
    part = f"The newest {len(rows)} of {len(shown)} boots" if len(rows) < len(shown) else "Boots, the newest first"
    return Table(part, ("Boot of", "Userspace", "Flush", "Extents found"), tuple(rows))


def _counts(record: Recorded) -> list[tuple[int, str, int]]:
    """Return (time, path, extents) of the active files by time, from samples and from the outcomes of actions."""
    noted = [(one.when_us, one.path, one.extents) for one in record.samples]
    active = {path for _, path, _ in noted}
    noted += [
        (entry.when_us, entry.outcome.path, entry.outcome.extents_after)
        for entry in record.entries
        if entry.outcome.path in active and entry.outcome.result is Result.DONE
    ]
    return sorted(noted)


def _count_found_extents(shown: Sequence[Boot], counts: Sequence[tuple[int, str, int]]) -> list[int | None]:
    """Return the extents of the active files at the beginning of each boot, by the last known count of each file."""
    waiting = deque(counts)
    latest: dict[str, int] = {}
    found: list[int | None] = []
    for boot in shown:
        while waiting and waiting[0][0] <= boot.first_us:
            _, path, extents = waiting.popleft()
            latest[path] = extents
        found.append(sum(latest.values()) if latest else None)
    return found


def _describe_median(some: Sequence[Boot]) -> str:
    """Return the median time of the boots with a known time, and their number; "" if no time is known."""
    known = [time_s for boot in some if (time_s := _s(boot.userspace_us)) is not None]
    return f"{seconds(median(known))} in the median of {counted(len(known), 'boot')}" if known else ""


def _columns(
    heights: Sequence[float | None], shown: Sequence[Boot]
) -> tuple[tuple[float, float, float, float, str], ...]:
    """Return a bar for each known height; a bar takes the middle eight tenths of its place."""
    return tuple(
        (place + 0.1, 0.0, place + 0.9, max(0.0, height), when(boot.first_us))
        for place, (height, boot) in enumerate(zip(heights, shown, strict=True))
        if height is not None
    )


def intake(journal: Journal, now_us: int) -> Figure:
    """Return the chart of the waits for journald over time: the median, the 99th percentile and the longest wait."""
    name, title = "intake", "Intake delay"
    timely = in_time(journal.intake, now_us)
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
    notes += describe_omission(len(journal.intake) - len(timely), "message")
    low, high = kept[0].when_us, max(kept[-1].when_us, kept[0].when_us + MINUTE_US)
    number = min(MOST_SPANS, max(MOST_ROWS, len(kept) // SPAN_MESSAGES))
    spans = _spans(kept, low, ceil((high - low + 1) / number))
    lines = tuple(
        (svg.Line(css, _wait_points(spans, per_mille)), label)
        for css, label, per_mille in (("worst", "longest", 1000), ("p99", "p99", 990), ("p50", "median", 500))
    )
    top = ceil(_wait_level(waits[-1])) or 1
    labels = tuple((level, label) for level, label in enumerate(WAIT_LABELS) if level <= top)
    panel = svg.Panel("wait in journald's queue", top, str, tuple(line for line, _ in lines), 170, labels=labels)
    chart = svg.Chart(f"Intake delay: {said}", low, high, (panel,), time_labels(low, high))
    rows_us = ceil((high - low + 1) / MOST_ROWS)
    return Figure(name, title, said, chart, lines, _waits_table(_spans(kept, low, rows_us)), tuple(notes))


def _spans(kept: Sequence[Intake], low_us: int, span_us: int) -> list[tuple[int, list[Intake]]]:
    """Return the messages of each span of time, shortest wait first; a span without messages has an empty list."""
    found: list[list[Intake]] = [[] for _ in range((kept[-1].when_us - low_us) // span_us + 1)]
    for entry in kept:
        found[(entry.when_us - low_us) // span_us].append(entry)
    return [(low_us + at * span_us, sorted(some, key=lambda one: one.wait_us)) for at, some in enumerate(found)]


def _wait_points(spans: Sequence[tuple[int, list[Intake]]], per_mille: int) -> tuple[tuple[float, float | None], ...]:
    """Return a line through the wait of each span that `per_mille` of a thousand messages do not exceed."""
    return tuple(
        (at, _wait_level(quantile([one.wait_us for one in some], per_mille)) if some else None) for at, some in spans
    )


def _wait_level(wait_us: float) -> float:
    """Return the position of a wait on the logarithmic axis of WAIT_LABELS."""
    return max(0.0, log10(max(wait_us, 1)) - 1)


def _waits_table(spans: Sequence[tuple[int, list[Intake]]]) -> Table:
    rows = tuple(
        (
            when(at),
            f"{len(some):,}",
            *(format_span(quantile([one.wait_us for one in some], part), 1) for part in (500, 990, 1000)),
            some[-1].unit or UNKNOWN,
        )
        for at, some in reversed(spans)
        if some
    )
    heads = ("From", "Messages", "Median", "p99", "Longest", "The unit that waited longest")
    return Table("Waits by the time of the message, the newest first", heads, rows, words_last=True)


def _plain(unit: str) -> Callable[[float], str]:
    return lambda number: f"{number:g} {unit}"


def _s(span_us: int | None) -> float | None:
    """Return a span in seconds; None if it is unknown, or negative because the clock was set."""
    return None if span_us is None or span_us < 0 else span_us / 1e6


def _seconds(span_us: int | None) -> str:
    known = _s(span_us)
    return UNKNOWN if known is None else seconds(known)


def _format_count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"
