# SPDX-License-Identifier: LGPL-2.1-or-later
"""The story of a file: its kind, its cost for a reader, the past actions on it, and the decision with its end.

The story of a directory: its owner, its window, and the span of its history.

The picture of a file is text: the number of extents that begin in each MiB, and the kind of data there. The height
shows extents per MiB on a fixed scale, so that files can be compared. Each step is twice the one before, from one
extent to the 128 and more that blocks of 4 KiB permit. The letter below names the most frequent kind of data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from journalkeeper.model import MIB, Action, Instance, JournalFile, Reason, Skip, Stretch, Sums, Verb, Window
from journalkeeper.model.manager import HistorySpan
from journalkeeper.model.run import HistoryEntry, Sample
from journalkeeper.model.schema import Count, Hidden, Inline, Moment, Seconds
from journalkeeper.model.sentences import BY, describe_outcome
from journalkeeper.model.units import DAY_US, INFINITY_US, escape, format_span, pluralize, spell_size, spell_time
from journalkeeper.policy.cost import READ_IOPS
from journalkeeper.report.text import UNKNOWN, format_moment

HEIGHTS: Final = "▁▂▃▄▅▆▇█"
SCALE: Final = "▁ at most 1, ▂ 2, ▃ 4, ▄ 8, ▅ 16, ▆ 32, ▇ 64, █ 128 or more"
"""The fewest extents of each height, as `choose_height` computes it."""

KINDS: Final = {
    "data_bytes": "d plain data",
    "compressed_bytes": "c compressed data",
    "shared_bytes": "s shared with a snapshot or a copy",
    "both_bytes": "b shared and compressed",
    "unwritten_bytes": "u unwritten: allocated, and reads as zeros",
    "hole_bytes": "h hole",
}
"""The letter and the name of each kind of bytes, by the field of a Stretch."""


def choose_height(extents: int, length: int) -> int:
    """Return the index in HEIGHTS for `extents` in `length` bytes. Each doubling of the extents per MiB adds one step.

    >>> [choose_height(extents, MIB) for extents in (0, 1, 2, 3, 4, 127, 128, 256)]
    [0, 0, 1, 1, 2, 6, 7, 7]
    """
    per_mib = extents * MIB // max(1, length)
    return min(max(per_mib.bit_length() - 1, 0), len(HEIGHTS) - 1)


def choose_letter(part: Stretch) -> str:
    """Return the letter of the kind, also "h" for holes, with the most bytes in `part`; a space if its length is 0."""
    return KINDS[max(KINDS, key=lambda field: getattr(part, field))][0] if part.length else " "


def merge_stretches(parts: Sequence[Stretch], columns: int) -> list[Stretch]:
    """Return `parts` reduced to at most `columns` by adding up neighbours; [] without parts."""
    each = -(-len(parts) // max(1, columns)) or 1
    return [_sum(parts[start : start + each]) for start in range(0, len(parts), each)]


def draw_picture(parts: Sequence[Stretch], width: int) -> list[str]:
    """Return the lines of a file's picture: extents per MiB, the letters of `choose_letter` below, and lines of a key.

    The first two have at most `width` columns. The first is blank above an "h" of holes alone. There must be parts.
    """
    columns, whole = merge_stretches(parts, width), _sum(parts)
    drawn = "".join(
        " " if part.hole_bytes == part.length else HEIGHTS[choose_height(part.extents, part.length)] for part in columns
    )
    wide = f"each column {spell_size(columns[0].length)}" if len(columns) > 1 else "one column"
    held = [(kind, getattr(whole, field)) for field, kind in KINDS.items()]
    kinds = [f"{kind}, {spell_size(size_bytes)}" for kind, size_bytes in held if size_bytes]
    return [drawn, "".join(map(choose_letter, columns)), f"{wide}; extents per MiB: {SCALE}", *kinds]


def _sum(parts: Sequence[Stretch]) -> Stretch:
    """Return the sum of neighbouring parts, which begins where the first one begins. There must be parts."""
    columns = list(zip(*parts, strict=True))
    return Stretch(columns[0][0], *map(sum, columns[1:]))


MOST_PAST: Final = 10
"""The most actions that are listed one by one."""

Lines = list[tuple[str, str]]
"""Sentences with their heads."""

UPKEEP: Final = frozenset({Verb.SET_NOCOW, Verb.ROTATE})
"""Actions on a directory or its journald, which `defrag` does only on request."""


class Decision(NamedTuple):
    """A row of `plan -j` about one file, with its explanation; `action` is None for a file that is left alone, and then
    the numbers are 0.
    """

    action: Verb | None
    reason: Reason
    detail: str = ""
    until_us: Moment | None = None
    now: bool = False
    extents_before: Count = 0
    extents_expected: Count = 0
    bytes_to_write: Count = 0
    disk_bytes_saved: Count = 0
    read_seconds_saved: Seconds = 0.0
    sentences: tuple[str, ...] = ()

    @classmethod
    def of(cls, one: Action | Skip) -> Decision:
        """Return a decision of a plan: reason, detail, end and `now` of a skip, or all of an action but its detail."""
        if isinstance(one, Skip):
            return cls(None, one.reason, one.detail, one.until_us, one.now)
        shared = [name for name in cls._fields if name in one._fields and name != "detail"]
        return cls(**{name: getattr(one, name) for name in shared})


class ReadPrice(NamedTuple):
    """The price of a cold read of a file."""

    read_seconds: Seconds
    """Of a cold read at 150 IOPS."""
    disk_read_seconds: Seconds | None


class Story(NamedTuple):
    """The answer of `explain` about a file. A part that could not be examined is None, and `unknown` has the reason.

    The parts of `picture` are of a MiB each. `disk_read_seconds` of the price is the duration of a cold read on this
    disk. `decision` is None also if the plan does not mention the file.
    """

    file: JournalFile
    picture: tuple[Stretch, ...]
    price: ReadPrice
    past: tuple[HistoryEntry, ...] | None
    samples: tuple[Sample, ...] | None
    decision: Decision | None
    window: Window | None
    unknown: dict[str, str]
    """What could not be looked at, and why."""


def _describe_next_run(action: Verb, window: Window | None) -> str:
    """Return a sentence that the next run does `action`: UPKEEP also by `defrag`, others before `window` closes."""
    if action in UPKEEP:
        return "The next run of the service does it; `journalkeeper defrag` does it now."
    if window is not None and window.closes_at_us is not None:
        return f"The next run before {format_moment(window.closes_at_us)}, when the window closes, does it."
    return "The next run does it, unless the file changes first or other programs keep the disk busy."


def _describe_end(skip: Decision, now_us: int) -> str:
    """Return when a decision against an action can end: at `until_us`, by `--now` if `now`; "" if only by an event."""
    at_once = "`journalkeeper defrag --now` does not wait." if skip.now else ""
    if skip.until_us is None:
        return at_once
    left = spell_time(max(1, (skip.until_us - now_us) // 1_000_000))
    return f"This can change in {left}, at {format_moment(skip.until_us)}. {at_once}".rstrip()


def explain_file(story: Story, width: int) -> list[Lines]:
    """Return the blocks of `explain`: path, facts, picture within `width` ([] if unknown), and cost, past, plan."""
    file = story.file
    chart = [("  ", line) for line in draw_picture(story.picture, width - 2)] if story.picture else []
    extents = f"{file.extents.total:,}, where {file.ideal_extents:,} would be ideal"
    known = [("File", _describe_kind(file)), ("Size", _describe_size(file)), ("Extents", extents)]
    rows = [("Reading", _describe_read_cost(story))]
    rows += [("History", text) for text in describe_past(story)]
    rows += [("Plan", text) for text in _list_sentences(story.decision, story.unknown.get("decision"))]
    return [[("", escape(file.path))], name_facts(known), chart, name_facts(rows)]


def name_facts(rows: Sequence[tuple[str, str]]) -> Lines:
    """Return (head, text) for each (name, text): "NAME: " right-aligned in 10 columns, blank below an equal name."""
    heads = ["" if row and rows[row - 1][0] == name else f"{name}:" for row, (name, _) in enumerate(rows)]
    return [(f"{head:>9} ", text) for head, (_, text) in zip(heads, rows, strict=True)]


def _describe_kind(file: JournalFile) -> str:
    """Return the kind (active), another state, owner, form (NOCOW, compressed, copy on write), inode and problem."""
    form = "NOCOW" if file.nocow else "compressed" if file.compressed else "copy on write"
    state = "" if file.state.value in {file.kind.value, "unknown"} else f" ({file.state})"
    said = f"{file.kind}{state} journal of {escape(file.owner)}, {form}, inode {file.inode}"
    if file.problem is not None:
        said += f"; {file.problem}: {escape(file.problem_detail)}"
    return said


def _describe_size(file: JournalFile) -> str:
    """Return the size, the allocated size if it differs, disk space or "unknown", and any entries' number and times."""
    disk = UNKNOWN if file.disk_bytes is None else spell_size(file.disk_bytes)
    size, allocated = spell_size(file.size_bytes), spell_size(file.allocated_bytes)
    said = f"{size}{f', {allocated} allocated' if allocated != size else ''}, {disk} on disk"
    if file.entries:
        said += f"; {pluralize(file.entries, 'entry')}"
        said += f" from {format_moment(file.head_time_us)} to {format_moment(file.tail_time_us)}"
    return said


