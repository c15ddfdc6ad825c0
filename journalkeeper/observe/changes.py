# SPDX-License-Identifier: LGPL-2.1-or-later
"""What may be different from the last look: told by the thread that reads inotify, taken by the one that looks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Final

MOST_NAMES: Final = 4096
"""With more names than this a look at everything is no dearer."""

Names = Mapping[str, frozenset[str]]
"""Names that changed, by directory."""


class Changes:
    """Names that changed since they were taken last; at first everything has."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._names: dict[str, set[str]] | None = None

    def add(self, directory: str, names: Iterable[str]) -> None:
        """These names in `directory` may lead to something else, or that has changed."""
        with self._lock:
            if self._names is not None:
                self._names.setdefault(directory, set()).update(names)
                if sum(map(len, self._names.values())) > MOST_NAMES:
                    self._names = None

    def everything(self) -> None:
        """What changed is not known: events were lost, or directories came or went."""
        with self._lock:
            self._names = None

    def take(self) -> Names | None:
        """The names, which are then forgotten; None: everything may have changed."""
        with self._lock:
            names, self._names = self._names, {}
        return None if names is None else {directory: frozenset(some) for directory, some in names.items()}
