# SPDX-License-Identifier: LGPL-2.1-or-later
"""Execution of one planned action on one file or directory: an Action in, a Done out.

Observe, decide, look again, act. The second look uses the same file descriptor as the work. After any failure the file
is as it was, or better.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from typing import Final

from journalkeeper.btrfs import disk, extent_count, fiemap, volume
from journalkeeper.execute import inplace, rewrite, upkeep
from journalkeeper.execute.pace import Pace
from journalkeeper.execute.verified_file import Refused, VerifiedFile, hold, look_again
from journalkeeper.model import Action, Instance, JournalFile, Kind, Outcome, Reason, Result, Rotation, Verb
from journalkeeper.model.errors import describe_errno
from journalkeeper.model.run import Done, Found
from journalkeeper.model.sentences import describe_missing_gain
from journalkeeper.model.units import explain_lost_level, parse_compression
from journalkeeper.policy.cost import is_useless_rewrite

REASON_OF_ERRNO: Final = {
    errno.ENOENT: Reason.VANISHED,
    errno.ENOSPC: Reason.FREE_SPACE,
    errno.EDQUOT: Reason.QUOTA,
    errno.EROFS: Reason.READ_ONLY,
    errno.EACCES: Reason.UNREADABLE,
    errno.ETXTBSY: Reason.SWAPFILE,
    errno.EAGAIN: Reason.INTERRUPTED,  # the kernel's freezer ended a call without a signal: the machine was suspended
    **dict.fromkeys((errno.EIO, errno.EUCLEAN), Reason.IO_ERROR),
    **dict.fromkeys((errno.ELOOP, errno.ENOTDIR, errno.ENXIO), Reason.CHANGED),
}
"""The reason in the outcome for each errno that has one cause; that of all others is REFUSED."""

SKIPPING: Final = frozenset({Reason.VANISHED, Reason.SWAPFILE, Reason.CHANGED, Reason.INTERRUPTED})
"""Reasons that are no failure."""


class Turn:
    """One action's state: the file before and after, at first as planned without disk bytes, and expected extents."""

    def __init__(self, action: Action) -> None:
        target = action.target
        seen = (target.size_bytes, target.mtime_ns) if isinstance(target, JournalFile) else (0, 0)
        self.action = action
        self.before = self.after = Found(target.inode, *seen, action.extents_before)
        self.expected = action.extents_expected

    def make_done(
        self, result: Result, reason: Reason, detail: str, *, written_bytes: int = 0, duration_s: float = 0.0
    ) -> Done:
        """Return the outcome with this result, and the file's state after it, as the work stored them in this Turn."""
        action, before, after = self.action, self.before, self.after
        outcome = Outcome(
            path=action.path,
            action=action.action,
            result=result,
            reason=reason,
            extents_before=before.extents,
            extents_after=after.extents,
            disk_bytes_before=before.disk_bytes,
            disk_bytes_after=after.disk_bytes,
            bytes_written=written_bytes,
            duration_s=duration_s,
            detail=detail,
            unshared_bytes=_compute_extra_bytes(action, written_bytes, after, whole=result is Result.DONE),
        )
        kind = action.target.kind if isinstance(action.target, JournalFile) else None
        return Done(outcome, after, self.expected, action.compress, kind)


def execute(action: Action, pace: Pace) -> Done:
    """Execute `action`. Return its outcome: skipped for Refused and SKIPPING, failed for Failed and other OSErrors."""
    began = time.monotonic()
    turn = Turn(action)
    result, reason, detail = Result.DONE, action.reason, action.detail
    try:
        _work(turn, pace)
        detail = turn.action.detail
    except Refused as refused:
        result, reason, detail = refused.result, refused.reason, refused.detail
    except OSError as error:
        reason = REASON_OF_ERRNO.get(error.errno or 0, Reason.REFUSED)
        result = Result.SKIPPED if reason in SKIPPING else Result.FAILED
        detail = f"cannot {action.action}: {describe_errno(error.errno)}"
        with suppress(OSError):
            detail += f": {volume.describe_quota_group(os.path.dirname(action.path))}" if reason is Reason.QUOTA else ""
    duration_s = time.monotonic() - began
    return turn.make_done(result, reason, detail, written_bytes=pace.written_bytes, duration_s=duration_s)


def _compute_extra_bytes(action: Action, written_bytes: int, after: Found, *, whole: bool) -> int:
    """Return how many bytes the rewrite stored twice: once in the file and once in a snapshot.

    A done archive counts the shared part of its measured disk bytes. Others, and an archive without a measurement,
    count the planned bytes in proportion to the written ones. A copy (Verb.REWRITE) that is not `whole` (DONE) counts
    0, because most such copies are discarded.
    """
    file = action.target
    if not isinstance(file, JournalFile) or not action.unshared_bytes or not written_bytes:
        return 0
    if action.action is Verb.REWRITE and not whole:
        return 0
    if not whole or file.kind is Kind.ACTIVE or after.disk_bytes is None:
        return round(action.unshared_bytes * min(1, written_bytes / action.bytes_to_write))
    return round(after.disk_bytes * min(1, file.extents.shared_bytes / file.extents.data_bytes))


