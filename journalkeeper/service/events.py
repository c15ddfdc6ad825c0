# SPDX-License-Identifier: LGPL-2.1-or-later
"""What happens in the service, for those who follow it: the server on the bus. All of it in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from journalkeeper.model import Outcome
from journalkeeper.service.job import Job


class Changed(NamedTuple):
    """The state, or a job's, is not what it was."""


class JobAdded(NamedTuple):
    """A job was queued."""

    job: Job


class JobRemoved(NamedTuple):
    """A job is over: done, failed or canceled."""

    job: Job
    result: str


class FileDone(NamedTuple):
    """An action came to its end at `when_us`."""

    outcome: Outcome
    when_us: int


Event = Changed | JobAdded | JobRemoved | FileDone


class Events:
    """Each follower has a queue of its own."""

    def __init__(self) -> None:
        self._followers: list[asyncio.Queue[Event]] = []

    @contextmanager
    def follow(self) -> Iterator[asyncio.Queue[Event]]:
        """A queue with all that happens as long as the block lasts."""
        queue: asyncio.Queue[Event] = asyncio.Queue()
        self._followers.append(queue)
        try:
            yield queue
        finally:
            self._followers.remove(queue)

    def publish(self, event: Event) -> None:
        """It happened just now."""
        for queue in self._followers:
            queue.put_nowait(event)
