# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keep the log short: log each message once a day, and each unexpected traceback once."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from threading import Lock
from typing import Final, Protocol

from journalkeeper.model import Outcome
from journalkeeper.service.log import Event

SAY_AGAIN_S: Final = 86400.0
"""A condition that lasts is logged once a day, because every logged line is one more flush to wake up for."""


PLACES_MOST: Final = 100
"""The number of places of unexpected exceptions that are remembered."""


class Say(Protocol):
    """The signature of log.Log.say."""

    def __call__(
        self, priority: int, sentence: str, event: Event = Event.CONDITION, *, outcome: Outcome | None = None
    ) -> None: ...


class DailyLog:
    """The messages of a day by topic, so that none is logged twice.

    The service's own lines go into the journal that it watches: a line at every look would cause the flush that causes
    the next look. Both threads use this object; `say` does not block, so its lock is short.
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
        """Forget the topic of a condition that is over. Return True if it had been logged."""
        with self._lock:
            return self._said.pop(about, None) is not None

    def retain(self, about: frozenset[str]) -> None:
        """Forget all other topics."""
        with self._lock:
            self._said = {one: said for one, said in self._said.items() if one in about}


class Mistakes:
    """Logs unexpected exceptions by `log`, the traceback of each place once."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._places: set[str] = set()

    def complain(self, what: str, error: Exception) -> None:
        """Log `error`, which caused `what`, with its traceback. Later errors from the same place are not logged."""
        place = f"{type(error).__name__} {traceback.extract_tb(error.__traceback__)[-1:]}"
        if place not in self._places and len(self._places) < PLACES_MOST:
            self._places.add(place)
            trace = "".join(traceback.format_exception(error)).rstrip()
            self._log(f"{what}: bug in journalkeeper, please report it:\n{trace}")
