# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file's modification time, noted in an xattr of the file while our own work moves it.

A hole that is punched moves the mtime, and it is put back right afterwards. btrfs commits what is done to
a file in its order: whatever a kill or a power cut leaves of the punch, it leaves the note, too. The next
look at the file finds it, and the next run puts the time back.
"""

from __future__ import annotations

import errno
import os
import re
import time
from typing import Final, NamedTuple

NAME: Final = "user.journalkeeper.mtime"

PUNCHING_NS: Final = 60 * 60 * 1_000_000_000
"""A time that is so much later than the note was made for our work is somebody else's and stays."""

COARSE_NS: Final = 1_000_000_000
"""The kernel's time stamps are behind its clock by a tick, 10 ms at the most; a second is safe."""

MAX_TIME_NS: Final = 1 << 63

_NOTE: Final = re.compile(rb"(-?[0-9]{1,19}) ([0-9]{1,19}) ([0-9]{1,19})")


class Note(NamedTuple):
    """What a file had when the note was made, and when that was."""

    mtime_ns: int
    size_bytes: int
    made_ns: int


def make(fd: int, status: os.stat_result) -> None:
    """Note the mtime of `status`, which is about to be moved.

    Raises: OSError: EACCES, EPERM; EROFS; ENOSPC, EDQUOT.
    """
    note = Note(status.st_mtime_ns, status.st_size, time.time_ns())
    os.setxattr(fd, NAME, b" ".join(b"%d" % number for number in note))


def put_back(fd: int, status: os.stat_result) -> None:
    """Give the file the times of `status`, and only then remove the note.

    Raises: OSError: EACCES, EPERM; EROFS.
    """
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.removexattr(fd, NAME)


def is_there(fd: int) -> bool:
    """Whether a run that was killed left a note.

    Raises: OSError: EACCES, EIO.
    """
    return _value(fd) is not None


def mtime_ns(fd: int, status: os.stat_result) -> int:
    """The mtime that the file of `status` has, or will have when its note is followed.

    Raises: as `is_there`.
    """
    note = _parsed(_value(fd))
    moved_by_us = (
        note is not None
        and status.st_size == note.size_bytes
        and note.made_ns - COARSE_NS <= status.st_mtime_ns < note.made_ns + PUNCHING_NS
    )
    return note.mtime_ns if note is not None and moved_by_us else status.st_mtime_ns


def follow(fd: int) -> bool:
    """Put back what a killed run moved, and remove its note; whether the time was another.

    Raises: as `put_back`, and ENODATA without a note.
    """
    status = os.fstat(fd)
    right_ns = mtime_ns(fd, status)
    if right_ns != status.st_mtime_ns:
        os.utime(fd, ns=(status.st_atime_ns, right_ns))
    os.removexattr(fd, NAME)
    return right_ns != status.st_mtime_ns


def _value(fd: int) -> bytes | None:
    try:
        return os.getxattr(fd, NAME)
    except OSError as error:
        if error.errno in {errno.ENODATA, errno.EOPNOTSUPP}:
            return None
        raise


def _parsed(value: bytes | None) -> Note | None:
    """The note, None of what we never wrote: the file may be anybody's."""
    found = _NOTE.fullmatch(value or b"")
    if found is None:
        return None
    note = Note(*map(int, found.groups()))
    return note if max(map(abs, note)) < MAX_TIME_NS else None
