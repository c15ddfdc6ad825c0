# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages that are logged once a day for as long as they stay the same."""

from __future__ import annotations

import time
from threading import Lock
from typing import Final, Protocol

from journalkeeper.model import Outcome
from journalkeeper.service.log import Event

SAY_AGAIN_S: Final = 86400.0
"""What goes on being wrong is logged once a day: every line that we log is one more flush to wake us."""


class Say(Protocol):
    """log.Log.say, or what stands in for it."""

    def __call__(
        self, priority: int, sentence: str, event: Event = Event.CONDITION, *, outcome: Outcome | None = None
    ) -> None: ...


class DailyLog:
    """The messages of a day by topic, so that none is logged twice.

    Our lines go into the journal that we watch: logged at every look, a line would bring about
    the flush that brings about the next look. For both threads: `say` does not wait, so a lock
    around it is short.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._lock = Lock()
        self._said: dict[str, tuple[str, float]] = {}

    def log(
        self, about: str, priority: int, sentence: str, *, same: str | None = None, outcome: Outcome | None = None
    ) -> None:
        """Log `sentence` unless this topic logged the same one, or the same key `same`, in the last 24 hours."""
        with self._lock:
            last, when_s = self._said.get(about, ("", 0.0))
            if last == (same or sentence) and time.monotonic() - when_s < SAY_AGAIN_S:
                return
            self._said[about] = same or sentence, time.monotonic()
            self._say(priority, sentence, outcome=outcome)

    def clear(self, about: str) -> bool:
        """The condition is over; True if something had been logged about it."""
        with self._lock:
            return self._said.pop(about, None) is not None

    def retain(self, about: frozenset[str]) -> None:
        """Forget all other topics."""
        with self._lock:
            self._said = {one: said for one, said in self._said.items() if one in about}