def _describe_read_cost(story: Story) -> str:
    """Return the time of a cold read on this disk and on a hard disk, or only why the first is unknown."""
    price = story.price
    if price.disk_read_seconds is None:
        return f"time unknown: {escape(story.unknown['disk'])}"
    slow = f"{spell_time(price.read_seconds)} on a hard disk ({READ_IOPS} reads a second)"
    return f"{spell_time(price.disk_read_seconds)} on this disk with cold caches, estimated from a sample; {slow}"


def describe_past(story: Story) -> list[str]:
    """Return sentences: the MOST_PAST newest actions, newest first, or why there are none; older ones; the extents."""
    if story.past is None:
        return [f"{UNKNOWN}: {escape(story.unknown['past'])}"]
    newest = story.past[: -MOST_PAST - 1 : -1]
    said = [
        escape(
            f"{format_moment(one.when_us)} by {BY.get(one.origin, one.origin)}: {describe_outcome(one.outcome, 'it')}"
        )
        for one in newest
    ] or ["no action in the history"]
    if len(story.past) > len(newest):
        said.append(f"{pluralize(len(story.past) - len(newest), 'older action')}: see `journalkeeper history`")
    if story.samples:
        first, last, most = story.samples[0], story.samples[-1], max(sample.extents for sample in story.samples)
        growth = f", {last.extents:,} at {format_moment(last.when_us)}, at most {most:,}" if last is not first else ""
        said.append(f"{pluralize(first.extents, 'extent')} at {format_moment(first.when_us)}{growth}")
    return said


