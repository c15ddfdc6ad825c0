# SPDX-License-Identifier: LGPL-2.1-or-later
"""What others ask of the service and see of it: jobs, plans, a pause, and how things are.

The one rule: whoever asks is served by the one worker thread, in turn, as the service
itself is; what is seen was put here by the last look, and is only ever replaced as a whole.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final, Protocol

from journalkeeper.engine import Engine, now_us
from journalkeeper.journald import opening
from journalkeeper.model import Outcome, Reason, Request, Result
from journalkeeper.model.errors import KeeperError, UsageError
from journalkeeper.model.reasons import NO_JOURNAL
from journalkeeper.model.run import Report
from journalkeeper.model.waiting import sentence
from journalkeeper.service.jobs import Ended, Job, Jobs
from journalkeeper.service.snapshot import Findings, Snapshot, Tally, findings

if TYPE_CHECKING:
    from journalkeeper.observe.intake_delays import IntakeDelays

ORIGIN: Final = "bus"

REST: Final = 4
REST_MOST_S: Final = 5.0
"""After a plan the next one waits four times as long as it took, up to this."""


class Listener(Protocol):
    """Who is told, in the event loop, while it `run`s."""

    async def run(self) -> None: ...
    def changed(self) -> None: ...
    def job_new(self, job: Job) -> None: ...
    def job_removed(self, job: Job, result: str) -> None: ...
    def outcome(self, outcome: Outcome) -> None: ...
    def complain(self, what: str, error: Exception) -> None: ...


class DaemonControl(Protocol):
    """The daemon, as far as it is asked from here. `tell_job` is for the worker."""

    @property
    def engine(self) -> Engine: ...
    @property
    def stopping(self) -> bool: ...
    def rescan(self) -> None: ...
    async def reload(self) -> None: ...
    def tell_job(self, report: Report) -> None: ...


Connect = Callable[["Api", Callable[[str], None], Callable[[], None], Callable[[str], None]], Listener]
"""Makes a listener of an API; it is given where to say why it has no bus, that it has one again, and mistakes."""


class Api:
    """Takes requests for `daemon`, whose blocking work is done by `worker`."""

    def __init__(self, daemon: DaemonControl, worker: Executor) -> None:
        self._daemon = daemon
        self._worker = worker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: Listener | None = None
        self._intake_delays: IntakeDelays | None = None
        self._plans: dict[Request, asyncio.Task[str]] = {}
        self._turn = asyncio.Lock()
        self._plan_after_s = 0.0
        self._resume: asyncio.TimerHandle | None = None
        self._findings: Findings | None = None
        self._missing: tuple[str, ...] = ()
        self._tally = Tally()
        self._intake_p99_us = 0
        self._problem = ""
        self._working = False
        self.limits: tuple[str, ...] = ()
        self.paused = False
        self.jobs = Jobs(self._do, self._changed)

    def open(self, loop: asyncio.AbstractEventLoop, listener: Listener) -> None:
        """From now on `listener` is told in `loop`; before, nobody looks and nothing is kept."""
        from journalkeeper.observe.intake_delays import IntakeDelays  # noqa: PLC0415 - only where somebody listens

        self._loop, self._listener, self._intake_delays = loop, listener, IntakeDelays()
        self.jobs.listener = listener

    # -- What callers ask, in the event loop --------------------------------------------------

    def snapshot(self) -> Snapshot:
        """How things are."""
        return Snapshot(
            directories=self._daemon.engine.directories,
            missing=self._missing,
            findings=self._findings,
            tally=self._tally,
            problem=self._problem,
            working=self._working or any(job.running for job in self.jobs.queue),
            paused=self.paused,
            intake_p99_us=self._intake_p99_us,
            limits=self.limits,
        )

    async def plan(self, request: Request) -> str:
        """The document of `plan -j`; who asks for the same meanwhile gets the same.

        Raises: KeeperError, OSError as Engine.plan.
        """
        future = self._plans.get(request)
        if future is None:
            future = asyncio.get_running_loop().create_task(self._plan_in_turn(request))
            self._plans[request] = future
            future.add_done_callback(lambda _: self._plans.pop(request, None))
        return await asyncio.shield(future)

    async def _plan_in_turn(self, request: Request) -> str:
        """One plan at a time, with a rest after it: everybody may ask, and the worker has its own work."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._plan_after_s - loop.time())
            began_s = loop.time()
            try:
                return await loop.run_in_executor(self._worker, self._planned, request)
            finally:
                now_s = loop.time()
                self._plan_after_s = now_s + min(REST_MOST_S, REST * (now_s - began_s))

    def pause(self, span_us: int) -> None:
        """No work of our own for so long; 0: until `resume`."""
        self.resume()
        self.paused = True
        if span_us:
            self._resume = asyncio.get_running_loop().call_later(span_us / 1e6, self.resume)
        self._changed()

    def resume(self) -> None:
        """End a pause; what was due meanwhile is done now."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self.paused:
            self.paused = False
            self._daemon.rescan()
            self._changed()

    def rescan(self) -> None:
        """Look at everything, soon."""
        self._daemon.rescan()

    async def reload(self) -> None:
        """Read the configuration again. Raises: KeeperError, OSError if it is wrong."""
        await self._daemon.reload()
        self._changed()

    # -- What the daemon tells, from its worker ----------------------------------------------------

    def began(self) -> None:
        """Files are at work."""
        self._working = True
        self._changed()

    def looked(self, engine: Engine, report: Report) -> None:
        """A look at everything is over, and what came of it."""
        self._working, self._problem = False, ""
        if self._intake_delays is not None and report.host is not None:
            numbers = engine.status(report.host, report.plan, report.outcomes)
            long = sentence(report.waiting, now_us())
            self._findings = findings(report.host, report.plan, report.outcomes, numbers, long)
            self._missing = tuple(sorted(engine.missing()))
            self._intake_p99_us = self._intake_delays.look(report.host.files)
        self._changed()

    def failed(self, sentence: str) -> None:
        """It came to nothing; "" if that is nobody's fault."""
        self._working, self._problem = False, sentence
        self._changed()

    def outcome(self, outcome: Outcome) -> None:
        """Something was done."""
        if outcome.result is Result.DONE:
            self._tally = self._tally.add(outcome, now_us())
        if self._loop is not None and self._listener is not None:
            self._loop.call_soon_threadsafe(self._listener.outcome, outcome)
        self._changed()

    def _changed(self) -> None:
        """From any thread."""
        if self._loop is not None and self._listener is not None:
            self._loop.call_soon_threadsafe(self._listener.changed)

    # -- In the worker -------------------------------------------------------------------------

    def _planned(self, request: Request) -> str:
        from journalkeeper.wire.documents import plan_document  # noqa: PLC0415 - for who is asked

        engine = self._daemon.engine
        return _json(plan_document(engine.plan(_placed(request, engine.directories))))

    async def _do(self, job: Job) -> Ended:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._worker, self._done, job)
        finally:
            self._daemon.rescan()

    def _done(self, job: Job) -> Ended:
        engine = self._daemon.engine
        try:
            report = engine.run(
                _placed(job.request, engine.directories),
                on_progress=job.tell,
                stop=lambda: job.canceled or self._daemon.stopping,
                origin=ORIGIN,
                on_outcome=self.outcome,
            )
        except (KeeperError, OSError) as error:
            return Ended("failed", error=error)
        self._daemon.tell_job(report)
        return Ended(result(report, job.request), _document(report))


