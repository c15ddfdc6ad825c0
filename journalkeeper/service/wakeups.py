# SPDX-License-Identifier: LGPL-2.1-or-later
"""The reasons for which the event loop of the service wakes up."""

from __future__ import annotations

import asyncio


class Wakeups:
    """`look` is True if a look is due, `refresh` if all watches must be made again. Read both when `wait` returns."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self.look = self.refresh = True

    def rescan(self) -> None:
        """Request new watches and a look at everything."""
        self.refresh = True
        self.look_soon()

    def look_soon(self) -> None:
        """Request a look."""
        self.look = True
        self.wake()

    def wake(self) -> None:
        """End a `wait`."""
        self._woken.set()

    async def wait(self, length_s: float | None) -> None:
        """Wait until `wake` is called, for at most `length_s`; None for no limit."""
        try:
            await asyncio.wait_for(self._woken.wait(), length_s)
        except TimeoutError:
            return

    def clear(self) -> None:
        """Forget earlier calls of `wake`."""
        self._woken.clear()
