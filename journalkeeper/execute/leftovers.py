# SPDX-License-Identifier: LGPL-2.1-or-later
"""Removal of temporary files and notes that a killed run left behind.

It touches only our own names, and only under the lock. A temporary file is a copy before its exchange, or an original
after it. In both cases the journal's name leads to a whole file (execute.rewrite), so nothing is lost. A note in a
journal file contains the mtime that the killed run changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from journalkeeper.btrfs import mtime_note
from journalkeeper.journald import opening
from journalkeeper.journald.names import classify, is_leftover


def remove(paths: Iterable[str]) -> list[str]:
    """Remove the temporary files and follow the mtime notes in `paths`. Return a sentence about each for the report.

    Raises: ValueError for a path that is neither a temporary file of ours nor a journal file.
    """
    said: list[str] = []
    for path in paths:
        directory, _, name = path.rpartition("/")
        if not is_leftover(name) and classify(name) is None:
            raise ValueError(f"{path} is neither a temporary file of journalkeeper nor a journal file")
        try:
            with opening.open_directory(directory) as fd:
                what = _unlink(name, fd) if is_leftover(name) else _follow(name, fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            said.append(f"{path}: cannot remove what a killed run left behind: {os.strerror(error.errno or 0)}")
        else:
            said.append(f"{path}: {what}")
    return said


def _unlink(name: str, directory: int) -> str:
    os.unlink(name, dir_fd=directory)
    return "temporary file of a killed run removed"


def _follow(name: str, directory: int) -> str:
    with opening.hold_open(name, directory) as fd:
        moved = mtime_note.follow(fd)
    return "modification time restored after a killed run" if moved else "note of a killed run removed"
