# SPDX-License-Identifier: LGPL-2.1-or-later
"""Errors, by their causes.

An error names the file, the failure and the remedy; the command line and the bus print it in one line. A vanished file
is an outcome, never an error here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from traceback import walk_tb
from typing import NamedTuple, TypeVar

T = TypeVar("T")

WORDS = 200
"""The number of characters of an exception that are shown, because its message may quote a stranger's text."""

FRAMES = 8
"""The number of innermost calls that are shown; the rest of a recursion is the same."""


class KeeperError(Exception):
    """An error with a message for the user, which is printed without a traceback."""


class UsageError(KeeperError):
    """The caller's request makes no sense: exit status 2."""


class ConfigError(KeeperError):
    """A configuration file has a wrong line.

    `problems` has one (file, line, key, permitted values) per wrong line; lines count from 1, and 0 is the whole file.
    `lines` has each as "FILE:LINE: KEY: VALUES", without line 0 or empty parts, and the message joins them by "; ".
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

    `number` is the errno, `path` the file. The message is "PATH: cannot DOING: ERROR", with nothing escaped.
    """

    def __init__(self, doing: str, path: str, number: int) -> None:
        self.path = path
        self.number = number
        super().__init__(f"{path}: cannot {doing}: {describe_errno(number)}")

    @classmethod
    def wrap(cls, doing: str, path: str, error: OSError) -> FileError:
        """Return a FileError with the errno of `error`, or 0 ("unknown error") if it has none."""
        return cls(doing, path, error.errno or 0)


class NotBtrfsError(KeeperError):
    """The directory or file `path`, with which the message begins, is not on btrfs."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"{path}: not on btrfs; journalkeeper works only on btrfs")


class InternalError(NamedTuple):
    """A turn that a bug of ours ended; `detail` is the exception and its traceback in one line."""

    detail: str


def describe_errno(number: int | None) -> str:
    """Return the text of an OSError: strerror(3)'s, and "unknown error" without an errno (0 would be "Success")."""
    return os.strerror(number) if number else "unknown error"


def catch_errors(turn: Callable[[], T]) -> T | InternalError:
    """Call `turn`, the work on one file or event. Return its result, or an InternalError that describes the exception.

    This is the one place that catches every Exception, also a KeeperError, so that a bug costs only one file its turn.
    """
    try:
        return turn()
    except Exception as error:  # noqa: BLE001 - one file's failure never ends a run, and no input ends the service
        return InternalError(_describe_with_calls(error))


def run_bookkeeping(task: Callable[[], object], prefix: str = "") -> list[str]:
    """Call `task`. Return [], or a notice of `prefix` and the error's text if `task` raises a KeeperError."""
    try:
        task()
    except KeeperError as error:
        return [f"{prefix}{error}"]
    return []


def _describe_with_calls(error: Exception) -> str:
    """Return the first WORDS characters of type and message, and FRAMES calls from the innermost up, in one line."""
    words = " ".join(f"{type(error).__name__}: {error}".split())
    calls = [f"{one.f_code.co_name} ({one.f_code.co_filename}:{line})" for one, line in walk_tb(error.__traceback__)]
    return f"{words[:WORDS]} in {', called from '.join(calls[: -FRAMES - 1 : -1])}"
