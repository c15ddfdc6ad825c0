# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long messages wait until journald takes them.

The intake delay comes from journald's newest entries: those from /dev/log and the native
socket bear the sender's time beside journald's own, so what a stall did is known when it ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

from systemd.journal import Reader

from journalkeeper.journald.journalctl import wait_us

ENTRIES: Final = 16
"""How many of the newest entries are read at a time, some 0.1 ms each."""


class Intake:
    """How long messages waited for journald, by the newest `entries` of its active files `paths`."""

    def __init__(self, paths: Iterable[str], entries: int = ENTRIES) -> None:
        self._paths = list(paths)
        self._entries = entries
        self._inodes: list[int] = []
        self._reader: Reader | None = None
        self._cursor = ""

    def close(self) -> None:
        """Let go of the files."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def worst_us(self) -> int | None:
        """The longest wait of the entries that came since the last call, of at most `entries`; None without any."""
        return max(self.waits_us(), default=None)

    def waits_us(self) -> list[int]:
        """The waits of the entries that came since the last call, of at most `entries`."""
        if not self._paths:
            return []
        try:
            entries = self._newest(self._opened())
        except OSError:
            # Rotated away, or being written just now: the next call opens what there is then.
            self.close()
            return []
        first, self._cursor = not self._cursor, entries[0]["__CURSOR"] if entries else self._cursor
        waits = [wait_us(entry) for entry in entries]
        # What came before the first call was not our doing.
        return [] if first else [wait for wait in waits if wait is not None and wait >= 0]

    def _newest(self, reader: Reader) -> list[dict[str, Any]]:
        """The entries behind our cursor, the newest first."""
        entries: list[dict[str, Any]] = []
        reader.seek_tail()
        while len(entries) < self._entries:
            entry = reader.get_previous()
            if not entry or entry["__CURSOR"] == self._cursor:
                break
            entries.append(entry)
        return entries

    def _opened(self) -> Reader:
        """A reader of what the names lead to now: after a rotation that is another file."""
        inodes = [os.stat(path).st_ino for path in self._paths]
        if inodes != self._inodes:
            self.close()
            self._inodes = inodes
        if self._reader is None:
            times = ("_SOURCE_REALTIME_TIMESTAMP", "__REALTIME_TIMESTAMP")
            self._reader = Reader(files=self._paths, converters=dict.fromkeys(times, int))
        return self._reader