def result(report: Report, request: Request) -> str:
    """What JobRemoved says of a run; a path that was named and is no journal file is a failure."""
    if any(outcome.reason is Reason.INTERRUPTED for outcome in report.outcomes):
        return "canceled"
    named = request.paths and any(skip.reason in NO_JOURNAL for skip in report.plan.skipped)
    return "failed" if named or any(outcome.result is Result.FAILED for outcome in report.outcomes) else "done"


def _document(report: Report) -> str:
    """What Result answers: the document of `defrag -j`, and what else the command line says."""
    from journalkeeper.wire.documents import defrag_document  # noqa: PLC0415 - for who is asked

    files = () if report.host is None else report.host.files
    document = defrag_document(report, {file.path: file.extents.total for file in files})
    skipped = [skip._asdict() for skip in report.plan.skipped]
    details = {outcome.path: outcome.detail for outcome in report.outcomes if outcome.detail}
    return _json({**document, "skipped": skipped, "details": details, "notices": report.notices})


def _json(document: object) -> str:
    """As the command line writes it: ASCII in one line."""
    import json  # noqa: PLC0415 - for who is asked

    return json.dumps(document, separators=(",", ":"))


def _placed(request: Request, directories: tuple[str, ...]) -> Request:
    """The same with paths below the places that the watched `directories` are.

    Raises: UsageError where a link is on the way of one, below the directory: it is not followed, here or later.
    """
    return request._replace(paths=tuple(dict.fromkeys(_place(path, directories) for path in request.paths)))


def _place(path: str, directories: tuple[str, ...]) -> str:
    top = next((one for one in directories if path.startswith(f"{one.rstrip('/')}/")), None)
    if top is None:
        raise UsageError(f"{path} is not below {' or '.join(directories)}")
    found = f"{os.path.realpath(top).rstrip('/')}{path[len(top.rstrip('/')) :]}"
    try:
        with opening.directory(os.path.dirname(found)):
            return found
    except NotADirectoryError as error:
        raise UsageError(f"{path} is behind a link, or no directory: what is there is not watched") from error
    except OSError:
        return found  # the look says of the file itself what it is
