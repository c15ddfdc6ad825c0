# SPDX-License-Identifier: LGPL-2.1-or-later
"""What wakes the loop of the service."""

from __future__ import annotations

import asyncio


class Wakeups:
    """`look`: a look is due, `refresh`: and everything is to be watched anew. Both are seen when `wait` returns."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self.look = self.refresh = True

    def rescan(self) -> None:
        """Watch everything anew, and look, soon."""
        self.refresh = True
        self.look_soon()

    def look_soon(self) -> None:
        """Look, soon."""
        self.look = True
        self.wake()

    def wake(self) -> None:
        """End a `wait`."""
        self._woken.set()

    async def wait(self, length_s: float | None) -> None:
        """Until something wakes us, for so long at the most; None: however long that takes."""
        try:
            await asyncio.wait_for(self._woken.wait(), length_s)
        except TimeoutError:
            return

    def clear(self) -> None:
        """What woke us is known."""
        self._woken.clear()
