# SPDX-License-Identifier: LGPL-2.1-or-later
"""The NOCOW attribute (C) of a directory.

The attribute counts as set only when it was read back, whatever the call returned, and when it is durable.
"""

from __future__ import annotations

import errno
import os

from journalkeeper.btrfs import inode
from journalkeeper.execute.verified_file import Failed, Refused
from journalkeeper.journald import opening
from journalkeeper.model import Instance, Reason


def set_nocow(instance: Instance) -> None:
    """Make the directory NOCOW, so that new files in it inherit NOCOW. Existing files do not change.

    Raises: Refused if the name leads to another directory than at the plan, or compression is enabled for it; Failed;
    OSError: EPERM not the owner, or immutable; EROFS.
    """
    with opening.open_directory(instance.directory) as fd:
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != (instance.device, instance.inode):
            raise Refused(Reason.CHANGED, "the name now leads to another directory")
        try:
            nocow = inode.set_nocow(fd, on=True)
        except OSError as error:
            if error.errno == errno.EINVAL and inode.get_flags(fd) & inode.FS_COMPR_FL:
                raise Refused(Reason.COMPRESSION, "compression was enabled for the directory after the look") from error
            raise
        if not nocow:
            raise Failed(Reason.NOT_TAKEN, "the kernel reported success but did not set the attribute C")
        os.fsync(fd)
