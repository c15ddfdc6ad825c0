# SPDX-License-Identifier: LGPL-2.1-or-later
"""Carry immutable messages from other threads to the event loop, in the order of their posting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Calls `take` in `loop` with each message that another thread posts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[T], None]) -> None:
        self._loop = loop
        self._take = take

    def post(self, message: T) -> None:
        """Post a message and return at once; from any thread."""
        self._loop.call_soon_threadsafe(self._take, message)
