# SPDX-License-Identifier: LGPL-2.1-or-later
"""A journal file held by descriptor, proven to be the one that the plan saw.

No path is walked twice. The directory is opened once, the file from it
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
from typing import Final, NamedTuple

from journalkeeper.btrfs import fiemap, inode
from journalkeeper.journald import header, opening
from journalkeeper.model import JournalFile, Kind, Reason, Result, State

FIXED: Final = inode.FS_IMMUTABLE_FL | inode.FS_APPEND_FL
"""Flags under which the kernel lets nobody change a file or take its name."""

BLOCK_DEVICES: Final = "/sys/block"


class Refused(Exception):  # noqa: N818 - it is an answer, not an error
    """It must not be done, or gone on with: the file is not what the plan saw, somebody is at it, time is up."""

    result = Result.SKIPPED

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)


class Failed(Refused):
    """It was tried, and what should be so is not."""

    result = Result.FAILED


class VerifiedFile(NamedTuple):
    """The directory (`dir_fd`), the file in it (`fd`, read-only), its name there, and `file` as the plan saw it."""

    dir_fd: int
    name: str
    fd: int
    status: os.stat_result
    file: JournalFile


@contextmanager
def hold(file: JournalFile, *, replacing: bool = False, moving: bool = True) -> Iterator[VerifiedFile]:
    """Open `file` and look again at all that the plan was made from.

    `replacing` if another inode will take its place, `moving` if its data will be written elsewhere.

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
            status = _same(fd, file, replacing=replacing, moving=moving)
            yield VerifiedFile(dir_fd, name, fd, status, file)
        finally:
            os.close(fd)
    finally:
        os.close(dir_fd)


def _same(fd: int, file: JournalFile, *, replacing: bool, moving: bool) -> os.stat_result:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != (file.device, file.inode):
        raise Refused(Reason.CHANGED, "the name now leads to another file")
    if status.st_nlink != 1:
        reason = Reason.VANISHED if status.st_nlink == 0 else Reason.HARD_LINKED
        raise Refused(reason, f"the file has {status.st_nlink} names")
    if inode.get_flags(fd) & FIXED:
        raise Refused(Reason.READ_ONLY, "the file is immutable or append-only (chattr +i, +a)")
    if moving and not file.extents.shared_bytes and fiemap.is_shared_at(fd, 0):
        # Neither a snapshot nor its deletion shows in a file's stat.
        raise Refused(Reason.SHARED, "a snapshot or reflink shares the file since it was looked at")
    if file.kind is Kind.ACTIVE:
        return status
    if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
        raise Refused(Reason.CHANGED, "the file was written to since it was looked at")
    if file.kind is Kind.ARCHIVED and header.read_state(fd) is not State.ARCHIVED:
        raise Refused(Reason.IN_USE, "the file's state is no longer archived")
    if being_written(fd) and (replacing or not only_kept_open(file)):
        raise Refused(Reason.IN_USE, "a program has the file open for writing")
    return status


def only_kept_open(file: JournalFile) -> bool:
    """Whether the one who has this file open for writing is done with it, so that it may be changed in place.

    journald keeps what it archived open and mapped until its next rotation, which can be
    weeks away, but appends to no file in state ARCHIVED: only holding it open is left of it
    (systemd 252 to 262: process_deferred_closes(), journal_file_set_online()). Of a loop
    device one cannot say that.
    """
    if file.kind is not Kind.ARCHIVED:
        return False
    name = os.path.basename(file.path)
    return not any(os.path.basename(path) == name for path in loop_files())


def loop_files() -> Iterator[str]:
    """The files behind loop devices, by the paths that their owners know them by. Source: losetup(8)."""
    for device in os.listdir(BLOCK_DEVICES):
        if device.startswith("loop"):
            try:
                path = f"{BLOCK_DEVICES}/{device}/loop/backing_file"
                with open(path, encoding="utf-8", errors="surrogateescape") as file:
                    yield file.read().rstrip("\n")
            except FileNotFoundError:
                continue  # nothing is attached to it


def being_written(fd: int) -> bool:
    """Whether anybody has the archive `fd` (read-only) open for writing, mapped, or as a loop device.

    Asked by taking a read lease and giving it back at once: the kernel refuses it with
    EAGAIN while the inode's write count is not zero. Never ask for an active file: journald
    opens those with O_NONBLOCK, and would be refused in the microseconds of the lease.
    Where the filesystem has no leases (EINVAL) the settle time alone has to do; who may not
    ask, being neither the owner nor with CAP_LEASE (EACCES), has to take it for written.

    Source: fcntl(2), F_SETLEASE; fs/locks.c, check_conflicting_open.
    """
    try:
        # A lease that is broken sends SIGIO, which would end us; SIGURG is ignored by default.
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


@contextmanager
def writable(held: VerifiedFile) -> Iterator[int]:
    """The same inode open for writing, too: through /proc, so that no name is walked again.

    Without O_NONBLOCK whoever has a lease on the file would keep us waiting for /proc/sys/fs/lease-break-time.

    Raises: Refused for a lease of somebody's; OSError: EROFS, EPERM immutable, ETXTBSY.
    """
    try:
        fd = os.open(f"/proc/self/fd/{held.fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except BlockingIOError as error:
        raise Refused(Reason.IN_USE, "a program has a lease on the file") from error
    try:
        yield fd
    finally:
        os.close(fd)
