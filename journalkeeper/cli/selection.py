# SPDX-License-Identifier: LGPL-2.1-or-later
"""The options that choose files and methods, the Request that they make, and complaints about the chosen files.

`plan` and `defrag` take the same options, so that `plan` shows what `defrag` does.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import Final

from journalkeeper.cli.context import Context
from journalkeeper.model import JournalFile, Reason, Request, Skip
from journalkeeper.model.errors import NeedsRootError
from journalkeeper.model.sentences import NO_JOURNAL
from journalkeeper.model.units import parse_compression, pluralize

NEXT: Final = {
    Reason.VANISHED: "`journalkeeper scan` lists the journal files",
    Reason.NOT_JOURNAL: "`journalkeeper scan` lists the journal files",
    Reason.NOT_REGULAR: "name the files themselves, or a journal directory with -D",
    Reason.BAD_HEADER: "`journalctl --verify --file=PATH` shows more",
    Reason.UNREADABLE: "try sudo; for root, check the mount",
}
"""The next step for a named path that is no readable journal file."""


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add the optional arguments PATH…: the journal files to work on, by default all."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only these files (default: every journal file)")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `plan` and `defrag` share. --upkeep is for the timer's unit: such a run may rest."""
    add_paths(parser)
    parser.add_argument("--active", action="store_true", help="only files that journald writes to")
    parser.add_argument("--archived", action="store_true", help="only archived files")
    parser.add_argument("--now", action="store_true", help="do not wait for a flush, SettleSec= or the daily budget")
    how = "zstd[:LEVEL], zlib[:LEVEL], lzo or no, in place of Compress="
    parser.add_argument("--compress", metavar="HOW", type=_require_compression, help=how)
    shared = "also rewrite files that share much data with a snapshot, which keeps the old data"
    parser.add_argument("--allow-unshare", action="store_true", help=shared)
    parser.add_argument("--upkeep", action="store_true", help=argparse.SUPPRESS)
    shutdown = "for the shutdown's unit: as --active --now, and rotate files that the last messages would fragment"
    parser.add_argument("--before-shutdown", action="store_true", help=shutdown)


def _require_compression(text: str) -> str:
    """Return `text` unchanged. Raises: ArgumentTypeError if it is no value of Compress=."""
    try:
        parse_compression(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def request(args: argparse.Namespace) -> Request:
    """Return the Request that the options of `add_selection` make. Its `upkeep` is always True.

    Its paths are absolute, and symbolic links in them are kept.
    """
    given = {name: value for name, value in vars(args).items() if name in Request._fields}
    return Request(**{**given, "paths": absolute(args.paths), "upkeep": True})


def absolute(paths: list[str]) -> tuple[str, ...]:
    """Return absolute `paths`. Symbolic links are not resolved, because the execution refuses a link by its name."""
    return tuple(os.path.abspath(path) for path in paths)


def report_problems(skipped: Sequence[Skip], number: int, paths: tuple[str, ...], context: Context) -> int:
    """Write notes on files that cannot be examined, of `number` files in all, and return the exit status.

    It is 1 if one of the named `paths` has a reason in NO_JOURNAL, which has a note, or if any file is unreadable.

    Raises: NeedsRootError, before any line, if an unprivileged user can read none of the files.
    """
    note = context.output.note
    unreadable = sum(skip.reason is Reason.UNREADABLE for skip in skipped)
    if unreadable and not context.privileged:
        if unreadable == number:
            raise NeedsRootError(f"none of {number:,} files is readable" if number > 1 else "the file is not readable")
        note(f"{unreadable:,} of {pluralize(number, 'file')} cannot be read as this user: try sudo")
    wrong = [skip for skip in skipped if paths and skip.reason in NO_JOURNAL]
    for path, reason, detail, *_ in wrong:
        note(f"{path}: {detail or reason}" + (f"; {NEXT[reason]}" if reason in NEXT else ""))
    return int(bool(wrong or unreadable))


def list_problems(files: Iterable[JournalFile]) -> list[Skip]:
    """Return a skip for each file that cannot be judged. The other files are left out."""
    return [Skip(file.path, file.problem, file.problem_detail) for file in files if file.problem is not None]
