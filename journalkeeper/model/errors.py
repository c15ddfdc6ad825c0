# SPDX-License-Identifier: LGPL-2.1-or-later
"""Errors, by whose fault they are.

An error says what happened, to which file, and what to do next; the
command line and the bus turn it into one line. A vanished file is an outcome, never an error here.
"""

from __future__ import annotations

import os


class KeeperError(Exception):
    """Anything that journalkeeper says instead of a traceback."""


class UsageError(KeeperError):
    """The caller asked for something that makes no sense: exit status 2."""


class ConfigError(KeeperError):
    """A configuration file has a wrong line.

    `problems` has one (file, line, key, what is allowed) per wrong line, line counted from 1, 0 for the whole file;
    `lines` the same as sentences.
    """

    def __init__(self, problems: tuple[tuple[str, int, str, str], ...]) -> None:
        self.problems = problems
        self.lines = tuple(
            ": ".join(part for part in (f"{file}:{line}" if line else file, key, what) if part)
            for file, line, key, what in problems
        )
        super().__init__("; ".join(self.lines))


class NeedsRootError(KeeperError):
    """The kernel refused what only root may do."""


class BusyError(KeeperError):
    """Another journalkeeper is executing a plan."""


class NoSuchJobError(KeeperError):
    """The service has no such job, or not any more."""


class FileError(KeeperError):
    """The kernel refused something on one file.

    `number` is the errno, `path` the file, `doing` the words for what was tried.
    """

    def __init__(self, doing: str, path: str, number: int) -> None:
        self.doing = doing
        self.path = path
        self.number = number
        super().__init__(f"{path}: cannot {doing}: {os.strerror(number)}")

    @classmethod
    def wrap(cls, doing: str, path: str, error: OSError) -> FileError:
        """The same error with its file's name and its errno kept."""
        return cls(doing, path, error.errno or 0)


class NotBtrfsError(KeeperError):
    """The directory or file is on another filesystem."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path}: not on btrfs; journalkeeper has nothing to mend on other filesystems")
