# SPDX-License-Identifier: LGPL-2.1-or-later
"""Subvolumes, and files that share their extents."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import zip_longest

import btrfsutil

from journalkeeper.btrfs import fiemap
from journalkeeper.btrfs.volume import FIRST_FREE_OBJECTID, FS_TREE_OBJECTID, list_mount_points

EMPTY_SUBVOL_DIR_OBJECTID = 2
"""The inode number of the directory that a snapshot contains in place of a subvolume. It can only be removed."""


def is_subvolume(fd: int) -> bool:
    """Return whether the directory `fd`, which is on btrfs, is the top of a subvolume."""
    return os.fstat(fd).st_ino == FIRST_FREE_OBJECTID


def is_left_by_rollback(path: str) -> bool:
    """Return whether `path` is a directory in place of a subvolume that its snapshot does not contain."""
    with suppress(FileNotFoundError):
        # the top of an ext4 has this number, too
        return os.lstat(path).st_ino == EMPTY_SUBVOL_DIR_OBJECTID and os.path.realpath(path) not in list_mount_points()
    return False


def create(path: str) -> None:
    """Make an empty subvolume. Raises: OSError."""
    btrfsutil.create_subvolume(path)


def delete(path: str) -> None:
    """Delete a subvolume with all files in it. Raises: OSError."""
    btrfsutil.delete_subvolume(path)


def find_namesakes(path: str) -> tuple[str, list[str]]:
    """Return the place of `path` in the volume, and the other subvolumes that have its place in their root.

    Places are relative to the volume's top: "@/var/log/journal" has the namesake "old/@/var/log/journal".

    Raises: OSError: EPERM without CAP_SYS_ADMIN; ENOTTY the directory of `path` is not on btrfs.
    """
    root = os.path.dirname(path)
    while root != "/" and os.lstat(root).st_ino != FIRST_FREE_OBJECTID:
        root = os.path.dirname(root)
    tail = os.path.relpath(path, root)
    every = [place for place, _ in btrfsutil.SubvolumeIterator(root, top=FS_TREE_OBJECTID)]
    own = os.path.join(btrfsutil.subvolume_path(root), tail)  # libbtrfsutil 6.2 takes only the top of a subvolume
    return own, [place for place in every if place.endswith(f"/{tail}") and place != own]


def has_same_extents(one: int, other: int) -> bool:
    """Return whether two files consist of the same extents. Their answers to SEEK_HOLE can differ nevertheless.

    Raises: as `fiemap.map_batches`.
    """
    return all(a == b for a, b in zip_longest(*(fiemap.iterate_extents(fd, sync=True) for fd in (one, other))))
