# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asking journald to rotate, and seeing that it did.

The one rule: it was done when the name leads to another file, or to none until the next
message; an answer alone may come from somebody who writes elsewhere.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from journalkeeper.btrfs import fiemap, inode
from journalkeeper.btrfs.volume import mount_options
from journalkeeper.execute.attributes import NotTakenError
from journalkeeper.execute.verified_file import Refused, hold
from journalkeeper.journald import control, opening
from journalkeeper.model import JournalFile, Order, Reason
from journalkeeper.model.errors import KeeperError


class Fresh(NamedTuple):
    """The file that took the name; the old one, without extents, if that has no successor before the next message."""

    inode: int
    size_bytes: int
    mtime_ns: int
    extents: int


def rotate(order: Order, file: JournalFile) -> Fresh:
    """Have the journald of the order's instance rotate, if `file` is still what it writes.

    Raises: Refused; KeeperError where journald does not; NotTakenError where the new file was to
        be NOCOW and is not; OSError for the files.
    """
    instance = order.instance
    with hold(file, moving=False) as held:
        if order.reason is Reason.BORN_DATACOW:
            with opening.directory(instance.directory) as fd:
                if not inode.is_nocow(fd) and "nodatacow" not in mount_options(fd):
                    raise Refused(Reason.CHANGED, "the directory is not NOCOW: a new file would be datacow, too")
        if not control.can_be_asked(instance.directory, instance.namespace):
            raise Refused(Reason.NO_JOURNALD, "its journald is gone since it was looked at")
        control.rotate(instance.namespace)
        try:
            fresh = opening.open_file(held.name, held.dir_fd)
        except FileNotFoundError:
            return Fresh(file.inode, file.size_bytes, file.mtime_ns, 0)
        try:
            return _looked_at(order, file, fresh)
        finally:
            os.close(fresh)


def _looked_at(order: Order, file: JournalFile, fd: int) -> Fresh:
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) == (file.device, file.inode):
        raise KeeperError(f"{file.path}: journald said that it rotated, and the file is the same: does it write there?")
    if order.reason is Reason.BORN_DATACOW and not inode.is_nocow(fd):
        raise NotTakenError("journald's new file did not inherit NOCOW from its directory")
    return Fresh(status.st_ino, status.st_size, status.st_mtime_ns, fiemap.count(fd, sync=False))
