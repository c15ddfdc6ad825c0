# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compaction of an archive: in place, or by a copy if the kernel does not move all data.

Afterwards no data is left in an old extent, or the outcome contains the reason.
"""

from __future__ import annotations

import os

from journalkeeper.execute import inplace, rewrite
from journalkeeper.execute.pace import Pace
from journalkeeper.execute.verified_file import Refused, VerifiedFile, is_being_written
from journalkeeper.model import Action, Reason
from journalkeeper.model.units import format_size


def compact(held: VerifiedFile, action: Action, pace: Pace) -> int:
    """Move all data of an archive to new extents, unless `pace` ends first. Return the expected number of extents.

    Raises: Refused if the rest must be copied and the file is open for writing; as inplace.compact and rewrite.rewrite.
    """
    moved = inplace.compact(held, action, pace)
    if not moved.left or pace.ended is not None:
        return moved.extents_expected
    if is_being_written(held.fd):
        left = format_size(sum(length for _, length in moved.left))
        raise Refused(Reason.IN_USE, f"the kernel did not move {left}, and an open file is not replaced")
    status = os.fstat(held.fd)
    if (status.st_size, status.st_mtime_ns) != (held.status.st_size, held.status.st_mtime_ns):
        raise Refused(Reason.CHANGED, "a program wrote to the file during the compaction")
    # Punching changed the ctime, which the exchange compares to detect changes by other programs.
    return rewrite.rewrite(held._replace(status=status), action, pace)
