# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service's blocking work, in one thread: looks, runs, plans and jobs.

Each method is for that thread (`run` starts it there), returns an immutable result to the event loop, and posts
immutable messages to it meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from journalkeeper.engine import DAEMON, DAY_S, Engine, now_us
from journalkeeper.health.evidence import Obstacle
from journalkeeper.health.verdict import present_after_run
from journalkeeper.history.database import RecordLockedError
from journalkeeper.journald import opening
from journalkeeper.metrics.status import status
from journalkeeper.model import Host, Outcome, Reason, Request, Result
from journalkeeper.model.errors import BusyError, KeeperError, NotBtrfsError, UsageError
from journalkeeper.model.progress import Progress
from journalkeeper.model.reasons import NO_JOURNAL
from journalkeeper.model.run import Report, job_document, plan_document
from journalkeeper.model.units import HOUR_US, MINUTE_US
from journalkeeper.policy.deferral import PASSING, get_retry_delay_us
from journalkeeper.service.backoff import RETRY_S, CpuShare
from journalkeeper.service.jobs import Ended, Job
from journalkeeper.service.mounts import find_unwritable, list_paths
from journalkeeper.service.snapshot import (
    Failed,
    FileDone,
    FlushesLooked,
    Looked,
    Message,
    NotOnBtrfs,
    Progressed,
    findings,
)

ORIGIN: Final = "bus"

LOOK_SHARE: Final = 0.02
LOOK_BURST_S: Final = 0.5
"""Looks take at most this share of one processor, after this much CPU time that is free.

With 10,000 files a look takes 0.1 s, so the looks of a busy directory are 5 s apart. The first look is free: no event
causes it.
"""

CHANGED_S: Final = 0.3
"""The delay before a new plan for a file that changed during a run:

journald's last change to a file that it archives comes up to 250 ms after its last append.
"""

WRONG: Final = "The configuration on disk is wrong, and the running values stay"
DIFFERENT: Final = "The configuration on disk is not the one that runs"

T = TypeVar("T")


class ReplacedError(KeeperError):
    """The service has to be started again, because a directory was replaced."""


class Checked(NamedTuple):
    """The result of a check for changes that cause no event.

    `configuration` is why the running configuration is not the one on disk, "" while it is. `unwritable` are the
    directories that the service may not write to, each with the reason.
    """

    configuration: str = ""
    unwritable: tuple[tuple[str, Obstacle], ...] = ()


def check(load: Callable[[], Engine], engine: Engine) -> Checked:
    """Return whether the configuration on disk is valid and that of `engine`, and which directories cannot be written.

    `load` returns an engine with the configuration on disk. Call this in a thread.
    """
    try:
        configuration = "" if load().has_configuration_of(engine) else DIFFERENT
    except (KeeperError, OSError) as error:
        configuration = f"{WRONG}: {error}"
    return Checked(configuration, list_paths(find_unwritable(engine.directories)))


