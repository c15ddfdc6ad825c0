# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a user without the rights is told.

The one rule: an answer that consists of "could not read it" for every file is an error, not an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from journalkeeper.model import Reason
from journalkeeper.model.errors import NeedsRootError

if TYPE_CHECKING:
    from journalkeeper.cli.context import Context


def refuse_if_all_unreadable(context: Context, reasons: Sequence[Reason | None]) -> None:
    """Tell a user who could read some files only; `reasons` has each file's, None where there is none.

    Raises: NeedsRootError if it is all of them.
    """
    unreadable = sum(reason is Reason.UNREADABLE for reason in reasons)
    if context.privileged or not unreadable:
        return
    if unreadable == len(reasons):
        raise NeedsRootError(
            f"none of {unreadable} files is readable" if unreadable > 1 else "the file is not readable"
        )
    context.output.note(f"{unreadable} of {len(reasons)} files are not readable for this user: root sees all, try sudo")
