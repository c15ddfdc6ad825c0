# SPDX-License-Identifier: LGPL-2.1-or-later
"""Exceptions that nobody foresaw: the traceback of each is logged once."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final

MOST: Final = 100
"""Places of exceptions that are remembered."""


class Mistakes:
    """Logs by `log`."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._places: set[str] = set()

    def complain(self, what: str, error: Exception) -> None:
        """Log `error`, by which `what` came about, with its traceback, the first time."""
        place = f"{type(error).__name__} {traceback.extract_tb(error.__traceback__)[-1:]}"
        if place not in self._places and len(self._places) < MOST:
            self._places.add(place)
            trace = "".join(traceback.format_exception(error)).rstrip()
            self._log(f"{what}, by a mistake in journalkeeper:\n{trace}")
