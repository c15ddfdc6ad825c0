# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the journal tells over time: how long boots took, and how long messages waited.

What was not measured is a gap and is said; nothing is drawn below zero, whatever a clock did.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import Final

from journalkeeper.health.evidence import Boot, Intake, Journal, Recorded
from journalkeeper.model import Result
from journalkeeper.model.units import DAY_US, HOUR_US, counted, format_span, quantile
from journalkeeper.report import svg
from journalkeeper.report.figure import MOST_ROWS, Figure, Table, in_time, left_out, number_label
from journalkeeper.report.text import UNKNOWN, day, hour, seconds, when

MOST_BOOTS: Final = 120
MOST_COLUMNS: Final = 72
"""Columns of the intake chart."""

COLUMN_HOURS: Final = (1, 2, 3, 4, 6, 8, 12, 24)


def boots(known: Sequence[Boot], record: Recorded | None) -> Figure:
    """How long each boot took, how much of it was the flush, and how many extents it found.

    The record begins on the keeper's first day.
    """
    name, title = "boots", "Boots"
    shown = sorted(known, key=lambda boot: boot.first_us)[-MOST_BOOTS:]
    if not shown:
        return Figure(name, title, "The journal holds no boot.")
    extents = _found(shown, [] if record is None else _counts(record))
    since_us = None if record is None else record.first_us
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
                f"Before journalkeeper a boot took {seconds(before)} in the median of {counted(first, 'boot')},"
                f" since then {seconds(since)} in the median of {counted(len(shown) - first, 'boot')}."
            )
    median = _median_s(shown)
    if median is None:
        return f"None of {counted(len(shown), 'boot')} has a message that says how long it took."
    return f"A boot takes {seconds(median)} in the median of {counted(len(shown), 'boot')}."


def _boots_notes(known: Sequence[Boot], shown: Sequence[Boot]) -> tuple[str, ...]:
    notes = []
    without = sum(_s(boot.userspace_us) is None for boot in shown)
    if without:
        notes.append(
            f"{counted(without, 'boot')} shown as “?” {'has' if without == 1 else 'have'} no “Startup finished”"
            " message: it was interrupted, or the message is not kept."
        )
    if len(known) > len(shown):
        notes.append(f"The newest {len(shown)} of {len(known):,} boots are shown.")
    return tuple(notes)


def _boots_table(shown: Sequence[Boot], extents: Sequence[int | None]) -> Table:
    newest = list(zip(shown, extents, strict=True))[-MOST_ROWS:]
    rows = [
        (when(boot.first_us), _seconds(boot.userspace_us), _seconds(boot.waited_us), _known(number))
        for boot, number in reversed(newest)
    ]
    part = f"The newest {len(rows)} of {len(shown)} boots" if len(rows) < len(shown) else "Boots, the newest first"
    return Table(part, ("Boot of", "Userspace", "Flush", "Extents found"), tuple(rows))


def _counts(record: Recorded) -> list[tuple[int, str, int]]:
    """The extents of the active files, as noted and as each action left them: (when, path, extents), by time."""
    noted = [(one.when_us, one.path, one.extents) for one in record.samples]
    active = {path for _, path, _ in noted}
    noted += [
        (entry.when_us, entry.outcome.path, entry.outcome.extents_after)
        for entry in record.entries
        if entry.outcome.path in active and entry.outcome.result is Result.DONE
    ]
    return sorted(noted)


def _found(shown: Sequence[Boot], counts: Sequence[tuple[int, str, int]]) -> list[int | None]:
    """The extents of the active files when each boot began: every file's last count before it."""
    waiting = deque(counts)
    latest: dict[str, int] = {}
    found: list[int | None] = []
    for boot in shown:
        while waiting and waiting[0][0] <= boot.first_us:
            _, path, extents = waiting.popleft()
            latest[path] = extents
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


def intake(journal: Journal, now_us: int) -> Figure:
    """How many messages waited how long for journald: hours across, powers of two of the delay up."""
    name, title = "intake", "Intake delay"
    timely = in_time(journal.intake, now_us)
    kept = [entry for entry in timely if entry.wait_us >= 0]
    if not kept:
        return Figure(name, title, "No message in the journal says when it was sent.")
    waits = sorted(entry.wait_us for entry in kept)
    hours, cells = _cells(kept)
    low = min(column for column, _ in cells)
    wide = max(column for column, _ in cells) - low + 1
    layer = svg.Boxes("waits", _boxes(cells, low))
    most = max(bucket for _, bucket in cells) + 1
    labels = tuple((bucket, _bucket(bucket)) for bucket in range(0, most + 1, 1 if most < 10 else 2))
    panel = svg.Panel("wait in journald's queue", most, str, (layer,), height=max(90, 13 * most), labels=labels)
    axis = tuple((place + 0.5, hour((low + place) * hours * HOUR_US)) for place in range(wide))
    said = (
        f"Of {counted(len(waits), 'message')}, 99 in 100 waited at most {format_span(quantile(sorted(waits), 990), 1)},"
        f" the longest {format_span(waits[-1], 1)}."
    )
    notes = [f"A column is {counted(hours, 'hour')}; a bar's height grows with the logarithm of its messages."]
    if not journal.complete and journal.oldest_us is not None:
        notes.append(f"The journal was read back to {when(journal.oldest_us)} only; older messages are not counted.")
    if len(kept) < len(timely):
        back = counted(len(timely) - len(kept), "message")
        notes.append(f"{back} seemed to be taken before being sent, as the clock was set, and are left out.")
    notes += left_out(len(journal.intake) - len(timely), "message")
    chart = svg.Chart(f"Intake delay: {said}", 0, wide, (panel,), axis)
    return Figure(name, title, said, chart, ((layer, "messages"),), _waits_table(kept), tuple(notes))


def _boxes(cells: Counter[tuple[int, int]], low: int) -> tuple[tuple[float, float, float, float, str], ...]:
    """A box in each cell that has messages, the higher the more."""
    busiest = log2(max(cells.values()) + 1)
    return tuple(
        (at + 0.05, bucket, at + 0.95, bucket + 0.15 + 0.8 * log2(number + 1) / busiest, f"{number:,}")
        for at, bucket, number in sorted((column - low, bucket, number) for (column, bucket), number in cells.items())
    )


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


def _waits_table(kept: Sequence[Intake]) -> Table:
    counts: Counter[int] = Counter()
    worst: dict[int, Intake] = {}
    for entry in kept:
        bucket = bucket_of(entry.wait_us)
        counts[bucket] += 1
        if bucket not in worst or entry.wait_us > worst[bucket].wait_us:
            worst[bucket] = entry
    rows = tuple(
        (
            f"{_bucket(bucket)} to {_bucket(bucket + 1)}",
            f"{counts[bucket]:,}",
            f"{counts[bucket] / len(kept):.2%}",
            f"{worst[bucket].unit or UNKNOWN}, {when(worst[bucket].when_us)}",
        )
        for bucket in sorted(counts, reverse=True)
    )
    heads = ("Wait", "Messages", "Share", "The longest of them")
    return Table("Messages by how long they waited", heads, rows, words_last=True)


def _plain(unit: str) -> Callable[[float], str]:
    return lambda number: f"{number:g} {unit}"


def _s(span_us: int | None) -> float | None:
    """Seconds of a span; one below zero is a clock's, and unknown."""
    return None if span_us is None or span_us < 0 else span_us / 1e6


def _seconds(span_us: int | None) -> str:
    known = _s(span_us)
    return UNKNOWN if known is None else seconds(known)


def _known(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"
