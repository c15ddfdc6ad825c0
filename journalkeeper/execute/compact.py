# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compacting an archive: where it is, and by a copy where the kernel does not move its data.

It ends in one of two ways: no data lies in an old extent any more, or it says why not.
"""

from __future__ import annotations

import os

from journalkeeper.execute import inplace, rewrite
from journalkeeper.execute.pace import Pace
from journalkeeper.execute.verified_file import Refused, VerifiedFile, being_written
from journalkeeper.model import Action, Reason
from journalkeeper.model.units import format_size


def compact(held: VerifiedFile, action: Action, pace: Pace) -> int:
    """Move all data of an archive, unless `pace` ends before; the extents that can be expected.

    Raises: Refused if the rest had to be copied and the file is open for writing; as inplace.compact and
        rewrite.rewrite.
    """
    moved = inplace.compact(held, action, pace)
    if not moved.left or pace.ended is not None:
        return moved.extents_expected
    if being_written(held.fd):
        left = format_size(sum(length for _, length in moved.left))
        raise Refused(Reason.IN_USE, f"the kernel did not move {left}, and a file open for writing is not exchanged")
    status = os.fstat(held.fd)
    if (status.st_size, status.st_mtime_ns) != (held.status.st_size, held.status.st_mtime_ns):
        raise Refused(Reason.CHANGED, "the file was written to while it was compacted")
    # What was punched before moved the ctime, by which the exchange tells whether somebody else was at it.
    return rewrite.rewrite(held._replace(status=status), action, pace)
