# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper report`: write one page about a host's journal. It changes nothing else.

Writes one HTML page of at most 500 KiB, without scripts and without other files. It shows how long each
boot and the journal's flush in it took, extents against their ideal, and how long messages waited, each
with a table; then the findings of `doctor`, and every past action with its reason.

examples:
  sudo journalkeeper report -o journal.html
  sudo journalkeeper report -o disk.html -D /mnt/var/log/journal

exit status:
  0 done; 1 the page cannot be written, FILE is another file, or the journal
  cannot be read; 2 wrong usage
"""

from __future__ import annotations

import argparse
import os
import stat
from typing import Final, NamedTuple

from journalkeeper.cli.context import Context
from journalkeeper.cli.doctor import DOCTOR_RULES
from journalkeeper.cli.evidence import gather
from journalkeeper.health.evidence import REPORT_ENTRIES, Unknown, Wanted
from journalkeeper.health.finding import judge
from journalkeeper.model.errors import KeeperError, NeedsRootError
from journalkeeper.model.schema import Count
from journalkeeper.model.units import escape, spell_size
from journalkeeper.report.page import MARK, render_page
from journalkeeper.whole_file import open_directory, write_whole

MODE: Final = 0o600
"""Only root may read root's page: its content is confidential, and its directory may be open to others."""


MARK_BYTES: Final = 4096
"""The beginning of a page, which contains its mark."""


class ReportAnswer(NamedTuple):
    """The answer of `report`."""

    path: str
    size_bytes: Count


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option --output, which is required."""
    what = "the page to write: a new file, or an earlier page"
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help=what)


def _is_own_page(path: str) -> bool:
    """Return whether `path` is a page that this command wrote for this user: a readable regular file with one name and
    the page's mark. `write_whole` then replaces the name, and follows no link.
    """
    try:
        with open_directory("read the old page", path) as dir_fd:
            fd = os.open(
                os.path.basename(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd
            )
            with open(fd, "rb") as file:
                status = os.fstat(fd)
                plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()
                return plain and MARK.encode() in file.read(MARK_BYTES)
    except (OSError, KeeperError):
        return False


def run(args: argparse.Namespace, context: Context) -> int:
    """Write the page to FILE with mode 0600, show its size, and return 0. Only a page of this user is replaced.

    The page lacks a part that cannot be read, and stderr has the reason.

    Raises: KeeperError if FILE is another file, or as `write_whole`; NeedsRootError or KeeperError if neither the files
        nor the journal can be read; FileError if FILE cannot be written; as `Context.read_config` and `gather`.
    """
    path = os.path.abspath(args.output)
    replaces = _is_own_page(path)
    if os.path.lexists(path) and not replaces:  # before the long reading
        raise KeeperError(f"{escape(path)} exists and is no page of this user's: remove it, or choose another name")
    context.read_config()  # a wrong one ends the command
    evidence = gather(context, Wanted(args.directory, REPORT_ENTRIES, boots=True))
    missing = [part for part in (evidence.look, evidence.journal, evidence.record) if isinstance(part, Unknown)]
    if isinstance(evidence.look, Unknown) and isinstance(evidence.journal, Unknown):
        raise (NeedsRootError if missing[0].needs_root else KeeperError)(missing[0].why)
    context.output.note(*(f"the page lacks a part: {why}" for why in dict.fromkeys(part.why for part in missing)))
    text = render_page(evidence, judge(evidence, DOCTOR_RULES), os.uname().nodename)
    write_whole("write the report", path, text, mode=MODE, replace=replaces)
    size = len(text.encode())
    summary = f"Wrote {escape(path)}: {spell_size(size)}, for any browser; only its owner may read it."
    context.output.show(ReportAnswer(path, size), legend=[[summary]])
    return 0
