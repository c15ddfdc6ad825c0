# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state directory: making it, and the lock in it that keeps two executors apart.

The one rule: the kernel holds the lock and drops it when the holder dies, however it
dies; the file's content, the holder's pid, is only for people.

The directory is made with mode 0750: whoever can open a file may lock it, so a stranger
who could read the record could also hold it shut (flock here, fcntl locks in SQLite).
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from journalkeeper.errors import BusyError, FileError, KeeperError, NeedsRootError

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
    if error.errno in (errno.EACCES, errno.EPERM):
        return NeedsRootError(f"{path}: cannot {doing}: {os.strerror(error.errno)}; run it as root")
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


@contextmanager
def lock(directory: str | os.PathLike[str], name: str = LOCK_NAME) -> Iterator[None]:
    """Be the one that executes plans, or that `name` says, until the block ends or the process dies.

    Raises: BusyError with the holder's pid if somebody else is (EWOULDBLOCK); NeedsRootError
        and FileError as in `make`. Source: flock(2).
    """
    make(directory)
    path = os.path.join(directory, name)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise refused("open the lock", path, error) from error
    try:
        _take(descriptor, path)
        yield
    finally:
        os.close(descriptor)


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