def explain_decision(
    decisions: Sequence[Decision], window: Window | None, now_us: int, *, watched: bool = True
) -> Decision | None:
    """Return the last of the decisions on a path, with `sentences` on all. Return None if there is no decision.

    If the path is not `watched`, the last sentence is that of NOT_WATCHED, and nothing is promised of the service.
    """
    said = [line for one in decisions for line in _explain_one(one, window, now_us, watched=watched)]
    said += [] if watched else [Reason.NOT_WATCHED.sentence]
    return decisions[-1]._replace(sentences=tuple(said)) if decisions else None


def _explain_one(decided: Decision, window: Window | None, now_us: int, *, watched: bool) -> list[str]:
    """Return sentences on a decision: its numbers, its reason, the window of an action, and if `watched` its end."""
    if decided.action:
        said = [f"{decided.action} ({decided.reason})"]
        if decided.extents_before or decided.bytes_to_write:
            extents = f"{decided.extents_before:,} to about {pluralize(decided.extents_expected, 'extent')}"
            saved = f"saves {spell_time(decided.read_seconds_saved)} of a cold read at {READ_IOPS} reads a second"
            said[0] += f": {extents}, {spell_size(decided.bytes_to_write)} to rewrite; {saved}"
        if decided.disk_bytes_saved:  # 0 where it is not known before
            said[0] += f" and about {spell_size(decided.disk_bytes_saved)} on disk"
        end = _describe_next_run(decided.action, window)
    else:
        said = [f"left alone ({decided.reason})" + (f": {escape(decided.detail)}" if decided.detail else "")]
        end = _describe_end(decided, now_us)
    said.append(decided.reason.sentence)
    if window is not None and decided.action:
        said.append(describe_window(window))
    return [*said, end] if watched and end else said


def _list_sentences(decision: Decision | None, why_unplanned: str | None) -> list[str]:
    """Return the sentences on the decision, or one: "unknown: " and `why_unplanned`, or without it "nothing to do"."""
    if decision is not None:
        return list(decision.sentences)
    return ["nothing to do" if why_unplanned is None else f"{UNKNOWN}: {escape(why_unplanned)}"]


WINDOWS: dict[str, str] = {
    "now": "--now does not wait for journald",
    "flushed": "journald has written all entries to the disk",
    "unknown-format": "no entries wait in files of a known format",
    "no-timer": "journald has no timer to flush entries to the disk",
    "stale": "journald has not written for a whole SyncIntervalSec=",
    "online": "journald's next flush to the disk is not near",
    "flush-due": "are rewritten only after journald's next flush to the disk, which is near",
    "too-short": "are rewritten only with --now: SyncIntervalSec= leaves too little time between two flushes",
    "unsynced": "are rewritten only after journald's next flush to the disk",
}
"""The words for the state of a flush window, by its reason: why it is open, or what active files do while it is not."""


def describe_window(window: Window, *, named: bool = False) -> str:
    """Return a sentence, with the instance if `named`: whether active files can be rewritten now, why, until when."""
    whose = f"{escape(window.instance)}: active files" if named else "Active files"
    reason = escape(WINDOWS.get(window.reason, f"must wait ({window.reason})"))
    if window.open:
        until = f" until {format_moment(window.closes_at_us)}" if window.closes_at_us is not None else ""
        return f"{whose} can be rewritten now{until}: {reason}."
    due = f", due by {format_moment(window.opens_at_us)}" if window.opens_at_us is not None else ""
    return f"{whose} {reason}{due}."


