# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a killed run left behind, removed by the next.

Only our own names, and only while we hold the lock. A temporary file is a copy
that was not exchanged yet or an original that was: in both cases the journal's own name
leads to a whole file (execute.rewrite), so nothing is lost with it. A journal file has a note
of the mtime that its work had moved.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from journalkeeper.btrfs import mtime_note
from journalkeeper.journald import opening
from journalkeeper.journald.names import classify, is_leftover


def remove(paths: Iterable[str]) -> list[str]:
    """Unlink these temporary files, and follow the notes of these journal files; a sentence about each for the report.

    Raises: ValueError for what is neither.
    """
    said: list[str] = []
    for path in paths:
        directory, _, name = path.rpartition("/")
        if not is_leftover(name) and classify(name) is None:
            raise ValueError(f"{path} is not a temporary file of ours")
        try:
            with opening.open_directory(directory) as fd:
                what = _unlink(name, fd) if is_leftover(name) else _follow(name, fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            said.append(f"{path}: left by a killed run, cannot be removed: {os.strerror(error.errno or 0)}")
        else:
            said.append(f"{path}: {what}")
    return said


def _unlink(name: str, directory: int) -> str:
    os.unlink(name, dir_fd=directory)
    return "left by a killed run, removed"


def _follow(name: str, directory: int) -> str:
    with opening.hold_open(name, directory) as fd:
        moved = mtime_note.follow(fd)
    return "its time was moved by a killed run, put back" if moved else "a note left by a killed run, removed"
