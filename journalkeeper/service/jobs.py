# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work that somebody asked for: a queue, one at a time.

A job belongs to the service and not to who asked. That one may leave, ask
again and be given the same job, or cancel it; what became of it can be asked for afterwards.

All of it is for the event loop, but for `waiting`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from journalkeeper.model import Request
from journalkeeper.model.errors import BusyError, KeeperError, NoSuchJobError
from journalkeeper.model.progress import Progress
from journalkeeper.service.events import Changed, Events, JobAdded, JobRemoved
from journalkeeper.service.job import Ended, Job

QUEUE_MOST: Final = 32
"""Jobs in the queue; more are refused."""

KEPT: Final = 16
KEPT_CHARACTERS: Final = 1 << 20
"""Of so many jobs that are over the documents are kept, and of so much text; the last one's always."""


class Jobs:
    """The queue and what is over. `do` does a job; what happens to jobs is published to `events`.

    Whatever `do` raises ends that job only, and is its error; `complain` logs what is no error of ours.
    """

    def __init__(
        self, do: Callable[[Job], Awaitable[Ended]], events: Events, complain: Callable[[str, Exception], None]
    ) -> None:
        self._do = do
        self._events = events
        self._complain = complain
        self._queue: list[Job] = []
        self._ended: dict[int, Ended] = {}
        self._number = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def queue(self) -> tuple[Job, ...]:
        """The jobs that are not over, the running one first."""
        return tuple(self._queue)

    @property
    def waiting(self) -> bool:
        """Whether somebody's job is to be done: the service's own work gives way. From any thread."""
        return bool(self._queue)

    def add(self, request: Request) -> Job:
        """The job that does `request`: one that is there already, unless it was canceled, or a new one.

        Raises: BusyError if the queue is full.
        """
        for job in self._queue:
            if job.request == request and not job.canceled:
                return job
        if len(self._queue) >= QUEUE_MOST:
            raise BusyError(f"{QUEUE_MOST} jobs are queued already; wait for one to end, or cancel some")
        self._number += 1
        job = Job(self._number, request)
        self._queue.append(job)
        self._events.publish(JobAdded(job))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())
        return job

    def find(self, number: int) -> Job:
        """The job `number`, which is not over. Raises: NoSuchJobError."""
        for job in self._queue:
            if job.number == number:
                return job
        raise NoSuchJobError(f"there is no job {number}, or it is over")

    def progressed(self, number: int, progress: Progress) -> None:
        """Job `number` is so far now; nothing if it is over."""
        for job in self._queue:
            if job.number == number:
                job.progress = progress

    def cancel(self, number: int) -> None:
        """Have a job end at the next chunk border, or not begin. Raises: NoSuchJobError."""
        job = self.find(number)
        job.canceled = True
        if not job.running:
            self._queue.remove(job)
            error = KeeperError(f"job {number} was canceled before it began")
            self._end(job, Ended("canceled", error=error))
        self._events.publish(Changed())

    def ended(self, number: int) -> Ended:
        """What became of a job. Raises: NoSuchJobError if it is not over, or forgotten."""
        try:
            return self._ended[number]
        except KeyError:
            raise NoSuchJobError(f"of job {number} nothing is known, or it is not over") from None

    async def close(self) -> None:
        """Wait for the running job, whose end somebody has asked for; the others are not begun."""
        for job in self._queue:
            job.canceled = True
        if self._task is not None:
            await self._task

    async def _work(self) -> None:
        while self._queue:
            job = self._queue[0]
            if job.canceled:
                ended = Ended("canceled", error=KeeperError(f"the service ended before job {job.number} began"))
            else:
                job.running = True
                self._events.publish(Changed())
                ended = await self._guarded(job)
            self._queue.remove(job)
            self._end(job, ended)
            self._events.publish(Changed())

    async def _guarded(self, job: Job) -> Ended:
        try:
            return await self._do(job)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged, and the next job begins
            self._complain(f"job {job.number} failed", error)
            return Ended("failed", error=error)

    def _end(self, job: Job, ended: Ended) -> None:
        self._ended[job.number] = ended
        while len(self._ended) > 1 and (
            len(self._ended) > KEPT or sum(len(one.document) for one in self._ended.values()) > KEPT_CHARACTERS
        ):
            del self._ended[next(iter(self._ended))]
        self._events.publish(JobRemoved(job, ended.result))
