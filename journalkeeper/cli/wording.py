# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tables and sentences about outcomes, skipped files and waiting files, the same in all commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from journalkeeper.cli.output import Block, Output
from journalkeeper.cli.table import GREEN, GREY, LEAST_PATH, RED, YELLOW, Column, Table, elide
from journalkeeper.health.verdict import describe_waits, drop_echoes, find_noun
from journalkeeper.model import Outcome, Reason, Result, Skip, Verb, sentences
from journalkeeper.model.sentences import short_name
from journalkeeper.model.units import escape, pluralize, spell_size

COLOURS: Final = {Result.DONE: GREEN, Result.SKIPPED: YELLOW, Result.FAILED: RED}
FINE: Final = {Reason.IDEAL: "unfragmented", Reason.RECORDED: "already rewritten"}
"""Reasons of files that need no action, now or later, in words."""

_SKIPPED: Final[tuple[Column[Skip], ...]] = (
    Column("SKIPPED", lambda skip: skip.reason),
    Column("DETAIL", lambda skip: escape(skip.detail) or "-", gives="text"),
    Column("PATH", lambda skip: escape(skip.path), gives="path"),
)


def show_decisions(
    output: Output,
    document: object,
    done: Table[Any],
    skipped: Sequence[Skip],
    *,
    everything: bool,
    footer: Sequence[Block],
) -> None:
    """Write the answer of `plan` or `defrag`: `document` as JSON, or the table `done`, the skipped files (without
    echoes), a glossary of the reasons in both, and the `footer`. Files with nothing to do are only counted unless
    `everything`.
    """
    listed = skipped if everything else [skip for skip in drop_echoes(skipped) if skip.reason not in FINE]
    tally = Counter(FINE[skip.reason] for skip in skipped if skip.reason in FINE and not everything)
    fine = ", ".join(f"{number:,} {words}" for words, number in sorted(tally.items()))
    unlisted = [f"Files that need no action: {fine}."] if tally else []
    glossary = [f"{why}: {why.sentence}" for why in dict.fromkeys(row.reason for row in (*listed, *done.rows))]
    output.show(document, done, Table(_SKIPPED, listed, lambda _: GREY), unlisted, legend=[glossary, *footer])


def describe_rest(skipped: Sequence[Skip]) -> str:
    """Return the end of a summary, such as "5 files left alone. Of these, 2 files wait for free disk space."

    The first sentence counts the files and directories; without `skipped` it is "0 files left alone.". If some wait,
    the next sentence is "Of these, " and `describe_waits`; if all wait, this is a part of the first sentence. If --now
    would help, the last sentence has the command. The rows that `drop_echoes` removes do not count.
    """
    skipped = drop_echoes(skipped)
    waiting = [skip for skip in skipped if skip.puts_off]
    said = f"{_count_nouns({skip.path: find_noun(skip) for skip in skipped}.values()) or '0 files'} left alone"
    if waiting:
        helped = sum(skip.now for skip in waiting)
        what = "does not wait" if helped == len(waiting) else f"works at once on {helped:,} of these"
        said += f"{': ' if len(waiting) == len(skipped) else '. Of these, '}{describe_waits(waiting)}"
        said += f". `journalkeeper defrag --now` {what}" if helped else ""
    return f"{said}."


def _count_nouns(nouns: Iterable[str]) -> str:
    """Return "2 files and 1 directory" for these nouns, the files first; "" without nouns."""
    return " and ".join(pluralize(number, noun) for noun, number in sorted(Counter(nouns).items(), reverse=True))


def describe_no_actions(skipped: Sequence[Skip]) -> str:
    """Return the summary of a plan without actions: `describe_rest`, after "Nothing to do: " if no file waits."""
    rest = describe_rest(skipped) if skipped else "no journal file was found."
    return rest if any(skip.puts_off for skip in skipped) else f"Nothing to do: {rest}"


def describe_outcome(outcome: Outcome, width: int | None) -> str:
    """Return the sentence on an outcome, escaped for a terminal, with a short name unless `width` is None."""
    name = short_name(outcome.path) if is_on_file(outcome.action) else outcome.path
    return escape(sentences.describe_outcome(outcome, name if width is None else elide(name, LEAST_PATH)))


def is_on_file(action: str) -> bool:
    """Return whether an action is on a file, which has extents: True for all but set-nocow, also for a rotation."""
    return action != Verb.SET_NOCOW


def count_subjects(actions: Collection[str]) -> str:
    """Return the number of files and directories that `actions` are on: "2 files", "1 file and 1 directory"."""
    return _count_nouns("file" if is_on_file(action) else "directory" for action in actions)


def describe_sums(outcomes: Sequence[Outcome]) -> str:
    """Return the extents and disk bytes of files before and after: "9 to 1 extent, 8 MiB to 576 KiB on disk".

    Rotations are left out, because a rotation removes no extent. The disk bytes are those of measured files, if any.
    """
    outcomes = [one for one in outcomes if one.action is not Verb.ROTATE]
    before, after = sum(one.extents_before for one in outcomes), sum(one.extents_after for one in outcomes)
    measured = [one for one in outcomes if None not in {one.disk_bytes_before, one.disk_bytes_after}]
    text = f"{before:,} to {pluralize(after, 'extent')}"
    if not measured:
        return text
    disk_before = sum(one.disk_bytes_before or 0 for one in measured)
    disk_after = sum(one.disk_bytes_after or 0 for one in measured)
    later = " once other files with the old data are deleted" if any(one.unshared_bytes for one in outcomes) else ""
    return f"{text}, {spell_size(disk_before)} to {spell_size(disk_after)} on disk{later}"
