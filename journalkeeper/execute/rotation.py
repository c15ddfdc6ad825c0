# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asking journald to rotate, and seeing that it did.

It was done when the name leads to another file, or to none until the next
message; an answer alone may come from somebody who writes elsewhere.

It is over when journald has synced the archive, in a thread and after its answer. That thread cuts off
what the file had allocated ahead, and only then syncs the header that says so. A commit of the volume
between the two, as our record brings about, followed by a power cut, leaves an archive that is shorter
than its header says: readers refuse all of it (measured with 252).
Source: managed_journal_file_set_offline_internal(), managed_journal_file_truncate().
"""

from __future__ import annotations

import errno
import os
import time
from typing import Final

from journalkeeper.btrfs import inode, placement
from journalkeeper.btrfs.volume import read_mount_options
from journalkeeper.execute.verified_file import Failed, Refused, hold
from journalkeeper.journald import control, header, opening
from journalkeeper.model import JournalFile, Reason, Rotation, State
from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.model.run import Found

FINISHED_S: Final = 5.0
"""How long to wait for journald to finish the archive; a slow disk may take longer, and others commit, too."""

LOOK_S: Final = 0.01


def rotate(target: Rotation, reason: Reason) -> Found:
    """Have the journald of an instance rotate, if the file is still what it writes; the file that took its name.

    Without a successor before the next message it is the old one, without extents.

    Raises: Refused; Failed where journald does not, or the new file was to be NOCOW and is not; OSError for the files.
    """
    instance, file = target
    with hold(file, moving=False) as held:
        if reason is Reason.BORN_DATACOW:
            with opening.open_directory(instance.directory) as fd:
                if not inode.is_nocow(fd) and "nodatacow" not in read_mount_options(fd):
                    raise Refused(Reason.CHANGED, "the directory is not NOCOW: a new file would be datacow, too")
        if not control.can_be_asked(instance.directory, instance.namespace):
            raise Refused(Reason.NO_JOURNALD, "its journald is gone since it was looked at")
        try:
            control.rotate(instance.namespace)
        except KeeperError as error:
            if isinstance(error, FileError) and error.number == errno.ECONNREFUSED:
                raise Refused(Reason.NO_JOURNALD, f"nobody writes it now: {error}") from error
            raise Failed(Reason.NO_JOURNALD, str(error)) from error
        try:
            fresh = opening.open_file(held.name, held.dir_fd)
        except FileNotFoundError:
            _wait_until_finished(held.fd)
            return Found(file.inode, file.size_bytes, file.mtime_ns, 0)
        try:
            found = _looked_at(file, fresh, reason)
        finally:
            os.close(fresh)
        _wait_until_finished(held.fd)
        return found


def _wait_until_finished(archive: int) -> None:
    """Wait a moment for journald to have synced what it archived, and has marked so, or removed."""
    deadline_s = time.monotonic() + FINISHED_S
    while (
        header.read_state(archive) is not State.ARCHIVED
        and os.fstat(archive).st_nlink
        and time.monotonic() < deadline_s
    ):
        time.sleep(LOOK_S)


def _looked_at(file: JournalFile, fd: int, reason: Reason) -> Found:
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) == (file.device, file.inode):
        said = f"{file.path}: journald said that it rotated, and the file is the same: does it write there?"
        raise Failed(Reason.NO_JOURNALD, said)
    if reason is Reason.BORN_DATACOW and not inode.is_nocow(fd):
        raise Failed(Reason.NOT_TAKEN, "journald's new file did not inherit NOCOW from its directory")
    return Found(status.st_ino, status.st_size, status.st_mtime_ns, placement.count(fd, sync=False))
