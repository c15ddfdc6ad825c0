# SPDX-License-Identifier: LGPL-2.1-or-later
"""Subvolumes, and files that share their extents."""

from __future__ import annotations

import errno
import os
import struct
from contextlib import suppress
from itertools import zip_longest

import btrfsutil

from journalkeeper.btrfs import fiemap
from journalkeeper.btrfs.kernel import call_ioctl
from journalkeeper.btrfs.volume import FIRST_FREE_OBJECTID, FS_TREE_OBJECTID, find_mount_line
from journalkeeper.model.errors import KeeperError

BTRFS_IOC_CLONE_RANGE = 0x4020940D
CLONE_RANGE = struct.Struct("=qQQQ")
"""struct btrfs_ioctl_clone_range_args: src_fd, src_offset, src_length (0: to the end), dest_offset."""

EMPTY_SUBVOL_DIR_OBJECTID = 2
"""The inode number of the directory that a snapshot contains in place of a subvolume. It can only be removed."""


def is_subvolume(fd: int) -> bool:
    """Return whether the directory `fd`, which is on btrfs, is the top of a subvolume."""
    return os.fstat(fd).st_ino == FIRST_FREE_OBJECTID


def is_left_by_rollback(path: str) -> bool:
    """Return whether `path` is a directory in place of a subvolume that its snapshot does not contain."""
    with suppress(FileNotFoundError):
        return os.lstat(path).st_ino == EMPTY_SUBVOL_DIR_OBJECTID
    return False


def create(path: str) -> None:
    """Make an empty subvolume. Raises: KeeperError."""
    try:
        btrfsutil.create_subvolume(path)
    except btrfsutil.BtrfsUtilError as error:
        raise KeeperError(f"{path}: cannot make the subvolume: {error}") from error


def delete(path: str) -> None:
    """Delete a subvolume with all files in it. Raises: KeeperError."""
    try:
        btrfsutil.delete_subvolume(path)
    except btrfsutil.BtrfsUtilError as error:
        raise KeeperError(f"{path}: cannot delete the subvolume: {error}") from error


def find_namesakes(path: str) -> tuple[str, str, list[str]]:
    """Return the device of the volume, the place of `path` in it, and the other subvolumes at this path of their roots.

    All places are relative to the volume's top: "@/var/log/journal" has the namesake "old/@/var/log/journal".

    Raises: KeeperError if btrfs cannot be asked (EPERM without CAP_SYS_ADMIN); OSError.
    """
    root = os.path.dirname(path)
    while os.lstat(root).st_ino != FIRST_FREE_OBJECTID:
        root = os.path.dirname(root)
    tail = os.path.relpath(path, root)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        own = os.path.join(btrfsutil.subvolume_path(fd), tail)
        every = [place for place, _ in btrfsutil.SubvolumeIterator(fd, top=FS_TREE_OBJECTID)]
        line = find_mount_line(fd) or ""
    except btrfsutil.BtrfsUtilError as error:
        raise KeeperError(f"{path}: cannot list the subvolumes: {error}") from error
    finally:
        os.close(fd)
    device = line.partition(" - ")[2].split(" ")[1:2]
    return "".join(device), own, [place for place in every if place.endswith(f"/{tail}") and place != own]


def share_extents(source: int, copy: int) -> bool:
    """Make the empty file `copy` share all extents of `source`, and return whether that was possible.

    It is not where only one of the two files has checksums.

    Raises: OSError: ENOSPC, EROFS, EDQUOT. Source: linux/btrfs.h; fs/remap_range.c, fs/btrfs/reflink.c.
    """
    try:
        call_ioctl(copy, BTRFS_IOC_CLONE_RANGE, CLONE_RANGE, source, 0, 0, 0)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV}:
            return False
        raise
    return True


def has_same_extents(one: int, other: int) -> bool:
    """Return whether two files consist of the same extents. SEEK_HOLE can differ although they do.

    Raises: as `fiemap.map_batches`.
    """
    return all(a == b for a, b in zip_longest(*(fiemap.iterate_extents(fd, sync=True) for fd in (one, other))))
