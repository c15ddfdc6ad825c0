# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper history`: show past actions and extent counts. It reads only the history.

Shows past actions, the oldest first, and the number of extents of active files over time, as far back
as the history in the state directory goes. RUN BY names who started the run: the service by itself, a user who
asked the service, or `journalkeeper defrag` without the service, also by its timer and at shutdown. IDEAL is the
number of extents of a file without fragmentation.

times: 2026-11-21, "2026-11-21 10:00", 10:00, today, yesterday, -3d, "3 days ago", @1795255200

examples:
  journalkeeper history --since=yesterday
  journalkeeper history --since="2026-11-01" --until="2026-11-08" -j
  journalkeeper history /var/log/journal/*/system.journal

exit status:
  0 done, also if nothing is recorded; 1 the history cannot be read, or a PATH
  is not in it and does not exist or is no journal; 2 wrong usage
"""

from __future__ import annotations

import argparse
import os
from typing import Final, NamedTuple

from journalkeeper.cli.context import Context
from journalkeeper.cli.parser import parse_time_us
from journalkeeper.cli.table import Column, Table
from journalkeeper.cli.work import COLOURS, add_paths, describe_outcome, describe_sums, report_problems
from journalkeeper.journald.layout import classify
from journalkeeper.model import Reason, Result, Skip
from journalkeeper.model.run import HistoryEntry, Sample
from journalkeeper.model.sentences import BY
from journalkeeper.model.units import escape, format_size, pluralize, spell_size
from journalkeeper.report.text import format_moment


class HistoryAnswer(NamedTuple):
    """The answer of `history`."""

    outcomes: list[HistoryEntry]
    samples: list[Sample]


_SAMPLES: Final[tuple[Column[Sample], ...]] = (
    Column("TIME", lambda sample: format_moment(sample.when_us)),
    Column("EXTENTS", lambda sample: str(sample.extents), right=True),
    Column("IDEAL", lambda sample: str(sample.ideal_extents), right=True),
    Column("SIZE", lambda sample: format_size(sample.size_bytes), right=True),
    Column("PATH", lambda sample: escape(sample.path), gives="path"),
)


def _make_columns(width: int | None) -> tuple[Column[HistoryEntry], ...]:
    """Return the columns TIME, RUN BY and OUTCOME. `width` is for `describe_outcome`."""
    return (
        Column("TIME", lambda entry: format_moment(entry.when_us)),
        Column("RUN BY", lambda entry: escape(BY.get(entry.origin, entry.origin))),
        Column("OUTCOME", lambda entry: describe_outcome(entry.outcome, width), gives="text"),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add PATH… and the options --since (0 by default) and --until (None), in microseconds since the epoch."""
    add_paths(parser)
    parser.add_argument("--since", metavar="TIME", type=parse_time_us, default=0, help="nothing older than this")
    parser.add_argument("--until", metavar="TIME", type=parse_time_us, help="nothing from this time on")


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the recorded outcomes and extent counts at or below the PATHs or -D, links resolved. Return the exit status:
    1 if nothing was ever recorded of one that is missing or has no journal's name. Raises: as `Context.open_record`.
    """
    # The history has the real paths.
    paths = tuple(map(os.path.realpath, args.paths or ([args.directory] if args.directory else [])))
    with context.open_record() as record:
        entries = record.list_entries(paths, args.since, args.until)
        samples = record.list_samples(paths, args.since, args.until)
        unknown = [path for path in paths if not (record.list_entries([path]) or record.list_samples([path]))]
    output = context.output
    wrong = [Skip(path, why, "nothing is recorded of it") for path in unknown if (why := _find_problem(path))]
    status = report_problems(wrong, len(paths), paths, context)
    outcomes = Table(_make_columns(output.width), entries, lambda entry: COLOURS[entry.outcome.result])
    title = ["Extents of the active files over time:"] if samples and output.legend else []
    blocks = (outcomes, title, Table(_SAMPLES, samples))
    output.show(HistoryAnswer(entries, samples), *blocks, legend=[[_sum_up_actions(entries)]])
    return status


def _find_problem(path: str) -> Reason | None:
    """Return VANISHED if os.path.exists() is False, NOT_JOURNAL for a file without a journal's name, else None."""
    if not os.path.exists(path):
        return Reason.VANISHED
    return None if os.path.isdir(path) or classify(os.path.basename(path)) else Reason.NOT_JOURNAL


def _sum_up_actions(entries: list[HistoryEntry]) -> str:
    """Return how many `entries` are done, `describe_sums` of these, and the bytes of all; or that there are none."""
    if not entries:
        return "No action is recorded."
    done = [entry.outcome for entry in entries if entry.outcome.result is Result.DONE]
    rest = f", {len(entries) - len(done):,} failed or without effect" if len(done) < len(entries) else ""
    text = f"{len(done):,} of {pluralize(len(entries), 'action')} done{rest}: {describe_sums(done)}"
    return f"{text}, {spell_size(sum(entry.outcome.bytes_written for entry in entries))} of data rewritten."
