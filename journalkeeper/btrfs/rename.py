# SPDX-License-Identifier: LGPL-2.1-or-later
"""renameat2(2): exchange two names, or rename without replacing.

Each call is atomic: every file has a name at every moment, also after a power cut.

Source: renameat2(2); linux/fs.h; fs/btrfs/inode.c, btrfs_rename_exchange.
"""

from __future__ import annotations

from journalkeeper.btrfs.kernel import renameat2

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


def exchange(dir_fd: int, name_a: str, name_b: str) -> None:
    """Exchange two names in one directory; both must exist.

    The exchange is durable after an fsync of the directory.

    Raises: OSError: ENOENT one is missing; EACCES, EPERM no right to write in the directory; EROFS; ENOSPC no room for
    the metadata; EINVAL the filesystem does not support it.
    """
    renameat2(dir_fd, name_a, dir_fd, name_b, RENAME_EXCHANGE)


def rename_without_replacing(dir_fd: int, old: str, new: str) -> None:
    """Rename `old` to `new` in the same directory, unless a file named `new` exists.

    Raises: OSError: EEXIST a file has that name; EINVAL the filesystem does not support it; as `exchange`.
    """
    renameat2(dir_fd, old, dir_fd, new, RENAME_NOREPLACE)
