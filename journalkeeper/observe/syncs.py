# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether somebody syncs an active file besides journald's timer."""

from __future__ import annotations

import time
from typing import Final

from journalkeeper.btrfs import fiemap, writeback
from journalkeeper.journald import header, opening
from journalkeeper.model import State

SYNC_US: Final = 1_000
"""Waiting for the write-back of a file of which nothing is being written takes some 10 us."""


class Syncs:
    """Whether somebody syncs the active file at `path`, as journald does at once for a message of priority crit.

    Ask between two pieces: what we rewrote is on the disk then, so pages that are being written
    are somebody else's, and so is a first block that lies elsewhere, unless by the first piece.
    The sync that an append to an OFFLINE file begins with writes nothing, but leaves it ONLINE.
    """

    def __init__(self, path: str) -> None:
        self._directory, _, self._name = path.rpartition("/")
        self._blocks: list[int | None] = []
        self._state = State.UNKNOWN

    def seen(self) -> bool:
        """Whether there was one since this was asked last, or is; then its data is written, and a commit may follow."""
        try:
            with opening.open_directory(self._directory) as dir_fd, opening.hold_open(self._name, dir_fd) as fd:
                began_ns = time.monotonic_ns()
                writeback.wait_writeback(fd, 0, 0)
                waited_us = (time.monotonic_ns() - began_ns) // 1000
                block, state = fiemap.locate_byte(fd, 0), header.read_state(fd)
        except OSError:
            return False  # rotated away: the piece itself will say so
        appended = (self._state, state) == (State.OFFLINE, State.ONLINE)
        moved = len(self._blocks) > 1 and self._blocks[-1] != block
        self._state, self._blocks = state, [*self._blocks[-1:], block]
        return waited_us > SYNC_US or appended or moved
