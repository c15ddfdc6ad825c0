# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a journal file is opened: from a directory's handle, and without a trace.

The one rule: no link is followed, no FIFO waited for, no terminal taken, no access time moved.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_file(name: str, dir_fd: int) -> int:
    """A read-only descriptor of the file `name` in a directory; the caller closes it.

    Raises: OSError: ENOENT, EACCES; ELOOP a symbolic link; ENXIO a socket or FIFO's other end.
    """
    try:
        return os.open(name, FLAGS | os.O_NOATIME, dir_fd=dir_fd)
    except PermissionError as error:
        # O_NOATIME is for the file's owner only (open(2)); a reader by group may still read.
        if error.errno != errno.EPERM:
            raise
        return os.open(name, FLAGS, dir_fd=dir_fd)


@contextmanager
def opened(name: str, dir_fd: int) -> Iterator[int]:
    """`open_file`, closed at the end of the block."""
    fd = open_file(name, dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def directory(path: str) -> Iterator[int]:
    """A readable descriptor of a directory, to which no symbolic link leads: each part is opened from the one before.

    Raises: OSError: ENOENT, EACCES; ENOTDIR something on the way is a link, or no directory.
    """
    way, _, name = path.rstrip("/").rpartition("/")
    at = os.open("/" if path.startswith("/") else ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in filter(None, way.split("/")):
            at, before = os.open(part, STEP, dir_fd=at), at
            os.close(before)
        fd = os.open(name or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)
    try:
        yield fd
    finally:
        os.close(fd)
