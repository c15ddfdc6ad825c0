# SPDX-License-Identifier: LGPL-2.1-or-later
"""Handle files that cannot be read, and named paths that are no journal files.

If no file can be read, the command fails. A path that is no journal makes one line on stderr with the next step, and
exit status 1; the other paths are still processed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from journalkeeper.cli.context import Context
from journalkeeper.cli.output import Output
from journalkeeper.model import Reason, Request
from journalkeeper.model.errors import NeedsRootError
from journalkeeper.model.reasons import NO_JOURNAL

NEXT: Final = {
    Reason.VANISHED: "`journalkeeper scan` lists the journal files",
    Reason.NOT_JOURNAL: "`journalkeeper scan` lists the journal files",
    Reason.NOT_REGULAR: "name the files themselves, or a journal directory with -D",
    Reason.BAD_HEADER: "`journalctl --verify --file=PATH` says more",
    Reason.UNREADABLE: "root may read it, unless something else forbids it",
}


def refuse_non_journals(asked: Request, files: Iterable[tuple[str, Reason | None, str]], output: Output) -> int:
    """Note each of the files that `asked` names and that is no journal file, and return the exit status.

    `files` are (path, reason why nothing is done, detail).
    """
    if not asked.paths:
        return 0
    lines = [
        f"{path}: {detail or reason}" + (f"; {NEXT[reason]}" if reason in NEXT else "")
        for path, reason, detail in files
        if reason in NO_JOURNAL
    ]
    for line in lines:
        output.note(line)
    return int(bool(lines))


def refuse_if_all_unreadable(context: Context, reasons: Sequence[Reason | None]) -> None:
    """Note to an unprivileged user how many files are unreadable. `reasons` has the reason of each file, or None.

    Raises: NeedsRootError if all files are unreadable.
    """
    unreadable = sum(reason is Reason.UNREADABLE for reason in reasons)
    if context.privileged or not unreadable:
        return
    if unreadable == len(reasons):
        raise NeedsRootError(
            f"none of {unreadable} files is readable" if unreadable > 1 else "the file is not readable"
        )
    context.output.note(f"{unreadable} of {len(reasons)} files are not readable for this user: root sees all, try sudo")