def _work(turn: Turn, pace: Pace) -> None:
    """Execute the action of `turn`, and store in `turn` what it found and did. Raises: Refused; OSError."""
    match turn.action.target:
        case Instance() as instance:
            upkeep.set_nocow(instance, turn.action.reason)
        case Rotation() as rotation:
            turn.after = upkeep.rotate(rotation, turn.action.reason)
        case JournalFile() as file:
            _rewrite_file(file, turn, pace)


def _rewrite_file(file: JournalFile, turn: Turn, pace: Pace) -> None:
    """Rewrite the file's data, and store the states before and after in `turn`, also after an error.

    If the kernel did not compress, or not with the level, the action in `turn` then shows it. NO_GAIN means that too
    few extents were saved, or that UNCOMPRESSED data was not compressed; the data stays rewritten.

    Raises: as `hold` and `_move_data`; OSError ENOENT or Refused: VANISHED, the reason of `pace`, or NO_GAIN.
    """
    is_active = turn.action.is_on_active_file
    with hold(file, replacing=turn.action.action is Verb.REWRITE) as held:
        turn.before = turn.after = _read_found(held, mapped=not is_active)
        try:
            turn.expected = _move_data(held, turn.action, pace)
        finally:
            _make_durable(held, pace)
            turn.after = _read_found(held, mapped=pace.ended is not Reason.WINDOW_CLOSED)
            named = _has_its_name(held)
        shape = file if is_active else file._replace(extents=extent_count.survey(held.fd, sync=False))
        if not named:
            raise Refused(Reason.VANISHED, "the name no longer leads to the file")
    if pace.ended is not None:
        raise Refused(pace.ended, "stopped between two pieces")
    asked = parse_compression(turn.action.compress)
    if asked is not None and asked.level is not None and turn.after.inode != turn.before.inode:
        lost_level = explain_lost_level(asked, "a copy")
        turn.action = turn.action._replace(compress=asked.algorithm, detail=lost_level)
    if asked is not None and not shape.compressed:
        verb = Verb.DEFRAGMENT if turn.action.action is Verb.COMPRESS else turn.action.action
        turn.action = turn.action._replace(action=verb, compress="no", detail="")
    was, became = turn.before.extents, turn.after.extents
    if is_useless_rewrite(was, turn.expected, became):
        raise Refused(Reason.NO_GAIN, describe_missing_gain(was, became, turn.expected))
    if turn.action.compress == "no" and turn.action.reason is Reason.UNCOMPRESSED:
        raise Refused(Reason.NO_GAIN, "rewritten, but the kernel did not compress the data")


def _move_data(held: VerifiedFile, action: Action, pace: Pace) -> int:
    """Move the file's data in place, or by a copy for Verb.REWRITE. Return the expected number of extents.

    If data of an archive kept its place, copy the archive then, unless `pace` ended. Raises: as the called functions.
    """
    if action.is_on_active_file:
        return inplace.defragment(held, action, pace)
    if action.action is Verb.REWRITE:
        return rewrite.rewrite(held, action, pace)
    expected, moved = inplace.compact(held, action, pace)
    if moved or pace.ended is not None:
        return expected
    # The held stat is old: the work in place changed the ctime, which the exchange compares.
    return rewrite.rewrite(look_again(held, replacing=True), action, pace)


def _make_durable(held: VerifiedFile, pace: Pace) -> None:
    """Make the new extents durable before the history records them: fsync an archive, commit for an active file.

    An fsync of an active file would write the pages that journald has not flushed: 4 extents became 59 (measured). A
    commit of the volume's transaction writes none of them. After an early end a flush is near, and journald's fsync
    would wait for the commit.
    """
    if held.file.kind is not Kind.ACTIVE:
        os.fsync(held.fd)
    elif pace.written_bytes and pace.ended is None:
        volume.commit_transaction(held.fd)


def _has_its_name(held: VerifiedFile) -> bool:
    """Return whether the path leads to the file or its copy. journald renames active files: st_nlink > 0 is enough.

    Its directory must keep its path. Raises: OSError: ENOENT no such path, or no such directory of an active file.
    """
    status, path = os.fstat(held.fd), held.file.path
    if held.file.kind is Kind.ACTIVE:
        same_directory = os.path.samestat(os.stat(os.path.dirname(path)), os.fstat(held.dir_fd))
        return same_directory and status.st_nlink > 0
    return os.path.samestat(os.lstat(path), status)


def _read_found(held: VerifiedFile, *, mapped: bool) -> Found:
    """Return inode, size, mtime, extents and disk bytes; the disk bytes are None if they cannot be measured.

    If the file is not `mapped`, its extents are those of the look, or its rows now (`count_rows`) if fewer: journald
    would wait for the map. An active file is not synced, because journald did not choose such a flush. Its disk bytes
    need CAP_SYS_ADMIN: the measuring unit takes 0.2 s for an answer, and the flush window could close meanwhile.
    """
    fd, active, status = held.fd, held.file.kind is Kind.ACTIVE, os.fstat(held.fd)
    extents = extent_count.count(fd, sync=not active) if mapped else min(held.file.extents.total, fiemap.count_rows(fd))
    disk_bytes = disk.read_disk_bytes(fd) if active else disk.measure_disk_bytes(fd)
    return Found(status.st_ino, status.st_size, status.st_mtime_ns, extents, disk_bytes)
