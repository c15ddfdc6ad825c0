# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state directory, and the lock in it that keeps two executors apart.

The kernel holds the lock and drops it when its holder dies, however it dies. The file contains the holder's pid for
people only. A lock is valid only while its file is the one at its path, so a long-lived holder checks it again
(`Lock.is_held`).

The directory has mode 0750, because read access suffices for a lock. A user with read access to
the history could also block the service (flock here, fcntl locks in SQLite).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from typing import Self

from journalkeeper.model.errors import BusyError, FileError, KeeperError, NeedsRootError

DEFAULT = "/var/lib/journalkeeper"
MODE = 0o750
DAEMON_LOCK = "daemon.lock"
"""The service holds this lock while it runs, so that only one service runs."""


def default_directory() -> str:
    """Return the first directory of $STATE_DIRECTORY (systemd.exec(5), StateDirectory=), or DEFAULT without one."""
    return os.environ.get("STATE_DIRECTORY", "").split(":")[0] or DEFAULT


def wrap_error(doing: str, path: str, error: OSError) -> KeeperError:
    """Return NeedsRootError if a user other than root lacks the permission for the task `doing`, else FileError."""
    if error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0:
        return NeedsRootError(f"{path}: cannot {doing}: {os.strerror(error.errno)}")
    return FileError.wrap(doing, path, error)


def make_directory(directory: str | os.PathLike[str]) -> None:
    """Create the state directory with mode 0750, and all directories above it. Existing directories stay as they are.

    Raises: NeedsRootError without the permission; FileError otherwise.
    """
    try:
        os.makedirs(directory, MODE, exist_ok=True)
    except OSError as error:
        raise wrap_error("make the state directory", os.fspath(directory), error) from error


class Lock:
    """The lock `name` in `directory`, by default the lock of the process that executes plans. Use it with `with`.

    It is held until the `with` block ends or the process dies. Directory and file are created if necessary, and stay.
    If the file is replaced before it is locked, the new one is locked.

    Raises: when the block is entered: BusyError with the holder's pid if another process holds it (EWOULDBLOCK);
    NeedsRootError and FileError as in `make_directory`. Source: flock(2).
    """

    def __init__(self, directory: str | os.PathLike[str], name: str = "lock") -> None:
        self._directory = directory
        self._path = os.path.join(directory, name)
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        while not self.is_held():  # the file can be replaced or removed before it is locked
            self.__exit__()
            make_directory(self._directory)
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise wrap_error("open the lock", self._path, error) from error
            try:
                _lock_file(self._descriptor, self._path)
            except KeeperError:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def is_held(self) -> bool:
        """Return whether the lock is still valid: in the block, until its file or directory is removed or replaced."""
        with suppress(OSError):  # gone, or no longer to be reached
            there = os.stat(self._path, follow_symlinks=False)
            return self._descriptor is not None and os.path.samestat(there, os.fstat(self._descriptor))
        return False

    def renew(self) -> None:
        """Take the lock at the path again if it is no longer valid. Raises: as at the entry of the `with` block."""
        self.__enter__()


def _lock_file(descriptor: int, path: str) -> None:
    """Lock the file at once, and store this process's id in it. Raises: BusyError; as `wrap_error`."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = b"%d\n" % os.getpid()
        if os.pread(descriptor, 64, 0) != holder:  # the service takes it at each cycle
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder, 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).strip()
        who = f"process {holder.decode()}" if holder.isdigit() else "another process"
        raise BusyError(f"journalkeeper is already at work: {who} holds {path}; wait until it ends") from None
    except OSError as error:
        raise wrap_error("write the holder's pid", path, error) from error


def require_regular(path: str) -> None:
    """Raise KeeperError if `path` exists, links followed, and is no regular file: a FIFO can hang. Raises: OSError."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise KeeperError(f"{path}: not a regular file; remove it")
