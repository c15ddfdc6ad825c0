# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper history`: what was done and seen over time. It reads the record and nothing else."""

from __future__ import annotations

import argparse
import os
import stat

from journalkeeper.cli.context import Context
from journalkeeper.cli.named import complain_of_named
from journalkeeper.cli.outcomes import COLOURS, sizes
from journalkeeper.cli.output import Output
from journalkeeper.cli.selection import absolute, add_paths
from journalkeeper.cli.table import Column, Row, render, stacked
from journalkeeper.cli.text import shown
from journalkeeper.cli.times import parse_time_us, shown_time
from journalkeeper.history.rows import Entry, Sample
from journalkeeper.journald.names import classify
from journalkeeper.model import Reason, Request, Result
from journalkeeper.model.errors import UsageError
from journalkeeper.model.units import counted, format_size
from journalkeeper.wire.documents import disk_sums, entry_document
from journalkeeper.wire.field import document
from journalkeeper.wire.records import SAMPLE

DESCRIPTION = """\
Shows what was done to files, the oldest first, and how the number of extents of active
files grew, as far as the record in the state directory goes back."""

EXAMPLES = """\
times: 2026-11-21, "2026-11-21 10:00", 10:00, today, yesterday, -3d, "3 days ago", @1795255200

examples:
  journalkeeper history --since=yesterday
  journalkeeper history --since="2026-11-01" --until="2026-11-08" -j
  journalkeeper history /var/log/journal/*/system.journal

exit status:
  0 done, also if nothing is recorded; 1 the record cannot be read, or a PATH is not in it and does
  not exist or is no journal; 2 wrong usage"""

_OUTCOMES = (
    Column("TIME"),
    Column("BY"),
    Column("ACTION"),
    Column("RESULT"),
    Column("REASON"),
    Column("EXTENTS", right=True),
    Column("DISK", right=True),
    Column("WRITTEN", right=True),
    Column("PATH", gives="path"),
)
_SAMPLES = (
    Column("TIME"),
    Column("EXTENTS", right=True),
    Column("IDEAL", right=True),
    Column("SIZE", right=True),
    Column("PATH", gives="path"),
)


def options(parser: argparse.ArgumentParser) -> None:
    """PATH…, --since and --until."""
    add_paths(parser)
    parser.add_argument("--since", metavar="TIME", help="nothing older than this")
    parser.add_argument("--until", metavar="TIME", help="nothing from this time on")


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the record's rows."""
    since_us, until_us = _time_us(args.since, context), _time_us(args.until, context)
    paths = absolute(args.paths or ([args.directory] if args.directory else []))
    with context.record() as record:
        entries = record.history(paths, since_us, until_us)
        samples = record.samples(paths, since_us, until_us)
        unknown = [path for path in paths if not (record.history([path]) or record.samples([path]))]
        ignored = record.ignored
    output = context.output
    for sentence in ignored:
        output.note(sentence)
    problems = ((path, _problem(path), "nothing is recorded of it") for path in unknown)
    status = complain_of_named(Request(paths=paths), problems, output)
    if output.json != "off":
        output.document(
            {
                "outcomes": [entry_document(*entry) for entry in entries],
                "samples": [document(SAMPLE, sample) for sample in samples],
            }
        )
        return status
    blocks = [_entries(entries, output), _samples(samples, output)]
    if output.legend:
        blocks.append([_footer(entries, samples)])
    output.lines(stacked(blocks))
    return status


def _problem(path: str) -> Reason | None:
    """Why something that no record tells of cannot be in one; None for a journal file or a directory of such."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Reason.VANISHED
    if stat.S_ISDIR(mode):
        return None
    if not stat.S_ISREG(mode):
        return Reason.NOT_REGULAR
    return Reason.NOT_JOURNAL if classify(os.path.basename(path)) is None else None


def _time_us(text: str | None, context: Context) -> int | None:
    if text is None:
        return None
    try:
        return parse_time_us(text, context.now_us)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _entries(entries: list[Entry], output: Output) -> list[str]:
    rows = [
        Row(
            (
                shown_time(when_us),
                origin or "-",
                outcome.action,
                outcome.result,
                outcome.reason,
                f"{outcome.extents_before} -> {outcome.extents_after}",
                sizes(outcome.disk_bytes_before, outcome.disk_bytes_after),
                format_size(outcome.bytes_written),
                shown(outcome.path),
            ),
            COLOURS[outcome.result],
        )
        for when_us, origin, outcome in entries
    ]
    return render(_OUTCOMES, rows, legend=output.legend, colours=output.colours, width=output.width) if rows else []


def _samples(samples: list[Sample], output: Output) -> list[str]:
    rows = [
        Row(
            (
                shown_time(sample.when_us),
                str(sample.extents),
                str(sample.ideal_extents),
                format_size(sample.size_bytes),
                shown(sample.path),
            )
        )
        for sample in samples
    ]
    return render(_SAMPLES, rows, legend=output.legend, colours=output.colours, width=output.width) if rows else []


def _footer(entries: list[Entry], samples: list[Sample]) -> str:
    if not entries:
        return f"{counted(len(samples), 'sample')}, nothing was rewritten." if samples else "Nothing is recorded."
    done = [entry.outcome for entry in entries if entry.outcome.result is Result.DONE]
    before = sum(outcome.extents_before for outcome in done)
    after = sum(outcome.extents_after for outcome in done)
    text = f"{len(done)} of {counted(len(entries), 'action')} done: {before:,} -> {after:,} extents"
    disk = sizes(*disk_sums(done))
    written = format_size(sum(entry.outcome.bytes_written for entry in entries))
    return f"{text}, {disk} on disk, {written} written." if disk != "-" else f"{text}, {written} written."
