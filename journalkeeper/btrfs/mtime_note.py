# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file's modification time, stored in an xattr of the file while journalkeeper changes it.

Punching a hole changes the mtime, and journalkeeper restores it right afterwards. btrfs commits the changes of one file
in their order. So if a kill or a power cut leaves the punch, it also leaves the note. The next look finds the note, and
the next run restores the time.
"""

from __future__ import annotations

import errno
import os
import re
import time
from typing import Final, NamedTuple

NAME: Final = "user.journalkeeper.mtime"

PUNCHING_NS: Final = 60 * 60 * 1_000_000_000
"""The longest time that our own work on a file can take. A later mtime comes from another writer and is kept."""

COARSE_NS: Final = 1_000_000_000
"""A margin for the kernel's time stamps, which lag its clock by one tick, at most 10 ms."""

MAX_TIME_NS: Final = 1 << 63

_NOTE: Final = re.compile(rb"(-?[0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19})")


class Note(NamedTuple):
    """The mtime and size of a file when the note was made, and the time of the note."""

    mtime_ns: int
    size_bytes: int
    made_ns: int


def make(fd: int, status: os.stat_result) -> None:
    """Store the mtime of `status` in a note before the work changes it.

    Raises: OSError: EACCES, EPERM; EROFS; ENOSPC, EDQUOT.
    """
    note = Note(status.st_mtime_ns, status.st_size, time.time_ns())
    os.setxattr(fd, NAME, b" ".join(b"%d" % number for number in note))


def restore(fd: int, status: os.stat_result) -> None:
    """Set the file's times to those of `status`, and then remove the note.

    Raises: OSError: EACCES, EPERM; EROFS.
    """
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.removexattr(fd, NAME)


def is_there(fd: int) -> bool:
    """Return whether the file has a note, which only a killed run leaves behind.

    Raises: OSError: EACCES, EIO.
    """
    return _read(fd) is not None


def find_mtime_ns(fd: int, status: os.stat_result) -> int:
    """Return the mtime that the file would have without our own work, in ns.

    That is the mtime in the note if our own work changed it since. Otherwise it is that of `status`.

    Raises: as `is_there`.
    """
    note = _parse(_read(fd))
    moved_by_us = (
        note is not None
        and status.st_size == note.size_bytes
        and note.made_ns - COARSE_NS <= status.st_mtime_ns < note.made_ns + PUNCHING_NS
    )
    return note.mtime_ns if note is not None and moved_by_us else status.st_mtime_ns


def apply(fd: int) -> bool:
    """Apply the note: restore the mtime that an interrupted run changed, and remove the note.

    Return whether the mtime was different. A change by another writer since is kept.

    Raises: as `restore`; OSError: ENODATA the file has no note.
    """
    status = os.fstat(fd)
    right_ns = find_mtime_ns(fd, status)
    if right_ns != status.st_mtime_ns:
        os.utime(fd, ns=(status.st_atime_ns, right_ns))
    os.removexattr(fd, NAME)
    return right_ns != status.st_mtime_ns


def _read(fd: int) -> bytes | None:
    try:
        return os.getxattr(fd, NAME)
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.EOPNOTSUPP}:
            return None
        raise


def _parse(value: bytes | None) -> Note | None:
    """Return the note, or None if journalkeeper cannot have written it: any user can set the xattr of their file."""
    found = _NOTE.fullmatch(value or b"")
    if found is None:
        return None
    note = Note(*map(int, found.groups()))
    return note if max(map(abs, note)) < MAX_TIME_NS else None
