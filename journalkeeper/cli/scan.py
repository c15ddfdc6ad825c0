# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper scan`: show the state of every journal file. It changes nothing."""

from __future__ import annotations

import argparse
import os
from typing import Final

from journalkeeper.cli.context import Context
from journalkeeper.cli.refusals import refuse_if_all_unreadable, refuse_non_journals
from journalkeeper.cli.selection import absolute, add_paths
from journalkeeper.cli.table import RED, Column, wrap_sentence
from journalkeeper.cli.text import shown
from journalkeeper.journald.names import classify
from journalkeeper.model import JournalFile, Request, State, Sums
from journalkeeper.model.units import counted, format_size
from journalkeeper.wire.field import document
from journalkeeper.wire.records import FILE

DESCRIPTION = """\
Shows every journal file, the worst first: its kind, its extents, its size and the space that it
takes on the disk (DISK, for root only: the kernel tells nobody else). IDEAL is how many extents
the file would have if it were whole: of a compressed file one for each 128 KiB, else mostly 1. So
a file that is to be compressed can have IDEAL 1 here and more extents EXPECTED in `plan`."""

EXAMPLES = """\
flags: online or offline, the state of a file that journald writes; compressed; nocow; shared
(with a snapshot or reflink); or why a file cannot be judged

examples:
  journalkeeper scan                           all files in /var/log/journal
  journalkeeper scan -D /mnt/var/log/journal   those of another host's disk
  journalkeeper scan -j | jq '.[] | select(.extents > 100) | .path'

exit status:
  0 done; 1 something cannot be read or is not on btrfs, or a PATH does not exist or is no journal;
  2 wrong usage"""


def _kind(file: JournalFile) -> str:
    """Return the kind from the file's name, or "-" if it is not a journal name."""
    return "-" if file.problem and classify(os.path.basename(file.path)) is None else file.kind


def _flags(file: JournalFile) -> str:
    flags = [
        word
        for word, is_so in (
            (file.problem, file.problem),
            (file.state, file.state in {State.ONLINE, State.OFFLINE}),
            ("compressed", file.compressed),
            ("nocow", file.nocow),
            ("shared", file.extents.shared_bytes),
        )
        if word and is_so
    ]
    return ",".join(flags) or "-"


_COLUMNS: Final[tuple[Column[JournalFile], ...]] = (
    Column("KIND", _kind),
    Column("EXTENTS", lambda file: str(file.extents.total), right=True),
    Column("IDEAL", lambda file: str(file.ideal_extents), right=True),
    Column("SIZE", lambda file: format_size(file.size_bytes), right=True),
    Column("DISK", lambda file: "-" if file.disk_bytes is None else format_size(file.disk_bytes), right=True),
    Column("FLAGS", _flags),
    Column("PATH", lambda file: shown(file.path), gives="path"),
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add PATH…."""
    add_paths(parser)


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the files."""
    asked = Request(paths=absolute(args.paths))
    host = context.engine().look(asked)
    refuse_if_all_unreadable(context, [file.problem for file in host.files])
    output = context.output
    status = refuse_non_journals(asked, ((file.path, file.problem, file.problem_detail) for file in host.files), output)
    if output.json != "off":
        output.document([document(FILE, file) for file in host.files])
        return status
    files = sorted(host.files, key=_worst)
    lines = output.table(_COLUMNS, files, lambda file: RED if file.problem else "")
    if output.legend:
        lines += ["", *wrap_sentence(_footer(host.files), output.width)] if files else ["No journal files found."]
    output.lines(lines)
    return status


def _worst(file: JournalFile) -> tuple[bool, int, str]:
    """Return a sort key: files that cannot be judged first, then those with the most extents beyond the ideal."""
    return (not file.problem, file.ideal_extents - file.extents.total, file.path)


def _footer(files: tuple[JournalFile, ...]) -> str:
    every = Sums.of(files)
    disk = [file.disk_bytes for file in files if file.disk_bytes is not None]
    text = f"{counted(every.files, 'file')}, {counted(every.extents, 'extent')} (ideal {every.ideal_extents:,})"
    text += f", {format_size(every.size_bytes)}"
    return f"{text}, {format_size(sum(disk))} on disk." if disk else f"{text}."
