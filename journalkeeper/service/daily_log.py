# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages that are logged once a day for as long as they stay the same."""

from __future__ import annotations

import time
from threading import Lock
from typing import Final, Protocol

from journalkeeper.model import Outcome
from journalkeeper.service.log import Event

SAY_AGAIN_S: Final = 86400.0
"""What goes on being wrong is said once a day: every line that we log is one more flush to wake us."""


class Say(Protocol):
    """log.Log.say, or what stands in for it."""

    def __call__(
        self, priority: int, sentence: str, event: Event = Event.CONDITION, *, outcome: Outcome | None = None
    ) -> None: ...


class DailyLog:
    """What was said already, so that nothing is said twice in a day.

    Our lines go into the journal that we watch: said at every cycle, a line would bring about
    the flush that brings about the next cycle. For both threads: `say` does not wait, so a lock
    around it is short.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._lock = Lock()
        self._said: dict[str, tuple[str, float]] = {}

    def log(
        self, about: str, priority: int, sentence: str, *, same: str | None = None, outcome: Outcome | None = None
    ) -> None:
        """Say `sentence` unless it, or what it comes to (`same`), is what was said `about` the thing last."""
        with self._lock:
            last, when_s = self._said.get(about, ("", 0.0))
            if last == (same or sentence) and time.monotonic() - when_s < SAY_AGAIN_S:
                return
            self._said[about] = same or sentence, time.monotonic()
            self._say(priority, sentence, outcome=outcome)

    def clear(self, about: str) -> bool:
        """It is over; True if something had been said about it."""
        with self._lock:
            return self._said.pop(about, None) is not None

    def retain(self, about: frozenset[str]) -> None:
        """Forget whatever else was talked about."""
        with self._lock:
            self._said = {one: said for one, said in self._said.items() if one in about}