# a directory


class DirectoryAnswer(NamedTuple):
    """The answer of `explain` about the directory of one journald; `files` are its files without a problem.

    `window` is None if no plan has one. `unexamined` is the number of the other files.
    """

    instance: Inline[Instance]
    window: Window | None
    retention: HistorySpan
    decision: Decision | None
    files: Hidden[Sums]
    unexamined: Hidden[int] = 0


class DirectoriesAnswer(NamedTuple):
    """The answer of `explain` about a directory of journals."""

    directories: list[DirectoryAnswer]
    unknown: dict[str, str]
    """What could not be looked at, and why."""


def explain_directory(place: DirectoryAnswer, why_unplanned: str | None) -> list[Lines]:
    """Return the blocks of `explain`: path, and rows on journald, settings, window, files, history, limits and plan."""
    one, every = place.instance, place.files
    who = f"that of namespace {escape(one.namespace)}" if one.namespace else "this host's own writes here"
    who = f"{who}; it can be asked to rotate files" if one.rotatable else "none here can be asked to rotate"
    extents = f"{pluralize(every.extents, 'extent')}, where {every.ideal_extents:,} would be ideal"
    extents += f"; {place.unexamined:,} more not examined: see `journalkeeper scan`" if place.unexamined else ""
    rows = [
        ("Journald", who),
        ("Settings", _describe_storage_and_sync(one)),
        ("Window", UNKNOWN if place.window is None else describe_window(place.window)),
        ("Files", f"{pluralize(every.files, 'file')}, {extents}"),
        ("Covers", _describe_history(place.retention)),
        *describe_limits(place.retention),
        *(("Plan", text) for text in _list_sentences(place.decision, why_unplanned)),
    ]
    return [[("", escape(one.directory))], name_facts(rows)]


def _describe_storage_and_sync(instance: Instance) -> str:
    """Return Storage= and SyncIntervalSec= ("never" if infinity), and whether new files are NOCOW."""
    synced = "never" if instance.sync_interval_us == INFINITY_US else format_span(instance.sync_interval_us, 1000)
    form = "new files are NOCOW" if instance.nocow else "new files are copy on write"
    return f"Storage={escape(instance.storage)}, SyncIntervalSec={synced}, {form}"


def _describe_history(kept: HistorySpan) -> str:
    """Return the covered time, its two ends, allocated and disk bytes, or "no entries" if an end is unknown."""
    if kept.oldest_us is None or kept.newest_us is None:
        return "no entries"
    span = format_span(kept.covered_us)
    disk = UNKNOWN if kept.disk_bytes is None else spell_size(kept.disk_bytes)
    said = f"{span}, {format_moment(kept.oldest_us)} to {format_moment(kept.newest_us)}"
    return f"{said}; {spell_size(kept.allocated_bytes)} by journald's count, {disk} on disk"


def describe_limits(kept: HistorySpan) -> list[tuple[str, str]]:
    """Return (name, text) rows: always one on journald's first limit, and one on the next deletion if it is known."""
    deletion = _describe_deletion(kept)
    return [("Limit", _describe_limit(kept)), *([("Deletes", deletion)] if deletion else [])]


def _describe_limit(kept: HistorySpan) -> str:
    """Return the setting reached first, the use of each limit, a full journal's span; or "no limit" or "unknown"."""
    if kept.binding is None:
        return "no limit" if kept.max_use_bytes == 0 else UNKNOWN
    used = f"{kept.files:,} of at most " if kept.max_files else ""
    said = f"{kept.binding} is reached first; now {used}{pluralize(kept.max_files or kept.files, 'file')}"
    if kept.max_use_bytes:
        said += f" and {spell_size(kept.allocated_bytes)} of at most {spell_size(kept.max_use_bytes)}"
    if kept.max_retention_us not in {0, INFINITY_US}:
        said += f", and keeps at most {format_span(kept.max_retention_us)}"
    if kept.full_span_us is not None:
        days_us = kept.full_span_us // DAY_US * DAY_US
        said += f"; at this rate the journal covers about {format_span(days_us or kept.full_span_us)}"
    return said


def _describe_deletion(kept: HistorySpan) -> str:
    """Return how soon entries are deleted, until which time, and the cost of files that ended early; "" if unknown."""
    parts = []
    if kept.next_deleted_us is not None:
        when = f"about {format_span(kept.next_deletion_in_us)} from now, " if kept.next_deletion_in_us else ""
        parts.append(f"{when}entries until {format_moment(kept.next_deleted_us)}")
    if kept.early_files:
        early = f"{pluralize(kept.early_files, 'file')} that ended early"
        parts.append(f"{early} cost about {spell_size(kept.early_bytes)} of history")
    return "; ".join(parts)
