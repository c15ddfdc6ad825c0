# SPDX-License-Identifier: LGPL-2.1-or-later
"""Changes of a directory: its NOCOW attribute (C), and a request to journald to rotate.

The attribute counts as set only when it was read back, whatever the call returned, and when it is durable.

The rotation succeeded if the name leads to another file, or to none until the next message. The answer alone proves
nothing, because it may come from a journald that writes elsewhere.

The rotation is over when journald has synced the archive, in a thread and after its answer. That thread first truncates
the space that the file had allocated ahead, and then syncs the header with the new size. If the volume commits between
the two, as our history does, and a power cut follows, the archive is shorter than its header claims. Readers then
refuse the whole file (measured with 252).

Source: managed_journal_file_set_offline_internal(), managed_journal_file_truncate().
"""

from __future__ import annotations

import errno
import os
import time
from typing import Final

from journalkeeper.btrfs import disk, extent_count, inode
from journalkeeper.btrfs.volume import read_mount_options
from journalkeeper.execute.verified_file import Failed, Refused, hold
from journalkeeper.journald import control, journal_file, layout, opening
from journalkeeper.model import Instance, JournalFile, Reason, Rotation, State
from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.model.run import Found

FINISHED_S: Final = 5.0
"""How long to wait for journald to finish the archive. A slow disk may take longer, and other programs commit, too."""

LOOK_S: Final = 0.01


def set_nocow(instance: Instance, reason: Reason) -> None:
    """Make the directory NOCOW durably, also if it is already. New files inherit it, existing files do not change.

    Raises: Refused if the directory changed since the plan, or a new snapshot exists, unless Nocow=yes is the `reason`;
    Failed if the kernel did not set the attribute; OSError: EPERM, EROFS, EINVAL with chattr +c or +m.
    """
    with opening.open_directory(instance.directory) as fd:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != (instance.device, instance.inode):
            raise Refused(Reason.CHANGED, "the name now leads to another directory")
        if reason is Reason.NO_REDUNDANCY and disk.measure_snapshots(fd):
            raise Refused(Reason.SNAPSHOTS, "a snapshot of its subvolume was taken after the look")
        if not inode.set_nocow(fd):
            raise Failed(Reason.NOT_TAKEN, "the kernel reported success but did not set the attribute C")
        os.fsync(fd)


def rotate(target: Rotation, reason: Reason) -> Found:
    """Ask the journald of an instance to rotate. Return inode, size, mtime and extents of the new file.

    If journald creates the new file only with the next message, return the old file's values with 0 extents. Wait at
    most FINISHED_S for the archive.

    Raises: as `hold`; Refused if no journald writes the file, or new files would be BORN_DATACOW again; Failed if
    journald did not rotate, or the new file is not NOCOW as it should be; OSError.
    """
    file = target.file
    with hold(file, moving=False) as held:
        if reason is Reason.BORN_DATACOW:
            with opening.open_directory(target.directory) as fd:
                if not inode.is_nocow(fd) and "nodatacow" not in read_mount_options(fd):
                    raise Refused(Reason.CHANGED, "the directory is not NOCOW: a new file would be datacow, too")
        if not control.can_be_asked(layout.describe_directory(target.directory)):
            raise Refused(Reason.NO_JOURNALD, "no journald writes this directory any more")
        try:
            control.rotate(target.namespace)
        except KeeperError as error:
            if isinstance(error, FileError) and error.number == errno.ECONNREFUSED:
                raise Refused(Reason.NO_JOURNALD, f"no journald writes this file now: {error}") from error
            raise Failed(Reason.NO_JOURNALD, str(error)) from error
        try:
            with opening.hold_open(held.name, held.dir_fd) as fd:
                return _require_new_file(file, fd, reason)
        except FileNotFoundError:
            return Found(file.inode, file.size_bytes, file.mtime_ns, 0)
        finally:
            _wait_for_archive(held.fd)


def _wait_for_archive(archive: int) -> None:
    """Wait for ARCHIVED or a deletion, at most FINISHED_S. Raises: OSError if the state cannot be read (EIO)."""
    deadline_s = time.monotonic() + FINISHED_S
    while (
        journal_file.read_state(archive) is not State.ARCHIVED
        and os.fstat(archive).st_nlink
        and time.monotonic() < deadline_s
    ):
        time.sleep(LOOK_S)


def _require_new_file(file: JournalFile, fd: int, reason: Reason) -> Found:
    """Return the state of the new file `fd`. Raises: Failed if it is the old one, or not NOCOW for BORN_DATACOW."""
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) == (file.device, file.inode):
        said = f"{file.path}: journald reported a rotation, but the file is the same: check that journald writes to it"
        raise Failed(Reason.NO_JOURNALD, said)
    if reason is Reason.BORN_DATACOW and not inode.is_nocow(fd):
        raise Failed(Reason.NOT_TAKEN, "journald's new file did not inherit NOCOW from its directory")
    return Found(status.st_ino, status.st_size, status.st_mtime_ns, extent_count.count(fd, sync=False))
