# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long messages wait for journald, over the last ones that were looked at."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from journalkeeper.model import JournalFile
from journalkeeper.observe.intake import Intake, written_by_journald

KEPT: Final = 1000
ENTRIES: Final = 128
"""Looked at after each flush, at the most."""


class IntakeDelays:
    """The waits of the newest KEPT messages."""

    def __init__(self) -> None:
        self._waits: deque[int] = deque(maxlen=KEPT)
        self._intake = Intake(ENTRIES)

    def look(self, files: Iterable[JournalFile]) -> list[int]:
        """Take in what came since the last look; all that are kept, in microseconds.

        For the thread that works: it reads the active ones of `files`.
        """
        self._waits.extend(self._intake.waits_us(written_by_journald(files)))
        return list(self._waits)
