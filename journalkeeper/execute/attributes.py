# SPDX-License-Identifier: LGPL-2.1-or-later
"""The attribute C of a directory.

It was set when it is read back, whatever the call returned.
"""

from __future__ import annotations

import errno
import os

from journalkeeper.btrfs import inode
from journalkeeper.execute.verified_file import Failed, Refused
from journalkeeper.journald import opening
from journalkeeper.model import Instance, Reason


def set_nocow(instance: Instance) -> None:
    """Make the directory NOCOW, so that files made in it are; those that are there stay as they are.

    Raises: Refused if it is no longer the directory that the plan saw, or asks for compression;
        Failed; OSError: EPERM not its owner, or immutable; EROFS.
    """
    with opening.open_directory(instance.directory) as fd:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != (instance.device, instance.inode):
            raise Refused(Reason.CHANGED, "the name now leads to another directory")
        try:
            nocow = inode.set_nocow(fd, on=True)
        except OSError as error:
            if error.errno == errno.EINVAL and inode.get_flags(fd) & inode.FS_COMPR_FL:
                raise Refused(
                    Reason.COMPRESSION, "the directory was told to compress since it was looked at"
                ) from error
            raise
        if not nocow:
            raise Failed(Reason.NOT_TAKEN, "the kernel set the attribute C without an error, and it is not there")
