# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file's modification time, which version 0.1 stored in an xattr of the file while it changed the file.

If that version was killed meanwhile, the next look finds the note, and the next run restores the time.
"""

from __future__ import annotations

import errno
import os
from typing import Final

NAME: Final = "user.journalkeeper.mtime"

PUNCHING_NS: Final = 60 * 60 * 1_000_000_000
"""The longest time that our own work on a file can take. A later mtime comes from another writer and is kept."""

COARSE_NS: Final = 1_000_000_000
"""A margin for the kernel's time stamps, which lag its clock by one tick, at most 10 ms."""

MAX_TIME_NS: Final = 1 << 63


def read(fd: int) -> bytes | None:
    """Return the file's note, which only a killed run leaves behind, or None. The content is not checked.

    Raises: OSError: EACCES, EIO.
    """
    try:
        return os.getxattr(fd, NAME)
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.EOPNOTSUPP}:
            return None
        raise


def find_mtime_ns(note: bytes | None, status: os.stat_result) -> int:
    """Return the mtime, in ns, that the file with this `note` and `status` would have without our own work.

    The note counts only if the file has the noted size, and an mtime close to the time of the note. An invalid note is
    ignored, because a user can set the xattr to any value.
    """
    try:
        mtime_ns, size_bytes, made_ns = map(int, (note or b"").split())
    except ValueError:
        return status.st_mtime_ns
    moved_by_us = status.st_size == size_bytes and made_ns - COARSE_NS <= status.st_mtime_ns < made_ns + PUNCHING_NS
    return mtime_ns if moved_by_us and abs(mtime_ns) < MAX_TIME_NS else status.st_mtime_ns


def apply(fd: int) -> bool:
    """Restore the mtime that an interrupted run changed, remove the note, and return whether the mtime changed.

    Raises: as `read`; OSError: EPERM; EROFS; ENODATA the file has no note.
    """
    status = os.fstat(fd)
    right_ns = find_mtime_ns(read(fd), status)
    if right_ns != status.st_mtime_ns:
        os.utime(fd, ns=(status.st_atime_ns, right_ns))
    os.removexattr(fd, NAME)
    return right_ns != status.st_mtime_ns
