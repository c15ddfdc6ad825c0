# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state directory: making it, and the lock in it that keeps two executors apart.

The kernel holds the lock and drops it when the holder dies, however it
dies; the file's content, the holder's pid, is only for people. A lock is worth something
only while its file is the one at its path: who holds one for long asks again (`Lock.ours`).

The directory is made with mode 0750: whoever can open a file may lock it, so a stranger
who could read the record could also hold it shut (flock here, fcntl locks in SQLite).
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from journalkeeper.model.errors import BusyError, FileError, KeeperError, NeedsRootError

DEFAULT = "/var/lib/journalkeeper"
MODE = 0o750
LOCK_NAME = "lock"
DAEMON_LOCK = "daemon.lock"
"""Held by the service for as long as it runs: there is one."""


def default_directory() -> str:
    """$STATE_DIRECTORY, the first of several (systemd.exec(5), StateDirectory=), or /var/lib/journalkeeper."""
    return os.environ.get("STATE_DIRECTORY", "").split(":")[0] or DEFAULT


def refused(doing: str, path: str, error: OSError) -> KeeperError:
    """The error to raise for what the kernel refused in the state directory."""
    if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
        return NeedsRootError(f"{path}: cannot {doing}: {os.strerror(error.errno)}")
    return FileError.wrap(doing, path, error)


def make(directory: str | os.PathLike[str]) -> None:
    """Make the state directory unless it is there.

    Raises: NeedsRootError without the right to (EACCES, EPERM); FileError otherwise
        (EROFS read-only, ENOSPC full, EEXIST or ENOTDIR where a file is in the way).
    """
    try:
        os.makedirs(directory, MODE, exist_ok=True)
    except OSError as error:
        raise refused("make the state directory", os.fspath(directory), error) from error


class Lock:
    """Held by the one that executes plans, or that `name` says, until the block ends or the process dies."""

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, name)
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        self._descriptor = _taken(self._directory, self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def ours(self) -> bool:
        """Whether nobody else can hold it: false once the file, or the directory, was removed or replaced."""
        return self._descriptor is not None and _leads_to(self._path, self._descriptor)

    def keep(self) -> None:
        """Take the lock that is at the path now, if that is no longer ours.

        Raises: as `lock`; BusyError if somebody else has taken it meanwhile.
        """
        if not self.ours():
            self.__exit__(None, None, None)
            self.__enter__()


def lock(directory: str | os.PathLike[str], name: str = LOCK_NAME) -> Lock:
    """Be the one that executes plans, or that `name` says; to be used by `with`.

    Raises, when the block is entered: BusyError with the holder's pid if somebody else is
        (EWOULDBLOCK); NeedsRootError and FileError as in `make`. Source: flock(2).
    """
    return Lock(directory, name)


def _taken(directory: str | os.PathLike[str], path: str) -> int:
    """A descriptor that holds the lock on the file at `path`, which is made if need be."""
    while True:
        make(directory)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise refused("open the lock", path, error) from error
        with ExitStack() as undo:
            undo.callback(os.close, descriptor)
            _take(descriptor, path)
            if _leads_to(path, descriptor):
                undo.pop_all()
                return descriptor


def _leads_to(path: str, descriptor: int) -> bool:
    """Whether the file at `path` is the open one."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:  # gone, or no longer to be reached
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _take(descriptor: int, path: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = b"%d\n" % os.getpid()
        if os.pread(descriptor, 64, 0) != holder:  # the service takes it at each cycle
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder, 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).strip()
        who = f"process {holder.decode()}" if holder.isdigit() else "another process"
        raise BusyError(f"journalkeeper is at work already: {who} holds {path}; wait for it to end") from None
    except OSError as error:
        raise refused("write the holder's pid", path, error) from error
