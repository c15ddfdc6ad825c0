# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service's blocking work, in one thread: looks, runs, plans, jobs, checks and reloads.

Only that thread touches the engine. `run` and `run_between_pieces` are its one inbox. It returns immutable results to
the event loop, and posts immutable messages meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Any, Final, TypeVar

from journalkeeper.engine import DAEMON, DAY_S, Engine, now_us
from journalkeeper.health.evidence import Obstacle
from journalkeeper.health.verdict import describe_waits, summarize_run
from journalkeeper.history.store import NAME
from journalkeeper.metrics.prometheus import compute_status
from journalkeeper.model import Host, Outcome, Plan, Reason, Request, Result
from journalkeeper.model.errors import BusyError, KeeperError, NotBtrfsError, UsageError
from journalkeeper.model.manager import Manager
from journalkeeper.model.run import Report
from journalkeeper.model.sentences import NO_JOURNAL
from journalkeeper.observe.obstacles import Places, find_full, find_obstacles, find_unwritable, list_places, read_mounts
from journalkeeper.report.retention import summarize_history
from journalkeeper.service import snapshot
from journalkeeper.service.jobs import Job, JobEnd
from journalkeeper.service.watch import identify_tops

ORIGIN: Final = "bus"

LOOK_SHARE: Final = 0.02
LOOK_BURST_CPU_S: Final = 0.5
"""Looks take at most this share of one processor, after this much CPU time that is free.

With 10,000 files a look takes 0.1 s, so the looks of a busy directory are 5 s apart. The first look is free: no event
causes it.
"""

RETRY_S: Final = 60.0
"""The delay after a look that failed, a watch that was refused, or an action that was not done."""

CHANGED_S: Final = 0.3
"""The delay before a new plan for a file that changed during a run, and the shortest without an event.

journald's last change to a file that it archives comes up to 250 ms after its last append.
"""

WRONG: Final = "The configuration on disk is wrong, so the service keeps its old settings"
DIFFERENT: Final = "The configuration on disk was changed, and the service still runs with the old one"

T = TypeVar("T")


class ReplacedError(KeeperError):
    """The service has to be started again, because a directory was replaced."""


def charge_cpu(until_s: float, cpu_s: float, now_s: float) -> float:
    """Return when work may go on that could begin at `until_s` and used `cpu_s`, by LOOK_SHARE and LOOK_BURST_CPU_S."""
    return max(until_s, now_s - LOOK_BURST_CPU_S / LOOK_SHARE) + cpu_s / LOOK_SHARE


