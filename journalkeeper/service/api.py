# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests to the service, and its state: jobs, plans, a pause, a snapshot. In the event loop.

Requests are done by the one worker thread, in turn with the service's own runs. The state
is one immutable Snapshot, replaced as a whole by what the worker reports.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from threading import Event as ThreadEvent
from typing import Any, Final

from journalkeeper.engine import now_us
from journalkeeper.health.evidence import Present
from journalkeeper.health.verdict import judge_present
from journalkeeper.journald import opening
from journalkeeper.model import Reason, Request, Result
from journalkeeper.model.documents import job_document, plan_document
from journalkeeper.model.errors import KeeperError, UsageError
from journalkeeper.model.reasons import NO_JOURNAL
from journalkeeper.model.run import Report
from journalkeeper.policy.window import at
from journalkeeper.service.jobs import Changed, Ended, Events, FileDone, Job, Jobs
from journalkeeper.service.messages import FlushesLooked, Message, Progressed, after
from journalkeeper.service.reloader import Reloader
from journalkeeper.service.run_log import RunLog
from journalkeeper.service.snapshot import Snapshot
from journalkeeper.service.wakeups import Wakeups

ORIGIN: Final = "bus"

REST: Final = 4
REST_MOST_S: Final = 5.0
"""After a plan the next one waits four times as long as it took, up to this."""


class Api:
    """Carries out requests with the engine of `reloader`; `worker` runs those that block.

    The worker reports by `post`, whose messages come back to `take`. `stop` is set when the service ends. `complain`
    logs unexpected exceptions, and `tell` is called with each new state.
    """

    def __init__(
        self,
        reloader: Reloader,
        wakeups: Wakeups,
        worker: Executor,
        *,
        log: RunLog,
        post: Callable[[Message], None],
        stop: ThreadEvent,
        complain: Callable[[str, Exception], None],
        tell: Callable[[Snapshot], None],
    ) -> None:
        self._tell = tell
        self._reloader = reloader
        self._wakeups = wakeups
        self._worker = worker
        self._log = log
        self._post = post
        self._stop = stop
        self._turn = asyncio.Lock()
        self._plan_after_s = 0.0
        self._resume: asyncio.TimerHandle | None = None
        present = Present(looked=False)
        self._state = Snapshot(reloader.engine.directories, present=present, verdict=judge_present(present, now_us()))
        self.events = Events()
        self.jobs = Jobs(self._do, self.events, complain)

    # -- Requests of callers, in the event loop ------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the present state of the service."""
        working = self._state.working or any(job.running for job in self.jobs.queue)
        windows = tuple(at(one, now_us()) for one in self._state.windows)
        engine = self._reloader.engine
        state = self._state._replace(directories=engine.directories, budget_bytes=engine.budget_bytes)
        return state._replace(working=working, windows=windows)

    @property
    def paused(self) -> bool:
        """True while the service does no work of its own. From any thread."""
        return self._state.present.paused

    async def plan(self, request: Request) -> dict[str, Any]:
        """Return the document of `plan -j`.

        One plan is made at a time, with a rest after it, because every user may ask and the worker has its own work.
        Raises: KeeperError, OSError as Engine.plan.
        """
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._plan_after_s - loop.time())
            began_s = loop.time()
            try:
                return await loop.run_in_executor(self._worker, self._plan, request)
            finally:
                now_s = loop.time()
                self._plan_after_s = now_s + min(REST_MOST_S, REST * (now_s - began_s))

    def pause(self, span_us: int) -> None:
        """Stop the service's own work for `span_us`; 0 means until `resume`."""
        self.resume()
        self._pause(paused=True)
        if span_us:
            self._resume = asyncio.get_running_loop().call_later(span_us / 1e6, self.resume)
        self._publish_state()

    def resume(self) -> None:
        """End a pause, and do now what became due during it."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self.paused:
            self._pause(paused=False)
            self._wakeups.rescan()
            self._publish_state()

    def _pause(self, *, paused: bool) -> None:
        self._state = self._state._replace(present=self._state.present._replace(paused=paused))

    def rescan(self) -> None:
        """Request new watches and a look at everything."""
        self._wakeups.rescan()

    async def reload(self) -> None:
        """Read the configuration again. Raises: KeeperError, OSError if it is wrong."""
        await self._reloader.reload()
        self._publish_state()

    def take(self, message: Message) -> None:
        """Update the state with a message of the worker."""
        self._state = after(self._state, message)
        if isinstance(message, Progressed):
            self.jobs.set_progress(message.job, message.progress)
        elif isinstance(message, FileDone):
            self.events.publish(message)
        self._publish_state()

    def _publish_state(self) -> None:
        """Judge the state again, and notify its followers."""
        present = self._state.present._replace(configuration=self._reloader.problem)
        self._state = self._state._replace(present=present, verdict=judge_present(present, now_us()))
        self._tell(self._state)
        self.events.publish(Changed())

    # -- In the worker -------------------------------------------------------------------------

    def _plan(self, request: Request) -> dict[str, Any]:
        engine = self._reloader.engine
        try:
            return plan_document(engine.plan(_resolve(request, engine.directories)))
        finally:
            self._post(FlushesLooked(*engine.windows()))

    async def _do(self, job: Job) -> Ended:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._worker, self._run_engine, job)
        finally:
            self._wakeups.rescan()

    def _run_engine(self, job: Job) -> Ended:
        engine = self._reloader.engine
        try:
            report = engine.run(
                _resolve(job.request, engine.directories),
                on_progress=lambda progress: self._post(Progressed(job.number, progress)),
                stop=lambda: job.canceled or self._stop.is_set(),
                origin=ORIGIN,
                on_outcome=lambda outcome: self._post(FileDone(outcome, now_us())),
            )
        except (KeeperError, OSError) as error:
            return Ended("failed", error=error)
        self._log.job(report)
        return Ended(result(report, job.request), job_document(report))


def result(report: Report, request: Request) -> str:
    """Return the result of a run for JobRemoved. A named path that is no journal file is a failure."""
    if any(outcome.reason is Reason.INTERRUPTED for outcome in report.outcomes):
        return "canceled"
    named = request.paths and any(skip.reason in NO_JOURNAL for skip in report.plan.skipped)
    return "failed" if named or any(outcome.result is Result.FAILED for outcome in report.outcomes) else "done"


def _resolve(request: Request, directories: tuple[str, ...]) -> Request:
    """Return `request` with its paths resolved below the real places of the watched `directories`.

    Raises: UsageError if a path below such a directory leads through a symbolic link, which is never followed.
    """
    return request._replace(paths=tuple(dict.fromkeys(_place(path, directories) for path in request.paths)))


def _place(path: str, directories: tuple[str, ...]) -> str:
    top = next((one for one in directories if path.startswith(f"{one.rstrip('/')}/")), None)
    if top is None:
        raise UsageError(f"{path} is not below {' or '.join(directories)}")
    found = f"{os.path.realpath(top).rstrip('/')}{path[len(top.rstrip('/')) :]}"
    try:
        with opening.open_directory(os.path.dirname(found)):
            return found
    except NotADirectoryError as error:
        raise UsageError(f"{path} is behind a link, or no directory: what is there is not watched") from error
    except OSError:
        return found  # the look reports the error of the file itself
