# SPDX-License-Identifier: LGPL-2.1-or-later
"""Paths that were named and are no journal files.

The one rule: each is one line on stderr that says what to do next, and the exit status is 1;
the other paths are done all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from journalkeeper.model import Reason, Request
from journalkeeper.model.reasons import NO_JOURNAL

if TYPE_CHECKING:
    from journalkeeper.cli.output import Output

NEXT: Final = {
    Reason.VANISHED: "`journalkeeper scan` lists the journal files",
    Reason.NOT_JOURNAL: "`journalkeeper scan` lists the journal files",
    Reason.NOT_REGULAR: "name the files themselves, or a journal directory with -D",
    Reason.BAD_HEADER: "`journalctl --verify --file=PATH` says more",
    Reason.UNREADABLE: "root may read it, unless something else forbids it",
}


def complain_of_named(asked: Request, files: Iterable[tuple[str, Reason | None, str]], output: Output) -> int:
    """Say which of the files that `asked` names are no journal files, and return the exit status.

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
