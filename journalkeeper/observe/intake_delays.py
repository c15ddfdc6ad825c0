# SPDX-License-Identifier: LGPL-2.1-or-later
"""The intake delays of the newest messages, for their percentiles."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from journalkeeper.model import JournalFile
from journalkeeper.observe.intake import Intake, list_journald_files

KEPT: Final = 1000
ENTRIES: Final = 128
"""The largest number of entries that are read after each flush."""


class IntakeDelays:
    """The waits for journald of the newest KEPT messages."""

    def __init__(self) -> None:
        self._waits: deque[int] = deque(maxlen=KEPT)
        self._intake = Intake(ENTRIES)

    def look(self, files: Iterable[JournalFile]) -> list[int]:
        """Read the new entries of the active files, and return the waits of the newest KEPT messages in microseconds.

        For the worker thread, because it reads files.
        """
        self._waits.extend(self._intake.list_waits_us(list_journald_files(files)))
        return list(self._waits)
