# SPDX-License-Identifier: LGPL-2.1-or-later
"""Errors, by their causes.

An error names the file, the failure and the remedy; the command line and the bus print it in one line. A vanished file
is an outcome, never an error here.
"""

from __future__ import annotations

import os


class KeeperError(Exception):
    """An error with a message for the user, which is printed without a traceback."""


class UsageError(KeeperError):
    """The caller's request makes no sense: exit status 2."""


class ConfigError(KeeperError):
    """A configuration file has a wrong line.

    `problems` has one (file, line, key, permitted values) per wrong line; lines count from 1, and 0 is the whole file.
    `lines` has the same as sentences.
    """

    def __init__(self, problems: tuple[tuple[str, int, str, str], ...]) -> None:
        self.problems = problems
        self.lines = tuple(
            ": ".join(part for part in (f"{file}:{line}" if line else file, key, what) if part)
            for file, line, key, what in problems
        )
        super().__init__("; ".join(self.lines))


class NeedsRootError(KeeperError):
    """The kernel denied an operation that only root may do."""


class BusyError(KeeperError):
    """Another journalkeeper is executing a plan."""


class NoSuchJobError(KeeperError):
    """The service has no such job, or has forgotten it."""


class FileError(KeeperError):
    """A system call on a file failed.

    `number` is the errno, `path` the file, `doing` the words for the operation.
    """

    def __init__(self, doing: str, path: str, number: int) -> None:
        self.doing = doing
        self.path = path
        self.number = number
        super().__init__(f"{path}: cannot {doing}: {os.strerror(number)}")

    @classmethod
    def wrap(cls, doing: str, path: str, error: OSError) -> FileError:
        """Return a FileError with the errno of `error`."""
        return cls(doing, path, error.errno or 0)


class NotBtrfsError(KeeperError):
    """The directory or file is on another filesystem."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path}: not on btrfs; journalkeeper works only on btrfs")
