# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long messages wait until journald takes them.

The intake delay comes from journald's read_newest entries: those from /dev/log and the native
socket bear the sender's time beside journald's own, so what a stall did is known when it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from journalkeeper.journald import layout, opening
from journalkeeper.journald.entries import Entry, read_newest
from journalkeeper.model import JournalFile, Kind

ENTRIES: Final = 16
"""How many of the read_newest entries are read at a time."""


class Intake:
    """How long messages waited for journald, by the read_newest `entries` of active files.

    Nothing stays open between two looks: a file that is deleted must not keep its space. Of a file that
    was not among the last ones nothing counts that came before: it was not our doing.
    """

    def __init__(self, entries: int = ENTRIES) -> None:
        self._entries = entries
        self._seen: dict[str, tuple[int, int]] = {}
        """Of each file its inode and the number of its read_newest entry."""

    def worst_us(self, paths: Iterable[str]) -> int | None:
        """The longest wait of the entries in `paths` that came since the last call, of at most `entries`; None
        without any."""
        return max(self.waits_us(paths), default=None)

    def waits_us(self, paths: Iterable[str]) -> list[int]:
        """The waits of the entries in `paths` that came since the last call, of at most `entries`."""
        before, self._seen = self._seen, {}
        came = [entry for path in paths for entry in self._new(path, before.get(path)) if path in before]
        latest = sorted(came, key=lambda entry: entry.realtime_us)[-self._entries :]
        waits = [entry.realtime_us - entry.source_us for entry in latest if entry.source_us is not None]
        return [wait for wait in waits if wait >= 0]

    def _new(self, path: str, before: tuple[int, int] | None) -> list[Entry]:
        """The entries of a file that were not there `before`; none where it cannot be read."""
        directory, _, name = path.rpartition("/")
        seen, seqnum = before or (0, 0)
        try:
            with opening.open_directory(directory) as dir_fd, opening.hold_open(name, dir_fd) as fd:
                inode = os.fstat(fd).st_ino
                behind = seqnum if seen == inode else 0
                came = read_newest(fd, behind, self._entries)
        except (OSError, ValueError):  # rotated away, or being written just now: the next call reads what there is then
            if before:
                self._seen[path] = before
            return []
        self._seen[path] = inode, came[0].seqnum if came else behind
        return came


def written_by_journald(files: Iterable[JournalFile]) -> list[str]:
    """The paths of the active files of journalds: not of one in remote/, which its owner writes, under any name."""
    active = (file for file in files if file.kind is Kind.ACTIVE and file.problem is None)
    return [file.path for file in active if file.instance != layout.REMOTE]
