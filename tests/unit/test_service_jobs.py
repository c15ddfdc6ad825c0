# SPDX-License-Identifier: LGPL-2.1-or-later
"""The queue of jobs: their order, when one is refused, what is kept."""

from __future__ import annotations

import asyncio

import pytest

from journalkeeper.model import Plan, Request
from journalkeeper.model.errors import BusyError, KeeperError, NoSuchJobError
from journalkeeper.model.run import Report
from journalkeeper.service.jobs import QUEUE_MOST, Job, JobAdded, JobRemoved, Jobs, Notification


def request(number: int) -> Request:
    return Request(paths=(f"/{number}",))


class Bench:
    """Jobs that are done when `finish` says so; `heard` is what it notified of."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []
        self.began: list[int] = []
        self.raises: Exception | None = None
        self._may_end = asyncio.Semaphore(0)
        self.jobs = Jobs(self._do, self._hear)

    async def _do(self, job: Job) -> tuple[str, Report]:
        self.began.append(job.number)
        await self._may_end.acquire()
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        report = Report(Plan({}, (), ()), (), job.number, 0.0, ())
        return "canceled" if job.state == "canceling" else "done", report

    def _hear(self, notification: Notification) -> None:
        match notification:
            case JobAdded(job):
                self.heard.append(("new", job.number))
            case JobRemoved(job, result):
                self.heard.append((result, job.number))

    def complain(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self.heard.append((f"{context['message']}: {context['exception']}", 0))

    async def finish(self, count: int = 1) -> None:
        for _ in range(count):
            before = len(self.jobs.queue)
            self._may_end.release()
            while len(self.jobs.queue) == before:
                await asyncio.sleep(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_jobs_run_one_at_a_time_in_the_order_in_which_they_came(bench: Bench) -> None:
    for number in range(3):
        bench.jobs.add(request(number))
    await asyncio.sleep(0)
    assert [job.state for job in bench.jobs.queue] == ["running", "queued", "queued"]
    await bench.finish()
    assert bench.began in ([1], [1, 2])
    await bench.finish(2)
    assert bench.began == [1, 2, 3]
    assert bench.heard == [("new", 1), ("new", 2), ("new", 3), ("done", 1), ("done", 2), ("done", 3)]
    again = bench.jobs.add(request(0))
    assert again.number == 4
    await bench.finish()
    assert not bench.jobs.queue


async def test_a_queued_job_that_is_canceled_never_begins(bench: Bench) -> None:
    bench.jobs.add(request(1))
    queued = bench.jobs.add(request(2))
    await asyncio.sleep(0)
    bench.jobs.cancel(queued.number)
    assert ("canceled", queued.number) in bench.heard
    with pytest.raises(KeeperError, match="before it began"):
        await bench.jobs.wait_for_report(queued.number)
    with pytest.raises(NoSuchJobError):
        bench.jobs.cancel(queued.number)
    await bench.finish()
    assert bench.began == [1]


async def test_a_full_queue_refuses(bench: Bench) -> None:
    for number in range(QUEUE_MOST):
        bench.jobs.add(request(number))
    with pytest.raises(BusyError, match="8 jobs are queued already"):
        bench.jobs.add(request(QUEUE_MOST))
    await bench.finish()
    assert bench.jobs.add(request(QUEUE_MOST)).number == QUEUE_MOST + 1
    await bench.finish(QUEUE_MOST)


async def test_only_the_last_result_is_kept(bench: Bench) -> None:
    for number in (1, 2):
        bench.jobs.add(request(number))
        early = asyncio.create_task(bench.jobs.wait_for_report(number))
        await bench.finish()
        for report in (await early, await bench.jobs.wait_for_report(number)):
            assert report.written_bytes == number
    for number in (1, 3):
        with pytest.raises(NoSuchJobError):
            await bench.jobs.wait_for_report(number)


async def test_an_exception_that_nobody_foresaw_ends_its_job_only(bench: Bench) -> None:
    asyncio.get_running_loop().set_exception_handler(bench.complain)
    bench.raises = RuntimeError("x")
    first, second = bench.jobs.add(request(1)), bench.jobs.add(request(2))
    await bench.finish()
    frames = set[int]()
    for _ in range(2):  # the error keeps no more memory each time
        with pytest.raises(RuntimeError, match="x") as raised:
            await bench.jobs.wait_for_report(first.number)
        frames.add(len(raised.traceback))
    assert len(frames) == 1
    await bench.finish()
    assert bench.heard[2:] == [("job 1 failed: x", 0), ("failed", first.number), ("done", second.number)]
    assert not bench.jobs.queue


async def test_the_service_ends_with_the_running_job_and_begins_no_other(bench: Bench) -> None:
    bench.jobs.add(request(1))
    bench.jobs.add(request(2))
    await asyncio.sleep(0)
    closing = asyncio.create_task(bench.jobs.close())
    for _ in range(9):
        await asyncio.sleep(0)
    assert not closing.done(), "it waits for the running job"
    await bench.finish()
    await closing
    assert bench.began == [1]
    assert bench.heard[2:] == [("canceled", 2), ("canceled", 1)]
