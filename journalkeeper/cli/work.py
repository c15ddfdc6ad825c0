# SPDX-License-Identifier: LGPL-2.1-or-later
"""The options, complaints, tables and sentences that the commands about files share.

`plan` and `defrag` take the same options, so that `plan` shows what `defrag` does.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from journalkeeper.cli.context import Context
from journalkeeper.cli.output import Block, Output
from journalkeeper.cli.table import GREEN, GREY, LEAST_PATH, RED, YELLOW, Column, Table, elide
from journalkeeper.health.verdict import describe_waits, drop_echoes, find_noun
from journalkeeper.model import JournalFile, Outcome, Reason, Request, Result, Skip, Verb, sentences
from journalkeeper.model.errors import NeedsRootError
from journalkeeper.model.sentences import NO_JOURNAL, shorten_path
from journalkeeper.model.units import escape, parse_compression, pluralize, spell_size

NEXT: Final = {
    Reason.VANISHED: "`journalkeeper scan` lists the journal files",
    Reason.NOT_JOURNAL: "`journalkeeper scan` lists the journal files",
    Reason.NOT_REGULAR: "name the files themselves, or a journal directory with -D",
    Reason.BAD_HEADER: "`journalctl --verify --file=PATH` shows more",
    Reason.UNREADABLE: "try sudo; for root, check the mount; for remote/ see journalkeeper.service(8)",
}
"""The next step for a named path that is no readable journal file."""


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add the optional arguments PATH…: the journal files to work on, by default all."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only these files (default: every journal file)")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add PATH…, --active, --archived, --now, --compress, --allow-unshare and --before-shutdown, which all combine, and
    the hidden --upkeep, with which `asked` is False.
    """
    add_paths(parser)
    parser.add_argument("--active", action="store_true", help="only files that journald writes to")
    parser.add_argument("--archived", action="store_true", help="only archived files")
    parser.add_argument("--now", action="store_true", help="do not wait for a flush, SettleSec= or the daily budget")
    how = "zstd[:LEVEL], zlib[:LEVEL], lzo or no, in place of Compress="
    parser.add_argument("--compress", metavar="HOW", type=_require_compression, help=how)
    shared = "also rewrite files that share much data with a snapshot, which keeps the old data"
    parser.add_argument("--allow-unshare", action="store_true", help=shared)
    parser.add_argument("--upkeep", dest="asked", action="store_false", help=argparse.SUPPRESS)
    shutdown = "for the shutdown's unit: as --active --now, and rotate files that the last messages would fragment"
    parser.add_argument("--before-shutdown", action="store_true", help=shutdown)


def _require_compression(text: str) -> str:
    """Return `text` unchanged. Raises: ArgumentTypeError if it is no value of Compress=."""
    try:
        parse_compression(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def make_request(args: argparse.Namespace) -> Request:
    """Return the Request of the options of `add_selection`, with `make_absolute` paths. Its `upkeep` is always True."""
    given = {name: value for name, value in vars(args).items() if name in Request._fields}
    return Request(**{**given, "paths": make_absolute(args.paths), "upkeep": True})


def make_absolute(paths: list[str]) -> tuple[str, ...]:
    """Return absolute `paths`. Symbolic links are not resolved, because the execution refuses a link by its name."""
    return tuple(os.path.abspath(path) for path in paths)


def report_problems(skipped: Sequence[Skip], number: int, paths: tuple[str, ...], context: Context) -> int:
    """Write notes on files that cannot be examined, of `number` files in all, and return the exit status.

    It is 1 if one of the named `paths` has a reason in NO_JOURNAL, which has a note, or if any file is unreadable.
    A note has the number of unreadable files, but not for root if paths are named.

    Raises: NeedsRootError, before any line, if an unprivileged user can read none of the files.
    """
    note, files = context.output.note, pluralize(number, "file")
    unreadable = sum(skip.reason is Reason.UNREADABLE for skip in skipped)
    if unreadable and not context.privileged:
        if unreadable == number:
            raise NeedsRootError(f"none of {number:,} files is readable" if number > 1 else "the file is not readable")
        note(f"{unreadable:,} of {files} cannot be read as this user: try sudo")
    elif unreadable and not paths:
        note(f"{unreadable:,} of {files} cannot be read: check the mount; for remote/ see journalkeeper.service(8)")
    wrong = [skip for skip in skipped if paths and skip.reason in NO_JOURNAL]
    for path, reason, detail, *_ in wrong:
        note(f"{path}: {detail or reason}" + (f"; {NEXT[reason]}" if reason in NEXT else ""))
    return int(bool(wrong or unreadable))


def list_problems(files: Iterable[JournalFile]) -> list[Skip]:
    """Return a skip for each file that cannot be judged. The other files are left out."""
    return [Skip(file.path, file.problem, file.problem_detail) for file in files if file.problem is not None]


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
    """Write the answer of `plan` or `defrag`: `document` as JSON, or the table `done`, the skipped files, a glossary of
    the reasons in both, and the `footer`. Unless `everything`, leave echoes out, and count files with nothing to do.
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
    """Return the summary of a plan without actions: `describe_rest` if a file waits, else "Nothing to do: " with it or,
    without `skipped`, with "no journal file was found."
    """
    rest = describe_rest(skipped) if skipped else "no journal file was found."
    return rest if any(skip.puts_off for skip in skipped) else f"Nothing to do: {rest}"


def describe_outcome(outcome: Outcome, width: int | None) -> str:
    """Return an outcome's escaped sentence. Its name (`shorten_path` of a file) is cut to LEAST_PATH for a `width`."""
    name = shorten_path(outcome.path) if is_on_file(outcome.action) else outcome.path
    return escape(sentences.describe_outcome(outcome, name if width is None else elide(name, LEAST_PATH)))


def is_on_file(action: str) -> bool:
    """Return whether an action is on a file, which has extents: True for all but set-nocow, also for a rotation."""
    return action != Verb.SET_NOCOW


def count_subjects(actions: Collection[str]) -> str:
    """Return the number of files and directories that `actions` are on: "2 files", "1 file and 1 directory"."""
    return _count_nouns("file" if is_on_file(action) else "directory" for action in actions)


def describe_sums(outcomes: Sequence[Outcome]) -> str:
    """Return the extents and disk bytes of files before and after: "9 to 1 extent, 8 MiB to 576 KiB on disk".

    Rotations are left out, because a rotation removes no extent: they alone are "0 to 0 extents". The disk bytes are
    those of measured files, if any; "once other files with the old data are deleted" follows if a file was shared.
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