class Worker:
    """Works with `engine`, which `load` makes; a reload replaces it.

    `post` hands a message to the event loop. `gives_way` returns whether the service's own work must end between two
    pieces, `stops` whether all work must. `looks` and `flush_looks` name when the next look may begin.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        post: Callable[[Message], None],
        gives_way: Callable[[], bool],
        stops: Callable[[], bool],
    ) -> None:
        self._post = post
        self._gives_way = gives_way
        self._stops = stops
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self.engine = load()
        self.engine.memory.began_us = now_us()
        self.looks, self.flush_looks = (CpuShare(LOOK_SHARE, LOOK_BURST_S) for _ in range(2))
        self._is_first_look = True
        self._work_began_cpu_s: float | None = None
        self._known_mounts: dict[str, frozenset[str]] = {}
        self._refuse_replaced_directories()

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Call `work` in the worker thread. Return a future of the event loop with its result."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Wait until the worker thread has ended."""
        self._executor.shutdown()

    def look_at_flushes(self) -> bool:
        """Look at the flush timers, publish the flush windows, and return whether the service should run now."""
        began_s = time.thread_time()
        passed = self.engine.has_flush_passed()
        self.flush_looks.spend(time.thread_time() - began_s, time.monotonic())
        self._post(FlushesLooked(*self.engine.windows()))
        return passed

    def look(self) -> Looked | Failed | NotOnBtrfs:
        """Do one complete run of the service: look at every file, make a plan, and carry it out.

        Return NotOnBtrfs if no journal directory is on btrfs. Return Failed for any other error, also if the
        directories were on btrfs in an earlier run. Otherwise return the result as Looked.

        Raises: ReplacedError if a directory was replaced, so that the service has to be started again.
        """
        self._refuse_replaced_directories()
        engine = self.engine  # a reload may replace it meanwhile
        began_s, self._work_began_cpu_s = time.thread_time(), None
        try:
            host, report = self._run_engine(engine)
        except NotBtrfsError as error:
            if engine.memory.seen.instances:  # it was on btrfs before, so it is unmounted or replaced
                return Failed(str(error), now_us())
            return NotOnBtrfs(error.path)
        except BusyError as error:  # a run of another process is no failure
            return Failed(str(error), now_us(), MINUTE_US if isinstance(error, RecordLockedError) else HOUR_US)
        except (KeeperError, OSError) as error:
            return Failed(str(error), now_us())
        finally:
            # Only the time of looking counts: the budget bounds rewrites.
            ended_s = time.thread_time() if self._work_began_cpu_s is None else self._work_began_cpu_s
            if not self._is_first_look:
                self.looks.spend(ended_s - began_s, time.monotonic())
            self._is_first_look = False
        return self._summarize(engine, host, report)

    def _refuse_replaced_directories(self) -> None:
        """Refuse to continue if a directory can no longer be written because another one took its place.

        The mounts of a unit are made when it starts, so systemd has to start it again. A directory that was read-only
        when it was first watched does not end the service, because a new start would change nothing.

        Raises: ReplacedError.
        """
        tops = self.engine.directories  # once: a reload may replace the engine meanwhile
        mounted = [one for one in find_unwritable(tops) if one.obstacle is Obstacle.MOUNT]
        for top in tops:
            self._known_mounts.setdefault(top, frozenset(one.mount for one in mounted if one.top == top))
        for one in mounted:
            if one.mount not in self._known_mounts[one.top]:
                raise ReplacedError(
                    f"{one.path} was made or replaced after the service started, and its unit may not write there; "
                    "it ends now, and systemd starts it again"
                )

    def _run_engine(self, engine: Engine) -> tuple[Host, Report]:
        report = engine.run(
            Request(upkeep=True),
            on_progress=self._note_progress,
            stop=self._gives_way,
            origin=DAEMON,
            on_outcome=lambda outcome: self._post(FileDone(outcome, now_us())),
        )
        if report.host is None:
            raise KeeperError("the run did not look at the host")
        return report.host, report

    def _note_progress(self, progress: Progress) -> None:
        if self._work_began_cpu_s is None:
            self._work_began_cpu_s = time.thread_time()
        self._post(Progressed(0, progress))

    def _summarize(self, engine: Engine, host: Host, report: Report) -> Looked:
        """Return the result of a complete run for the event loop, with the time until the next one."""
        numbers = status(host, report.plan, report.outcomes, engine.config)
        found = findings(host, report.plan, report.outcomes, numbers, engine.config.watch)
        present = present_after_run(report.plan, report.outcomes, report.waiting)
        present = present._replace(unrecorded="; ".join(report.unrecorded))
        p99_us = engine.memory.intake.p99_us
        wait_s = 0.0 if engine.has_flush_passed() else get_wait_s(report, engine.next_whole_look_us())
        self._post(FlushesLooked(*engine.windows()))
        return Looked(found, tuple(sorted(engine.list_missing_directories())), p99_us, present, report, wait_s)

    def plan(self, request: Request) -> dict[str, Any]:
        """Return the document of `plan -j`. Raises: KeeperError, OSError as Engine.plan."""
        engine = self.engine  # a reload may replace it meanwhile
        try:
            return plan_document(engine.plan(resolve(request, engine.directories)))
        finally:
            self._post(FlushesLooked(*self.engine.windows()))

    def do(self, job: Job) -> tuple[Ended, Report]:
        """Carry out a job, and return its result for the caller and the report for the log.

        Raises: KeeperError, OSError as Engine.run.
        """
        engine = self.engine  # a reload may replace it meanwhile
        report = engine.run(
            resolve(job.request, engine.directories),
            on_progress=lambda progress: self._post(Progressed(job.number, progress)),
            stop=lambda: job.canceled or self._stops(),
            origin=ORIGIN,
            on_outcome=lambda outcome: self._post(FileDone(outcome, now_us())),
        )
        return Ended(result(report, job.request), job_document(report)), report


def get_wait_s(report: Report, whole_us: int) -> float:
    """Return in how many seconds a new plan can differ although no event came, at most DAY_S.

    `whole_us` (CLOCK_REALTIME) is the time of the next whole look.
    """
    wake_us = report.plan.wake_at_us
    wakes_us = [whole_us] if wake_us is None else [wake_us, whole_us]
    waits = [(min(wakes_us) - now_us()) / 1e6, DAY_S]  # no later, where the clock was set back meanwhile
    undone = [outcome for outcome in report.outcomes if outcome.result is not Result.DONE]
    return min([*waits, *map(_again_s, undone)])


def _again_s(outcome: Outcome) -> float:
    """Return in how many seconds an action that was not done should be tried again, by its reason."""
    if outcome.reason is Reason.CHANGED:
        return CHANGED_S
    return RETRY_S if outcome.reason in PASSING else get_retry_delay_us(outcome.reason) / 1e6


def result(report: Report, request: Request) -> str:
    """Return the result of a job as a word: "canceled", "failed" or "done".

    A named path that is no journal file is a failure.
    """
    if any(outcome.reason is Reason.INTERRUPTED for outcome in report.outcomes):
        return "canceled"
    named = request.paths and any(skip.reason in NO_JOURNAL for skip in report.plan.skipped)
    return "failed" if named or any(outcome.result is Result.FAILED for outcome in report.outcomes) else "done"


def resolve(request: Request, directories: tuple[str, ...]) -> Request:
    """Return `request` with each path resolved to its place below the real paths of the watched `directories`.

    Raises: UsageError if a path is below none of them, or leads through a symbolic link, which is never followed.
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
