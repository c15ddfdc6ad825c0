# SPDX-License-Identifier: LGPL-2.1-or-later
"""Jobs in a short queue, one at a time; and the events for followers such as the bus server.

A job belongs to the service and not to its caller: it continues when the caller disconnects. The outcome of the last
job is kept.

Only the event loop uses this module; the worker reads `Jobs.queue` and `Job.state`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from journalkeeper.model import Request
from journalkeeper.model.errors import BusyError, KeeperError, NoSuchJobError
from journalkeeper.model.run import NONE_YET, Progress, Report
from journalkeeper.service.snapshot import FileDone

QUEUE_MOST: Final = 8
"""The largest number of jobs in the queue; further jobs are refused."""


@dataclass(eq=False)
class Job:
    """One job; `request` is its caller's request, `state` is "queued", "running" or "canceling".

    `outcome` is the report or the error once `over` is set.
    """

    number: int
    request: Request
    progress: Progress = NONE_YET
    state: str = "queued"
    over: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Report | Exception = field(default_factory=lambda: NoSuchJobError("the job is not over"))


JobEnd = tuple[str, Report]
"""The result of a job (done, failed or canceled) and its report."""


class Changed(NamedTuple):
    """The state of the service or of a job changed."""


class JobAdded(NamedTuple):
    """A job was queued."""

    job: Job


class JobRemoved(NamedTuple):
    """A job is over: done, failed or canceled."""

    job: Job
    result: str


Notification = Changed | JobAdded | JobRemoved | FileDone


class Jobs:
    """The queue of jobs, the running one included. `do` carries out a job; `tell` is called with each event.

    An exception of `do` ends only that job and becomes its error. The loop's exception handler gets an unexpected one.
    """

    def __init__(self, do: Callable[[Job], Awaitable[JobEnd]], tell: Callable[[Notification], None]) -> None:
        self._do = do
        self._tell = tell
        self.queue: list[Job] = []
        self._last: Job | None = None
        self._numbers = count(1)
        self._task: asyncio.Task[None] | None = None

    def add(self, request: Request) -> Job:
        """Queue and return a job, tell JobAdded, and start the task if none runs. Raises: BusyError at QUEUE_MOST."""
        if len(self.queue) >= QUEUE_MOST:
            raise BusyError(f"{QUEUE_MOST} jobs are queued already; wait for one to end, or cancel some")
        job = Job(next(self._numbers), request)
        self.queue.append(job)
        self._tell(JobAdded(job))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work_off_queue())
        return job

    def find(self, number: int) -> Job:
        """Return the queued or running job `number`. Raises: NoSuchJobError if the job is over or never existed."""
        for job in self.queue:
            if job.number == number:
                return job
        raise NoSuchJobError(f"there is no job {number}, or it is over")

    def cancel(self, number: int) -> None:
        """End job `number` at once if it is queued. If it runs, set "canceling": it ends between two pieces.

        Raises: NoSuchJobError if the job is over or never existed.
        """
        job = self.find(number)
        if job.state == "queued":
            self._end_job(job, "canceled", KeeperError(f"job {number} was canceled before it began"))
        else:
            job.state = "canceling"
            self._tell(Changed())

    async def wait_for_report(self, number: int) -> Report:
        """Wait for the end of job `number`, and return its report.

        Raises: NoSuchJobError if the job never existed, or if another job has ended since; the job's error.
        """
        job = self._last if self._last is not None and self._last.number == number else self.find(number)
        await job.over.wait()
        if isinstance(job.outcome, Exception):
            raise job.outcome.with_traceback(None)  # each raise adds frames to it, which keep all that they hold
        return job.outcome

    async def close(self) -> None:
        """Cancel all present jobs, and wait until the queue is empty. A job that is added meanwhile is still done."""
        for job in [*self.queue]:
            self.cancel(job.number)
        if self._task is not None:
            await self._task

    async def _work_off_queue(self) -> None:
        """Do the jobs one by one until none is left. An Exception fails only its job; a cancellation ends no job."""
        while self.queue:
            job = self.queue[0]
            job.state = "running"
            self._tell(Changed())
            try:
                ended: tuple[str, Report | Exception] = await self._do(job)
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends this job only
                if not isinstance(error, KeeperError | OSError):
                    context = {"message": f"job {job.number} failed", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(context)
                ended = "failed", error
            self._end_job(job, *ended)

    def _end_job(self, job: Job, result: str, outcome: Report | Exception) -> None:
        """Remove the job from the queue, keep it as the last one, end all waits for it, and notify the followers."""
        self.queue.remove(job)
        self._last, job.outcome = job, outcome
        job.over.set()
        self._tell(JobRemoved(job, result))
        self._tell(Changed())
