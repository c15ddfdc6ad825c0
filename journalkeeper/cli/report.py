# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper report`: write one page about a host's journal. It changes nothing else.

Writes one HTML page of at most 500 KiB, without scripts and without other files. It shows how long each
boot and the journal's flush in it took, extents against their ideal, and how long messages waited, each
with a table; then the findings of `doctor`, and every action with its reason.

examples:
  sudo journalkeeper report -o journal.html
  sudo journalkeeper report -o journal.html --force     in place of the last one

exit status:
  0 done; 1 the page cannot be written, FILE exists, or the journal cannot be
  read; 2 wrong usage
"""

from __future__ import annotations

import argparse
import os
import stat
from typing import Final, NamedTuple

from journalkeeper.cli.context import Context
from journalkeeper.cli.doctor import DOCTOR_RULES, collect_evidence
from journalkeeper.execute.whole_file import open_directory, write_whole
from journalkeeper.health.evidence import REPORT_ENTRIES, Unknown, Wanted
from journalkeeper.health.finding import judge
from journalkeeper.model.errors import FileError, KeeperError, NeedsRootError
from journalkeeper.model.escape import shown
from journalkeeper.model.record import Count
from journalkeeper.model.units import spell_size
from journalkeeper.report.page import page

WRITE: Final = "write the report"

MODE: Final = 0o600
"""Only root may read root's page: its content is confidential, and its directory may be open to others."""


class ReportAnswer(NamedTuple):
    """The answer of `report`."""

    path: str
    size_bytes: Count


def options(parser: argparse.ArgumentParser) -> None:
    """Add -o FILE, the page to write, which is required, and --force, which replaces an existing file or link."""
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="where to write the page")
    parser.add_argument("--force", action="store_true", help="write it also in place of a file, or of a link")


def run(args: argparse.Namespace, context: Context) -> int:
    """Write the page, show its size, and return 0. Parts that cannot be collected are named on stderr.

    Raises: NeedsRootError or KeeperError if neither the files nor the journal can be read, or if the file exists
    and --force is not given.
    """
    path = os.path.abspath(args.output)
    refuse(path, force=args.force)
    evidence = collect_evidence(context, Wanted(args.directory, REPORT_ENTRIES, plan=True))
    missing = [part for part in (evidence.look, evidence.journal, evidence.record) if isinstance(part, Unknown)]
    if isinstance(evidence.look, Unknown) and isinstance(evidence.journal, Unknown):
        raise (NeedsRootError if missing[0].needs_root else KeeperError)(missing[0].why)
    context.output.note(*(f"the page lacks a part: {why}" for why in dict.fromkeys(part.why for part in missing)))
    text = page(evidence, judge(evidence, DOCTOR_RULES), os.uname().nodename)
    write_whole(WRITE, path, text, mode=MODE, replace=args.force)
    size = len(text.encode())
    summary = f"Wrote {shown(path)}: {spell_size(size)}, for any browser; only its owner may read it."
    context.output.show(ReportAnswer(path, size), legend=[[summary]])
    return 0


def refuse(path: str, *, force: bool) -> None:
    """Check that a page can have the name `path`, before the page is made: a free name, or with `force` a file or link.

    Whether the directory can be written is not checked.

    Raises: KeeperError if the name belongs to a directory or device, or to a file or link without `force`; FileError if
        the directory cannot be opened.
    """
    try:
        with open_directory(WRITE, path) as dir_fd:
            mode = os.stat(os.path.basename(path), dir_fd=dir_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise FileError.wrap(WRITE, path, error) from error
    what = "a file" if stat.S_ISREG(mode) else "a link" if stat.S_ISLNK(mode) else ""
    if not what:
        raise KeeperError(f"{path}: is neither a file nor a link; the report is written to a file")
    if not force:
        raise KeeperError(f"{path}: {what} has this name; --force writes the report in its place")
