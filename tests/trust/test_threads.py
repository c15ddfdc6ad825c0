# SPDX-License-Identifier: LGPL-2.1-or-later
"""The worker and the event loop at the same objects, at the worst moment.

tests/trust/soak.py waits for such moments. These tests make them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from journalkeeper.execute.pace import PieceTimes


class Interrupted(dict[Any, Any]):
    """A dictionary in whose reading, once, another thread has its turn."""

    during: Callable[[], object] | None = None

    def _interrupt(self) -> None:
        during, self.during = self.during, None
        if during is not None:
            during()

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self._interrupt()
        return found

    def items(self) -> Any:
        for item in super().items():
            self._interrupt()
            yield item


def test_the_loop_asks_for_the_longest_piece_while_the_worker_adds_the_first_of_a_directory() -> None:
    """It ended the service: RuntimeError, dictionary changed size during iteration."""
    times = PieceTimes()
    pieces = Interrupted({"/a": (5, 0.0)})
    times._pieces = pieces
    pieces.during = lambda: times.add("/b", 7)
    times.get_longest_us()
    assert times.get_longest_us("/b") == 7
