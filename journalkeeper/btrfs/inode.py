# SPDX-License-Identifier: LGPL-2.1-or-later
"""An inode's flags, as lsattr(1) and chattr(1) show and set them.

Read a flag back after setting it: the kernel can return 0 and change nothing.

Source: linux/fs.h; ioctl_iflags(2); fs/btrfs/ioctl.c, btrfs_fileattr_set.
"""

from __future__ import annotations

import struct

from journalkeeper.btrfs.kernel import call_ioctl

# The request numbers encode the size of a `long`, but the kernel reads and writes an `int`.
FS_IOC_GETFLAGS = 0x80006601 | struct.calcsize("l") << 16
FS_IOC_SETFLAGS = 0x40006602 | struct.calcsize("l") << 16

FS_COMPR_FL = 0x00000004
FS_SYNC_FL = 0x00000008
FS_IMMUTABLE_FL = 0x00000010
FS_APPEND_FL = 0x00000020
FS_NODUMP_FL = 0x00000040
FS_NOATIME_FL = 0x00000080
FS_NOCOMP_FL = 0x00000400
FS_NOCOW_FL = 0x00800000
FIXED = FS_IMMUTABLE_FL | FS_APPEND_FL
"""Flags with which the kernel refuses changes to a file or its name, or to the names in a directory."""

FLAGS = struct.Struct("=I4x")


def get_flags(fd: int) -> int:
    """Return the FS_*_FL flags of a file or directory. Raises: OSError: ENOTTY the filesystem has no such flags."""
    return int(call_ioctl(fd, FS_IOC_GETFLAGS, FLAGS, 0)[0])


def set_flags(fd: int, flags: int) -> None:
    """Set the FS_*_FL flags of a file or directory, all at once.

    Raises: OSError: EPERM not the owner, or IMMUTABLE or APPEND without CAP_LINUX_IMMUTABLE;
    EROFS; EOPNOTSUPP a flag that the filesystem does not know; EINVAL flags that exclude each
    other, such as COMPR with NOCOW; ETXTBSY a swap file.
    """
    call_ioctl(fd, FS_IOC_SETFLAGS, FLAGS, flags)


def is_nocow(fd: int) -> bool:
    """Return whether the NOCOW flag of a file or directory is set. New files inherit the flag of their directory."""
    return bool(get_flags(fd) & FS_NOCOW_FL)


def set_nocow(fd: int) -> bool:
    """Set NOCOW and return whether it is set now: on a file with data btrfs returns success and changes nothing.

    Raises: as `set_flags`.
    """
    set_flags(fd, get_flags(fd) | FS_NOCOW_FL)
    return is_nocow(fd)
