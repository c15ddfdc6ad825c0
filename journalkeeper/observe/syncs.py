# SPDX-License-Identifier: LGPL-2.1-or-later
"""Syncs of an active file that did not come from journald's timer."""

from __future__ import annotations

import time
from typing import Final

from journalkeeper.btrfs import fiemap, writeback
from journalkeeper.journald import header, opening
from journalkeeper.model import State

SYNC_US: Final = 1_000
"""A longer wait for write-back shows that pages were being written. Without such pages the wait takes some 10 us."""


class Syncs:
    """A detector for syncs of the active file at `path` by others, such as journald's for a message of priority crit.

    Ask between two pieces of work, when our own pages are already on the disk.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._blocks: list[int | None] = []
        self._state = State.UNKNOWN

    def has_foreign_sync(self) -> bool:
        """Return whether the file was synced since the last call. False if the file cannot be read.

        The cause of a sync is not visible: call this while no flush by the timer is due, and after our own pages are on
        the disk. The call waits for pages in write-back; the commit of their sync may still follow.
        """
        try:
            with opening.open_path(self._path) as fd:
                began_ns = time.monotonic_ns()
                writeback.wait_writeback(fd, 0, 0)
                waited_us = (time.monotonic_ns() - began_ns) // 1000
                block, state = fiemap.locate_byte(fd, 0), header.read_state(fd)
        except OSError:
            return False  # rotated away: the next piece fails and reports it
        appended = (self._state, state) == (State.OFFLINE, State.ONLINE)
        moved = len(self._blocks) > 1 and self._blocks[-1] != block
        self._state, self._blocks = state, [*self._blocks[-1:], block]
        return waited_us > SYNC_US or appended or moved
