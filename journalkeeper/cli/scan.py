# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper scan`: show the state of every journal file. It changes nothing.

Shows every journal file, the worst first. IDEAL is the number of extents of a whole file: one for each
128 KiB of a compressed file, else mostly 1. A file that will be compressed can thus have IDEAL 1 here
and more extents EXPECTED in `plan`. DISK is the space that the file takes on the disk; only root sees it.
KIND goes by the file's name; journald has the files open that are online.

flags: online or offline (the state of a file that journald writes); compressed; nocow; shared (with a
snapshot or a reflink); or the reason why a file cannot be judged

examples:
  journalkeeper scan                           all files in /var/log/journal
  journalkeeper scan -D /mnt/var/log/journal   those of another host's disk
  journalkeeper scan -j | jq '.[] | select(.extents > 100) | .path'

exit status:
  0 done; 1 something cannot be read or is not on btrfs, or a PATH does not
  exist or is no journal; 2 wrong usage
"""

from __future__ import annotations

import argparse
import os
from typing import Final

from journalkeeper.cli.context import Context
from journalkeeper.cli.table import RED, Column, Table
from journalkeeper.cli.work import add_paths, list_problems, make_absolute, report_problems
from journalkeeper.journald.layout import classify
from journalkeeper.model import JournalFile, Request, State, Sums
from journalkeeper.model.units import escape, format_size, pluralize, spell_size
from journalkeeper.policy.cost import is_fragmented


def _describe_kind(file: JournalFile) -> str:
    """Return the word of the file's Kind, or "-" for a problem of a path whose name is not a journal name."""
    return "-" if file.problem and classify(os.path.basename(file.path)) is None else file.kind


def _join_flags(file: JournalFile) -> str:
    """Return "-" or flags joined by ",": a problem's reason, online or offline, compressed, nocow, shared."""
    state = file.state if file.state in {State.ONLINE, State.OFFLINE} else ""
    shared = "shared" if file.extents.shared_bytes else ""
    flags = (file.problem, state, "compressed" if file.compressed else "", "nocow" if file.nocow else "", shared)
    return ",".join(filter(None, flags)) or "-"


_COLUMNS: Final[tuple[Column[JournalFile], ...]] = (
    Column("KIND", _describe_kind),
    Column("EXTENTS", lambda file: str(file.extents.total), right=True),
    Column("IDEAL", lambda file: str(file.ideal_extents), right=True),
    Column("SIZE", lambda file: format_size(file.size_bytes), right=True),
    Column("DISK", lambda file: "-" if file.disk_bytes is None else format_size(file.disk_bytes), right=True),
    Column("FLAGS", _join_flags),
    Column("PATH", lambda file: escape(file.path), gives="path"),
)


add_options = add_paths


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the journal files, the worst first, and a summary. Return the exit status of `report_problems`.

    Raises: NeedsRootError if an unprivileged user can read no file; as `Context.make_engine` and `Engine.look`.
    """
    asked = Request(paths=make_absolute(args.paths))
    host = context.make_engine().look(asked)
    status = report_problems(list_problems(host.files), len(host.files), asked.paths, context)
    table = Table(_COLUMNS, sorted(host.files, key=_rank_worst_first), lambda file: RED if file.problem else "")
    config = context.read_config()
    fragmented = sum(file.problem is None and is_fragmented(file, None, config) for file in host.files)
    context.output.show(host.files, table, legend=[[_sum_up(host.files, fragmented)]])
    return status


def _rank_worst_first(file: JournalFile) -> tuple[bool, int, str]:
    """Return a sort key: files with a problem come first, then those with the most extents above their ideal."""
    return (not file.problem, file.ideal_extents - file.extents.total, file.path)


def _sum_up(files: tuple[JournalFile, ...], fragmented: int) -> str:
    """Return how many files without a problem are `fragmented`, their totals, and the number of the other files."""
    left_out = sum(file.problem is not None for file in files)
    files = tuple(file for file in files if file.problem is None)
    rest = f" {left_out:,} not examined: see FLAGS." if left_out else ""
    if not files:
        return f"No journal file was examined.{rest}"
    every = Sums.of(files)
    disk = [file.disk_bytes for file in files if file.disk_bytes is not None]
    sizes = [spell_size(every.size_bytes), *([f"{spell_size(sum(disk))} on disk"] if disk else [])]
    extents = f"{pluralize(every.extents, 'extent')} (ideal {every.ideal_extents:,})"
    totals, total = f"{extents}, {', '.join(sizes)}.", pluralize(every.files, "journal file")
    if not fragmented:
        return f"No file is fragmented: {total}, {totals}{rest}"
    verdict = f"{fragmented:,} of {total} {'is' if fragmented == 1 else 'are'} fragmented"
    return f"{verdict}. In total {totals} `journalkeeper plan` shows which files are worth a rewrite.{rest}"
