# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opening a journal file by its directory's handle and without side effects.

Opening follows no link, waits for no FIFO, takes no terminal and does not change the access time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def hold(fd: int) -> Iterator[int]:
    """Yield the descriptor `fd`, and close it at the end of the block."""
    try:
        yield fd
    finally:
        os.close(fd)


def hold_open(name: str, dir_fd: int) -> AbstractContextManager[int]:
    """Open the file `name` in a directory. The context is its read-only descriptor, which is closed at the end.

    The access time does not change, unless another user owns the file and the caller is not privileged.

    Raises: OSError: ENOENT, EACCES; ELOOP a symbolic link; ENXIO a socket.
    """
    try:
        return hold(os.open(name, FLAGS | os.O_NOATIME, dir_fd=dir_fd))
    except PermissionError:
        # Only the file's owner may use O_NOATIME (open(2)); a member of its group may still read.
        return hold(os.open(name, FLAGS, dir_fd=dir_fd))


def open_directory(path: str) -> AbstractContextManager[int]:
    """Open a directory. The context is its readable descriptor, which is closed at the end.

    Raises: OSError: ENOENT, EACCES; ENOTDIR a part of the path is a link, or not a directory.
    """
    way, _, name = path.rstrip("/").rpartition("/")
    at = os.open("/" if path.startswith("/") else ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in filter(None, way.split("/")):
            at, before = os.open(part, STEP, dir_fd=at), at
            os.close(before)
        return hold(os.open(name or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at))
    finally:
        os.close(at)


@contextmanager
def open_path(path: str) -> Iterator[int]:
    """Open the file at the absolute `path` as `hold_open`, in its directory as `open_directory`."""
    directory, _, name = path.rpartition("/")
    with open_directory(directory or "/") as dir_fd, hold_open(name, dir_fd) as fd:
        yield fd


def is_being_written(fd: int) -> bool:
    """Return whether the file `fd` (read-only) is open or mapped for writing, or behind a loop device.

    Never check an active file of a journald of this machine: it opens active files with O_NONBLOCK, and its open would
    fail during the microseconds of the read lease. The result is False on a filesystem without leases (EINVAL), True
    without ownership or CAP_LEASE (EACCES).

    Raises: OSError for any other errno.

    Source: fcntl(2), F_SETLEASE; fs/locks.c, check_conflicting_open.
    """
    try:
        # A broken lease sends SIGIO, which would end this process; SIGURG is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return True
        if error.errno == errno.EINVAL:
            return False
        raise
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
