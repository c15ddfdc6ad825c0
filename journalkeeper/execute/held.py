# SPDX-License-Identifier: LGPL-2.1-or-later
"""A journal file held by descriptor, proven to be the one that the plan saw.

The one rule: no path is walked twice. The directory is opened once, the file from it
without following links, and everything after works on these two descriptors.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from journalkeeper import opening
from journalkeeper.journald import header
from journalkeeper.model import JournalFile, Kind, Reason, State


class Refused(Exception):  # noqa: N818 - it is an answer, not an error
    """The file is not what the plan saw, or somebody is at it."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)


class Held(NamedTuple):
    """The directory (`dir_fd`), the file in it (`fd`, read-only), and its name there."""

    dir_fd: int
    name: str
    fd: int
    status: os.stat_result


@contextmanager
def hold(file: JournalFile) -> Iterator[Held]:
    """Open `file` and look again at all that the plan was made from.

    Raises: Refused where it is no longer so; OSError: ENOENT vanished, ELOOP became a link.
    """
    directory, _, name = file.path.rpartition("/")
    dir_fd = os.open(directory or "/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fd = opening.open_file(name, dir_fd)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO}:
                raise Refused(Reason.CHANGED, "the name now leads to something else") from error
            raise
        try:
            status = _same(fd, file)
            yield Held(dir_fd, name, fd, status)
        finally:
            os.close(fd)
    finally:
        os.close(dir_fd)


def _same(fd: int, file: JournalFile) -> os.stat_result:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != (file.device, file.inode):
        raise Refused(Reason.CHANGED, "the name now leads to another file")
    if status.st_nlink != 1:
        reason = Reason.VANISHED if status.st_nlink == 0 else Reason.HARD_LINKED
        raise Refused(reason, f"the file has {status.st_nlink} names")
    if file.kind is Kind.ACTIVE:
        return status
    if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
        raise Refused(Reason.CHANGED, "the file was written to since it was looked at")
    if file.kind is Kind.ARCHIVED and header.state(fd) is not State.ARCHIVED:
        raise Refused(Reason.IN_USE, "the file's state is no longer archived")
    if being_written(fd):
        raise Refused(Reason.IN_USE, "a program has the file open for writing")
    return status


def being_written(fd: int) -> bool:
    """Whether anybody has the archive `fd` (read-only) open for writing, mapped, or as a loop device.

    Asked by taking a read lease and giving it back at once: the kernel refuses it with
    EAGAIN while the inode's write count is not zero. Never ask for an active file: journald
    opens those with O_NONBLOCK, and would be refused in the microseconds of the lease.
    Where the filesystem has no leases (EINVAL) the settle time alone has to do.

    Source: fcntl(2), F_SETLEASE; fs/locks.c, check_conflicting_open.
    """
    try:
        # A lease that is broken sends SIGIO, which would end us; SIGURG is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        if error.errno == errno.EINVAL:
            return False
        raise
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


@contextmanager
def writable(held: Held) -> Iterator[int]:
    """The same inode open for writing, too: through /proc, so that no name is walked again.

    Raises: OSError: EROFS, EPERM immutable, ETXTBSY.
    """
    fd = os.open(f"/proc/self/fd/{held.fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
