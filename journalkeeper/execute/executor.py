# SPDX-License-Identifier: LGPL-2.1-or-later
"""The hands that change files: one Action in, one Done out.

The one rule: observe, decide, look again, act. The look again happens on the very file
descriptor that is then worked on, and whatever fails leaves the file as it was or better.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from journalkeeper.btrfs import disk, fiemap
from journalkeeper.execute import inplace, rewrite
from journalkeeper.execute.compact import compact
from journalkeeper.execute.pace import Pace
from journalkeeper.execute.verified_file import Refused, VerifiedFile, hold
from journalkeeper.journald import opening
from journalkeeper.model import Action, JournalFile, Kind, Outcome, Reason, Result, Verb
from journalkeeper.model.errors import FileError
from journalkeeper.model.run import Done
from journalkeeper.observe import disk_usage
from journalkeeper.policy.gain import fell_short

REASON_OF_ERRNO: Final = {
    errno.ENOENT: Reason.VANISHED,
    errno.ENOSPC: Reason.FREE_SPACE,
    errno.EDQUOT: Reason.FREE_SPACE,
    errno.EROFS: Reason.READ_ONLY,
    errno.EPERM: Reason.READ_ONLY,
    errno.EACCES: Reason.UNREADABLE,
    errno.ETXTBSY: Reason.SWAPFILE,
    errno.EIO: Reason.IO_ERROR,
}
"""What an errno means to the person who reads the outcome."""

SKIPPING: Final = frozenset({Reason.VANISHED, Reason.SWAPFILE})
"""Errors that are nobody's failure: there is nothing left to do, or it must not be done."""


class _Measured(NamedTuple):
    extents: int
    disk_bytes: int | None


def execute(action: Action, pace: Pace) -> Done:
    """Do `action` at `pace` and say what became of it; never raises for what one file does."""
    began = time.monotonic()
    result, reason, detail, expected = Result.DONE, action.reason, "", action.extents_expected
    before = _Measured(action.extents_before, None)
    after, file = before, action.file
    try:
        with hold(action.file, replacing=action.action is Verb.REWRITE) as held:
            before = after = _before(held.fd, action.file)
            try:
                expected = _work(action)(held, action, pace)
                if pace.ended is not None:
                    result, reason, detail = Result.SKIPPED, pace.ended, "ended between two pieces"
            finally:
                after, file = _look_after(held, action.file)
        if pace.ended is None and fell_short(before.extents, expected, after.extents):
            result, reason = Result.SKIPPED, Reason.NO_GAIN
            detail = f"{before.extents} extents became {after.extents}, {expected} were expected"
    except Refused as refused:
        result, reason, detail = Result.SKIPPED, refused.reason, refused.detail
    except rewrite.MismatchError as mismatch:
        result, reason, detail = Result.FAILED, Reason.MISMATCH, str(mismatch)
    except OSError as error:
        reason = REASON_OF_ERRNO.get(error.errno or 0, Reason.IO_ERROR)
        result = Result.SKIPPED if reason in SKIPPING else Result.FAILED
        detail = str(FileError.wrap(str(action.action), action.path, error))
    outcome = Outcome(
        path=action.path,
        action=action.action,
        result=result,
        reason=reason,
        extents_before=before.extents,
        extents_after=after.extents,
        disk_bytes_before=before.disk_bytes,
        disk_bytes_after=after.disk_bytes,
        bytes_written=pace.written_bytes,
        duration_s=time.monotonic() - began,
        detail=detail,
        unshared_bytes=_unshared(action, pace, after, whole=result is Result.DONE),
    )
    return Done(outcome, file.inode, file.size_bytes, file.mtime_ns, expected, action.compress, action.file.kind)


def _unshared(action: Action, pace: Pace, after: _Measured, *, whole: bool) -> int:
    """What is stored beside a snapshot now: of a `whole` archive as measured, else as planned for what was written."""
    if not action.unshared_bytes or not pace.written_bytes or (action.action is Verb.REWRITE and not whole):
        return 0
    if not whole or action.file.kind is Kind.ACTIVE or after.disk_bytes is None:
        return round(action.unshared_bytes * min(1, pace.written_bytes / action.bytes_to_write))
    extents = action.file.extents
    return round(after.disk_bytes * min(1, extents.shared_bytes / extents.data_bytes))


def not_begun(action: Action) -> Done:
    """What becomes of an action that a stop came before."""
    count = action.extents_before
    words = (action.path, action.action, Result.SKIPPED, Reason.INTERRUPTED)
    outcome = Outcome(*words, count, count, None, None, 0, 0.0, "stopped before it was begun")
    return Done(outcome, action.file.inode, action.file.size_bytes, action.file.mtime_ns)


def _work(action: Action) -> Callable[[VerifiedFile, Action, Pace], int]:
    """What does the action, and returns how many extents can be expected of it."""
    if action.action is Verb.REWRITE:
        return rewrite.rewrite
    return inplace.defragment if action.file.kind is Kind.ACTIVE else compact


def _before(fd: int, file: JournalFile) -> _Measured:
    """What was on the disk: of a file at rest, whose stat is still the same, the look's numbers."""
    if file.kind is Kind.ACTIVE or file.disk_bytes is None:
        return _measure(fd, file.kind)
    return _Measured(file.extents.total, file.disk_bytes)


def _measure(fd: int, kind: Kind) -> _Measured:
    """What is on the disk; of an active file without a sync, which would be a flush that journald did not choose.

    Another process is asked about files at rest only: it takes 0.2 s twice, and a window may close meanwhile.
    """
    if kind is Kind.ACTIVE:
        return _Measured(fiemap.count(fd, sync=False), disk.disk_bytes(fd))
    return _Measured(fiemap.count(fd, sync=True), disk_usage.disk_bytes(fd))


def _look_after(held: VerifiedFile, file: JournalFile) -> tuple[_Measured, JournalFile]:
    """The file as it is now, whatever journald renamed it to meanwhile; after an exchange what has taken its name."""
    if os.fstat(held.fd).st_nlink:
        return _looked_at(held.fd, file)
    with opening.opened(held.name, held.dir_fd) as fd:
        return _looked_at(fd, file)


def _looked_at(fd: int, file: JournalFile) -> tuple[_Measured, JournalFile]:
    status = os.fstat(fd)
    now = file._replace(inode=status.st_ino, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
    return _measure(fd, file.kind), now
