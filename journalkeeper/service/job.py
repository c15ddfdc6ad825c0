# SPDX-License-Identifier: LGPL-2.1-or-later
"""One job: work that somebody asked for."""

from __future__ import annotations

from typing import Final, NamedTuple

from journalkeeper.model import Request
from journalkeeper.model.progress import Progress

NONE_YET: Final = Progress(0, 0, "", 0, 0)


class Job:
    """One job; `request` is what was asked for. Changed in the event loop only; `canceled` is read by the worker."""

    def __init__(self, number: int, request: Request) -> None:
        self.number = number
        self.request = request
        self.progress = NONE_YET
        self.running = False
        self.canceled = False

    @property
    def state(self) -> str:
        """queued, running or canceling."""
        if self.canceled:
            return "canceling"
        return "running" if self.running else "queued"


class Ended(NamedTuple):
    """What became of a job: `result` is done, failed or canceled; the document, or the error instead."""

    result: str
    document: str = ""
    error: Exception | None = None
