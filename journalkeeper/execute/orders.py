# SPDX-License-Identifier: LGPL-2.1-or-later
"""One Order in, one Done out. The one rule: as for an Action, what fails is an outcome and ends nothing else."""

from __future__ import annotations

import time

from journalkeeper.execute.attributes import NotTakenError, set_nocow
from journalkeeper.execute.executor import REASON_OF_ERRNO, SKIPPING
from journalkeeper.execute.rotation import Fresh, rotate
from journalkeeper.execute.verified_file import Refused
from journalkeeper.model import Order, Outcome, Reason, Result
from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.model.run import Done


def carry_out(order: Order) -> Done:
    """Do `order` and say what became of it. `Done` has the directory, or the file that took the rotated one's name."""
    began = time.monotonic()
    result, reason, detail = Result.DONE, order.reason, order.detail
    fresh: Fresh | None = None
    try:
        if order.file is None:
            set_nocow(order)
        else:
            fresh = rotate(order, order.file)
    except Refused as refused:
        result, reason, detail = Result.SKIPPED, refused.reason, refused.detail
    except NotTakenError as error:
        result, reason, detail = Result.FAILED, Reason.NOT_TAKEN, str(error)
    except KeeperError as error:
        result, reason, detail = Result.FAILED, Reason.NO_JOURNALD, str(error)
    except OSError as error:
        reason = REASON_OF_ERRNO.get(error.errno or 0, Reason.IO_ERROR)
        result = Result.SKIPPED if reason in SKIPPING else Result.FAILED
        detail = str(FileError.wrap(str(order.action), order.path, error))
    return _done(order, fresh, (result, reason, detail), time.monotonic() - began)


def not_begun(order: Order) -> Done:
    """What becomes of an order that a stop came before."""
    return _done(order, None, (Result.SKIPPED, Reason.INTERRUPTED, "stopped before it was begun"), 0.0)


def _done(order: Order, fresh: Fresh | None, how: tuple[Result, Reason, str], duration_s: float) -> Done:
    before = order.extents_before
    result, reason, detail = how
    outcome = Outcome(
        path=order.path,
        action=order.action,
        result=result,
        reason=reason,
        extents_before=before,
        extents_after=before if fresh is None else fresh.extents,
        disk_bytes_before=None,
        disk_bytes_after=None,
        bytes_written=0,
        duration_s=duration_s,
        detail=detail,
    )
    if fresh is None:
        return Done(outcome, order.instance.inode, 0, 0)
    return Done(outcome, fresh.inode, fresh.size_bytes, fresh.mtime_ns)
