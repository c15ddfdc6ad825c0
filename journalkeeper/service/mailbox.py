# SPDX-License-Identifier: LGPL-2.1-or-later
"""The way from other threads to the event loop: immutable messages, taken in the order in which they were posted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Gives to `take`, in `loop`, what other threads post."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], None]) -> None:
        self._loop = loop
        self._take = take

    def post(self, message: T) -> None:
        """Return at once; from any thread."""
        self._loop.call_soon_threadsafe(self._take, message)
