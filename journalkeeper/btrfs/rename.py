# SPDX-License-Identifier: LGPL-2.1-or-later
"""renameat2: two names trade places in one step.

No file is without a name at any moment, also when the power goes.

Source: renameat2(2); linux/fs.h; fs/btrfs/inode.c, btrfs_rename_exchange.
"""

from __future__ import annotations

from journalkeeper.btrfs.kernel import renameat2

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


def exchange(dir_fd: int, name_a: str, name_b: str) -> None:
    """Let two names in one directory trade places; both must exist.

    The new order is on the disk after an fsync of the directory.

    Raises: OSError: ENOENT one is missing; EACCES, EPERM no right to write in the directory;
    EROFS; ENOSPC no room for the metadata; EINVAL the filesystem cannot.
    """
    renameat2(dir_fd, name_a, dir_fd, name_b, RENAME_EXCHANGE)


def rename_new(dir_fd: int, old: str, new: str) -> None:
    """Give the file `old` the name `new` in the same directory, which must be nobody's yet.

    Raises: OSError: EEXIST something has that name; EINVAL the filesystem cannot; as `exchange`.
    """
    renameat2(dir_fd, old, dir_fd, new, RENAME_NOREPLACE)