class Worker:
    """Works with `engine`, which the constructor and `reload` make with `load`, from the configuration on disk.

    `post` hands a message to the event loop. `gives_way` returns whether the service's own work must end between two
    pieces, `stops` whether all work must. Only `run`, `run_between_pieces` and `close` are for the event loop.
    """

    def __init__(
        self,
        load: Callable[[], Engine],
        post: Callable[[snapshot.Message], None],
        gives_way: Callable[[], bool],
        stops: Callable[[], bool],
    ) -> None:
        self._load = load
        self._post = post
        self._gives_way = gives_way
        self._stops = stops
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self.engine = load()
        self.engine.memory.began_us = now_us()
        self._urgent: deque[Callable[[], None]] = deque()
        self._will_drain = False
        self.calls = set[asyncio.Future[Any]]()
        """The calls that have not ended, or whose messages are not delivered."""
        self._free_at_s = -inf
        self._flush_free_at_s = -inf
        self.cycles = 0
        self._planned_cpu_s: float | None = None
        self._known_mounts: dict[str, set[str]] = {}

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Call `work` in the worker thread, after all earlier calls, even if the returned future is canceled."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, self._work_and_post_end, work)
        self.calls.add(future)
        future.add_done_callback(self.calls.discard)
        return asyncio.shield(future)  # a caller that goes away does not end the call

    def run_between_pieces(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """As `run`, but before all other calls and a run's next piece. Canceling prevents a call that has not begun."""
        future = Future[T]()

        def work_and_set_future() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001 - it is the caller's
                    future.set_exception(error)

        self._urgent.append(work_and_set_future)
        if not self._will_drain:  # a run of an hour hears 14,000 appends
            self._will_drain = True
            self.run(self._drain)
        return asyncio.wrap_future(future)

    def _work_and_post_end(self, work: Callable[[], T]) -> T:
        """Do what is urgent, then `work`. Post the end, also after an error, with the engine's windows and next times.

        No time of a look is earlier than LOOK_SHARE of a processor permits.
        """
        self._do_urgent()
        try:
            return work()
        finally:
            flushes, look_us = self.engine.memory.flushes, self.engine.get_next_look_us()
            look_at_s = inf if look_us is None else max(look_us / 1e6, self._flush_free_at_s)
            self._post(snapshot.WorkEnded(*self.engine.find_windows(), self._free_at_s, look_at_s, flushes.awaiting))

    def _drain(self) -> None:
        """Do what is urgent. This is the work of a call of `run`, which posts its end."""
        self._will_drain = False
        self._do_urgent()

    def _do_urgent(self) -> None:
        while self._urgent:
            self._urgent.popleft()()

    def close(self) -> None:
        """Wait until the worker thread has done all calls and has ended. No call can be added any more."""
        self._executor.shutdown()

    def reload(self) -> tuple[str, ...]:
        """Load a new engine, with the memory of the old one, and return its directories. Post nothing.

        Raises: KeeperError, OSError if the configuration is wrong; then nothing changes.
        """
        engine = self._load()
        engine.take_over(self.engine)
        self.engine = engine
        return engine.directories

    def note_appends(self, directories: Iterable[str], heard_us: int) -> None:
        """Record that inotify reported appends in `directories` at `heard_us`, CLOCK_MONOTONIC."""
        for directory in directories:
            self.engine.memory.flushes.note_append(directory, heard_us)

    def check(self) -> tuple[set[str], Places]:
        """Post whether the configuration on disk is the one that runs, what cannot be written or has no room, and tops.

        Confirm the metrics. Return the directories that only a new start of the service can make writable, and all
        journal directories. The former came after the start, so they are mounted read-only. Raises: as identify_tops.
        """
        engine, places, mounts = self.engine, list_places(self.engine.directories), read_mounts()
        engine.publisher.confirm_health()
        try:
            read = self._load()
            configuration = "" if (read.config, read.directories) == (engine.config, engine.directories) else DIFFERENT
        except (KeeperError, OSError) as error:
            configuration = f"{WRONG}: {error}"
        unwritable: dict[str, Obstacle] = {}
        for top in (*engine.directories, *engine.publisher.directories):
            found = find_unwritable(top, places.get(top, ()), mounts)
            mounted = {path for path, obstacle in found.items() if obstacle is Obstacle.MOUNT}
            new = mounted - self._known_mounts.setdefault(top, mounted)
            unwritable |= found | dict.fromkeys(new, Obstacle.LATE)
        replaced = {path for path, obstacle in unwritable.items() if obstacle is Obstacle.LATE}
        unwritable |= find_obstacles(mounts, engine.state_directory, f"{engine.state_directory}/{NAME}")
        unwritable |= {path: Obstacle.MISSING for path in engine.publisher.directories if not os.path.isdir(path)}
        tops = identify_tops(engine.directories)
        self._post(snapshot.Checked(configuration, tuple(unwritable.items()), find_full(places), tops))
        return replaced, places

    def look_at_flushes(self) -> bool:
        """Look at flush timers of readable files. Charge CPU time to such looks. Return whether a whole look is due."""
        began_s = time.thread_time()
        is_due = self.engine.memory.flushes.look_for_due_plan()
        self._flush_free_at_s = charge_cpu(self._flush_free_at_s, time.thread_time() - began_s, time.monotonic())
        return is_due

    def look(self, renew_lock: Callable[[], None]) -> snapshot.RunEnded:
        """Call `renew_lock` and `check`, do one complete run as `_post_run`, and return its end, which is not posted.

        Charge the CPU time before its first action, except for the first look. A KeeperError or OSError of the run is
        RunFailed, or NotOnBtrfs if no journal is or was on btrfs.
        Raises: as `renew_lock`; ReplacedError for a directory from `check`; other exceptions of the run.
        """
        renew_lock()
        self.cycles += 1
        began_s, self._planned_cpu_s = time.thread_time(), None
        for path in self.check()[0]:
            again = "the service ends now, and systemd starts it again"
            raise ReplacedError(f"{path} is new or was replaced, and this run of the unit may not write there; {again}")
        try:
            message: snapshot.RunEnded = self._make_looked(
                self._post_run(0, Request(upkeep=True), self._gives_way, DAEMON)
            )
        except (KeeperError, OSError) as error:
            message = snapshot.RunFailed(str(error), now_us(), isinstance(error, BusyError))
            if isinstance(error, NotBtrfsError) and not self.engine.memory.seen.instances:  # else it is unmounted
                message = snapshot.NotOnBtrfs(error.path)
        if self.cycles > 1:  # the first look may take any time: no event causes it
            # Only the time of looking counts: the budget bounds rewrites.
            cpu_s = (self._planned_cpu_s or time.thread_time()) - began_s
            self._free_at_s = charge_cpu(self._free_at_s, cpu_s, time.monotonic())
        return message

    def _post_run(self, job: int, request: Request, stop: Callable[[], bool], origin: str) -> Report:
        """Run the engine for job `job`, or for the service (0). Post progress, files and the service's plan.

        Raises: as Engine.run.
        """

        def post_findings_if_actions_follow(host: Host, plan: Plan) -> None:
            if plan.actions and not job:  # without actions the result follows at once
                self._planned_cpu_s = time.thread_time()
                self._post(self._make_findings(host, plan, ()))

        def do_urgent_and_ask_stop() -> bool:
            self._do_urgent()  # before the next piece
            return stop()

        return self.engine.run(
            request,
            on_progress=lambda progress: self._post(snapshot.Progressed(job, progress)),
            on_outcome=lambda outcome: self._post(snapshot.FileDone(outcome, now_us())),
            on_plan=post_findings_if_actions_follow,
            stop=do_urgent_and_ask_stop,
            origin=origin,
        )

    def _make_looked(self, report: Report) -> snapshot.Looked:
        """Look at flush timers, and return a run's result and the next delay. Raises: KeeperError without a host."""
        host, plan, outcomes = report.host, report.plan, report.outcomes
        if host is None:
            raise KeeperError("the run did not look at the host")
        found = self._make_findings(host, plan, outcomes)
        waiting = tuple((self.engine.memory.records.waiting or {}).values())
        present = summarize_run(plan, outcomes, waiting)._replace(unrecorded="; ".join(report.unrecorded))
        is_due = self.engine.memory.flushes.look_for_due_plan()
        wait_s = CHANGED_S if is_due else get_next_plan_s(report, self.engine.memory.observer.next_shared_us)
        return snapshot.Looked(found, present, report, wait_s)

    def _make_findings(self, host: Host, plan: Plan, outcomes: Sequence[Outcome]) -> snapshot.Findings:
        """Return files, decisions after a run (an outcome replaces its action), bus values, and missing directories."""
        files = {file.path: file for file in host.files}
        doings: tuple[snapshot.Doing, ...] = (*plan.skipped, *plan.actions, *outcomes)
        now = compute_status(host, plan, outcomes, self.engine.config)
        known = Manager(
            files=now.files,
            extents=now.sums["extents"],
            active_extents=now.active_extents,
            history=tuple(summarize_history(one, host.files) for one in host.instances),
            fragmented_files=now.fragmented_files,
            budget_left_bytes=now.budget_left_bytes,
            intake_delay_p99_us=self.engine.memory.intake.p99_us,
        )
        waits_for = describe_waits(skip for skip in plan.skipped if skip.path in files)
        missing = tuple(sorted(path for path in self.engine.directories if not os.path.isdir(path)))
        return snapshot.Findings(files, {one.path: one for one in doings}, known, waits_for, missing)

    def plan(self, request: Request) -> Plan:
        """Return the plan for a caller. Raises: UsageError as `resolve`; KeeperError, OSError as Engine.plan."""
        return self.engine.plan(resolve(request, self.engine.directories))

    def do(self, job: Job) -> JobEnd:
        """Carry out a job until its end, or until it is canceled or the service stops: both are "canceled".

        Raises: UsageError as `resolve`; KeeperError, OSError as Engine.run.
        """
        request = resolve(job.request, self.engine.directories)._replace(asked=True)
        report = self._post_run(job.number, request, lambda: job.state == "canceling" or self._stops(), ORIGIN)
        return name_result(report, job.request), report


def get_next_plan_s(report: Report, whole_us: int) -> float:
    """Return the seconds until the next plan is due even without an event: CHANGED_S to DAY_S.

    It is the earliest of `whole_us` and the plan's `wake_at_us` (CLOCK_REALTIME, perhaps over), CHANGED_S if a file
    changed during an action, and else RETRY_S after an incomplete run.
    """
    wakes_us = [whole_us] if report.plan.wake_at_us is None else [report.plan.wake_at_us, whole_us]
    undone = {outcome.reason for outcome in report.outcomes if outcome.result is not Result.DONE}
    again_s = CHANGED_S if Reason.CHANGED in undone else RETRY_S if undone or report.is_interrupted else DAY_S
    # DAY_S also where the clock was set back meanwhile.
    return max(CHANGED_S, min((min(wakes_us) - now_us()) / 1e6, again_s, DAY_S))


def name_result(report: Report, request: Request) -> str:
    """Return the first result that is true: "canceled", "failed" (also if a `request` path is no journal), "done"."""
    if report.is_interrupted:
        return "canceled"
    named = request.paths and any(skip.reason in NO_JOURNAL for skip in report.plan.skipped)
    return "failed" if named or any(outcome.result is Result.FAILED for outcome in report.outcomes) else "done"


def resolve(request: Request, directories: tuple[str, ...]) -> Request:
    """Return `request` with the watched directory at the start of each path replaced by its real path, each once.

    Raises: UsageError if a path is below none of `directories` as configured.
    """
    return request._replace(paths=tuple(dict.fromkeys(_resolve_top(path, directories) for path in request.paths)))


def _resolve_top(path: str, directories: tuple[str, ...]) -> str:
    """Resolve the links of the first of `directories` above `path`, not those of the rest. Raises: UsageError."""
    for top in (directory.rstrip("/") for directory in directories):
        if path.startswith(f"{top}/"):
            return f"{os.path.realpath(f'{top}/').rstrip('/')}{path[len(top) :]}"
    raise UsageError(f"{path} is not below {' or '.join(directories)}")
