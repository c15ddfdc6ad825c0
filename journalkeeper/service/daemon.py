# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service: it waits for an event or a named time, runs the engine once, and waits again.

The event loop never blocks and nothing polls. One worker thread looks and works (worker.py); the loop takes events and
messages, and computes the next time. It wakes for a change that the watch reports, the time at which a plan can differ
(Plan.wake_at_us), the times around a due flush (Engine.next_flush_look_us), a signal, and systemd's watchdog. The
state is one immutable Snapshot, which each message of the worker replaces as a whole.

All times are monotonic, so that a change of the wall clock causes neither an early nor a late wake-up.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

from journalkeeper.engine import Engine, now_us
from journalkeeper.health.evidence import Present
from journalkeeper.health.verdict import describe_foreign, judge_present
from journalkeeper.history import state
from journalkeeper.model import Request
from journalkeeper.model.errors import InternalError, KeeperError, catch_errors
from journalkeeper.policy.window import at
from journalkeeper.service.backoff import RETRY_S, Backoff
from journalkeeper.service.jobs import Changed, Ended, Events, Job, Jobs
from journalkeeper.service.log import ERROR, INFO, WARNING, Event
from journalkeeper.service.notify import Notify
from journalkeeper.service.run_log import RunLog, Say
from journalkeeper.service.snapshot import Failed, FileDone, Looked, Message, NotOnBtrfs, Progressed, Snapshot, after
from journalkeeper.service.watch import Change, Watch, watch_directories
from journalkeeper.service.worker import WRONG, Checked, Worker, check

SOON_S: Final = 0.1
"""The least time between two cycles that no event caused."""

STUCK_S: Final = 120.0
"""A run without any progress for this long waits for a disk that does not answer.

Reading a piece of 32 MiB with 5,000 extents takes 33 s at 150 IOPS.
"""

CHECK_S: Final = 1.0
CHECK_WAIT_S: Final = 0.2
"""The least time between two checks for callers, and how long a caller waits for one, which a slow disk may delay."""

REST: Final = 4
REST_MOST_S: Final = 5.0
"""After a plan the next one waits four times as long as it took, up to this."""


class Daemon:
    """Keeps journals in order until a signal ends it, and does what callers request meanwhile.

    `load` makes an engine from the present configuration. `say` logs a sentence with a syslog priority (3 error, 4
    warning, 6 information) without blocking. Create it in the event loop. `cycles` counts the whole looks. `jobs` and
    `events` are for the server on the bus.
    """

    def __init__(self, load: Callable[[], Engine], say: Say, stuck_s: float = STUCK_S) -> None:
        self._loop = asyncio.get_running_loop()
        self._load, self._say, self._stuck_s = load, say, stuck_s
        self._log = RunLog(say)
        self._notify = Notify()
        self._stopping = False
        self.events = Events()
        self.jobs = Jobs(self._do, self.events, self._log.log_bug)
        present = Present(looked=False)
        self._state = Snapshot((), present=present, verdict=judge_present(present, now_us()))
        self._worker = Worker(load, self._post, self._gives_way, lambda: self._stopping)
        self._watch = Watch()
        self._woken = asyncio.Event()
        self._look_is_due = self._watches_are_due = True
        self._again_s: float | None = None
        self._retry, self._watch_retry = Backoff(), Backoff()
        self._alive_s: float | None = None
        self._health = ""
        self._checked, self._checked_s = Checked(), 0.0
        self._checking: asyncio.Task[None] | None = None
        self._turn, self._reloading = asyncio.Lock(), asyncio.Lock()
        self._plan_after_s = 0.0
        self._resume: asyncio.TimerHandle | None = None
        self._hung_up = asyncio.Event()
        self.cycles = 0

    async def run(self, *beside: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run the service and the tasks `beside` until SIGTERM or SIGINT. A running action ends between two pieces.

        Raises: BusyError if another daemon has the state directory, now or later; KeeperError without one;
        ReplacedError if the service has to be started again.
        """
        loop = self._loop
        try:
            with state.lock(self._worker.engine.state_directory, state.DAEMON_LOCK) as lock:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self._end)
                loop.add_signal_handler(signal.SIGHUP, self._hung_up.set)
                own = (self._feed_watchdog, self._heed_changes, self._heed_hangups)
                tasks = [loop.create_task(work()) for work in (*own, *beside)]
                try:
                    await self._work(lock)
                finally:
                    self._notify.stopping()
                    self._stopping = True
                    await self.jobs.close()
                    for task in tasks:
                        task.cancel()
                    self._worker.close()
        finally:
            self._watch.close()

    # -- When it works -------------------------------------------------------------------------

    async def _work(self, lock: state.Lock) -> None:
        """Report readiness. Until stopped, sleep and then look at everything if that is due, else at the flush timers.

        Raises: KeeperError if the state directory was removed and cannot be made or locked again. Without the lock, a
        second service could run. The service manager makes the directory for the next start.
        """
        await self._renew_watches()
        self._notify.ready()
        while True:
            await self._sleep()
            if self._stopping:
                return
            if self._look_is_due and not self.paused and time.monotonic() >= self._worker.looks.free_at_s:
                self._look_is_due = False
                await self._worker.run(lock.renew)
                if self._watches_are_due:
                    await self._renew_watches()
                await self._look()
            elif time.monotonic() >= self._worker.flush_looks.free_at_s:
                passed = await self._worker.run(self._worker.look_at_flushes)
                self._look_is_due = self._look_is_due or passed

    async def _sleep(self) -> None:
        """Sleep until an event or the earliest planned look. Request a whole look if its time has come."""
        flush_us = self._worker.engine.next_flush_look_us()
        moments_s = [] if self._again_s is None else [self._again_s]
        if flush_us is not None:
            moments_s.append(max(flush_us / 1e6, self._worker.flush_looks.free_at_s))
        if self._look_is_due and not self.paused:
            moments_s.append(self._worker.looks.free_at_s)
        wait_s = max(0.0, min(moments_s) - time.monotonic()) if moments_s else None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), wait_s)
        self._woken.clear()
        if self._again_s is not None and time.monotonic() >= self._again_s:
            self._look_is_due, self._again_s = True, None

    async def _renew_watches(self) -> None:
        """Watch all directories anew. If a watch is refused, try again with each look, and plan a look for that."""
        tops = self._worker.engine.directories
        self._watches_are_due = False  # before the wait: a reload during it requests watches of other directories
        watches = await self._worker.run(lambda: watch_directories(tops))
        self._watch.use(watches)
        if watches.problem:
            self._watches_are_due = True
            self._watch_retry.note_failure(time.monotonic())
        else:
            self._watch_retry.note_success()

    async def _look(self) -> None:
        """Make one complete run in the worker, store its result, and plan the time of the next look."""
        self.cycles += 1
        message = await self._worker.run(self._begin_look)
        self._alive_s = now_s = time.monotonic()  # until the end of the check below, which may wait for the disk
        again_s: float | None = None
        match message:
            case Looked():
                self._retry.note_success()
                self._log.log_run(message.report, self._worker.engine.directories, message.missing)
                again_s = now_s + max(message.wait_s, SOON_S)
            case Failed(busy_limit_us=0):
                self._retry.note_failure(now_s)
                again_s = self._retry.at_s
            case Failed():
                again_s = now_s + RETRY_S
            case NotOnBtrfs(path):  # A mount will cause an event; until then there is nothing to do.
                self._log.log("foreign", INFO, describe_foreign([path]))
        self._again_s = min((one_s for one_s in (again_s, self._watch_retry.at_s) if one_s is not None), default=None)
        await self.refresh(hurry=False)
        self._alive_s = None
        self._take(message)

    def _begin_look(self) -> Looked | Failed | NotOnBtrfs:
        """Look, in the worker, which may have ended a job first. The first look may take any time."""
        if self.cycles > 1:
            self._loop.call_soon_threadsafe(self._note_progress)
        return self._worker.look()

    def _note_progress(self) -> None:
        self._alive_s = time.monotonic()

    async def _heed_changes(self) -> None:
        """Process each change that inotify reports, also while the worker is busy. Runs until it is canceled."""
        while True:
            change = await self._watch.wait()
            heeded = catch_errors(partial(self._heed, change))
            trouble = heeded.detail if isinstance(heeded, InternalError) else change.trouble
            if trouble:
                self._log.log("event", ERROR, f"what changed is not known, so everything is looked at: {trouble}")
                self.rescan()

    def _heed(self, change: Change) -> None:
        """Request a look if journal files changed. Wake the main loop for that, and if a flush timer started."""
        flushes = self._worker.engine.memory.flushes
        began = [flushes.note_append(directory) for directory in change.appended]
        if change.everything:
            self.rescan()
        elif change.rescan:
            self._look_is_due = True
        if change.rescan or any(began):
            self._woken.set()

    def _gives_way(self) -> bool:
        """Return whether the service's own run must end between two pieces. Any thread may call this."""
        return self._stopping or self.paused or bool(self.jobs.queue)

    def _end(self) -> None:
        self._stopping = True
        self._woken.set()

    async def _feed_watchdog(self) -> None:
        while self._notify.watchdog_s is not None:
            self._notify.alive()
            if self._alive_s is not None and time.monotonic() - self._alive_s > self._stuck_s:
                # the end of the run corrects this
                self._take(Failed(f"The run has waited for the disk for more than {self._stuck_s:.0f} s", now_us()))
            await asyncio.sleep(self._notify.watchdog_s)

    # -- What it knows -------------------------------------------------------------------------

    def _post(self, message: Message) -> None:
        """Pass a message of the worker to `_take` in the event loop. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._take, message)

    def _take(self, message: Message) -> None:
        """Update the state with a message of the worker, and publish the new state."""
        self._state = after(self._state, message)
        if isinstance(message, FileDone):
            self.events.publish(message)
        elif isinstance(message, Progressed):
            for job in self.jobs.queue:
                if job.number == message.job:
                    job.progress = message.progress
            if not message.job:
                self._note_progress()
                self._notify.status(f"working on {message.progress.path}")
        self._publish_state()

    def _publish_state(self) -> None:
        """Judge the state, and pass the verdict to the service manager, the log, the metrics and the bus."""
        present = self._state.present._replace(**self._checked._asdict(), unwatched=self._watch.watches.problem)
        state = self._state = self._state._replace(present=present, verdict=judge_present(present, now_us()))
        health = state.verdict.health
        if health != "unknown" and not state.working:
            self._notify.status(state.status_line)
        if problems := state.verdict.problems:
            words = " ".join(finding.word for finding in problems)
            self._log.log("health", WARNING, state.headline, same=words)
        elif health == "ok":
            self._log.log_end("health", state.headline)
        if health != self._health and not self._stopping:
            self._health = health
            publish = partial(self._worker.engine.publish_health, healthy={"ok": True, "act": False}.get(health))
            self._worker.run(publish)
        self.events.publish(Changed())

    async def refresh(self, *, hurry: bool = True) -> None:
        """Check the configuration and the rights, whose changes cause no event, and judge the state again.

        With `hurry`, for a caller, check at most every CHECK_S, and do not wait longer than CHECK_WAIT_S for the
        result.
        """
        if self._checking is None and (not hurry or time.monotonic() - self._checked_s >= CHECK_S):
            self._checking = self._loop.create_task(self._check())
        if self._checking is not None:
            await asyncio.wait({self._checking}, timeout=CHECK_WAIT_S if hurry else None)

    async def _check(self) -> None:
        engine, before = self._worker.engine, self._state.verdict
        try:
            checked = await asyncio.to_thread(check, self._load, engine)
        finally:
            self._checking, self._checked_s = None, time.monotonic()
        if engine is self._worker.engine and not self._reloading.locked():  # a reload has the newer answer
            self._checked = checked
        present = self._state.present._replace(**self._checked._asdict())
        if judge_present(present, now_us()) != before:
            self._publish_state()

    def snapshot(self) -> Snapshot:
        """Return the present state of the service, with the flush windows as of now."""
        working = self._state.working or any(job.running for job in self.jobs.queue)
        windows = tuple(at(one, now_us()) for one in self._state.windows)
        engine = self._worker.engine
        state = self._state._replace(directories=engine.directories, budget_bytes=engine.config.budget.bytes_per_day)
        return state._replace(working=working, windows=windows)

    @property
    def paused(self) -> bool:
        """True while the service does no work of its own because of a pause. Any thread may read this."""
        return self._state.present.paused

    # -- What callers request ------------------------------------------------------------------

    async def plan(self, request: Request) -> dict[str, Any]:
        """Return the document of `plan -j` for a caller. Raises: KeeperError, OSError as Engine.plan.

        One plan is made at a time, with a rest after it, because every user may ask and the worker has its own work.
        """
        loop = self._loop
        async with self._turn:
            await asyncio.sleep(self._plan_after_s - loop.time())
            began_s = loop.time()
            try:
                return await self._worker.run(partial(self._worker.plan, request))
            finally:
                now_s = loop.time()
                self._plan_after_s = now_s + min(REST_MOST_S, REST * (now_s - began_s))

    async def _do(self, job: Job) -> Ended:
        try:
            ended, report = await self._worker.run(partial(self._worker.do, job))
        finally:
            self.rescan()
        self._log.log_job(report)
        return ended

    def pause(self, span_us: int) -> None:
        """Stop the service's own work for `span_us` microseconds; 0 means until `resume`."""
        self.resume()
        self._state = self._state._replace(present=self._state.present._replace(paused=True))
        if span_us:
            self._resume = self._loop.call_later(span_us / 1e6, self.resume)
        self._publish_state()

    def resume(self) -> None:
        """End a pause, and do now what became due during it."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self.paused:
            self._state = self._state._replace(present=self._state.present._replace(paused=False))
            self.rescan()
            self._publish_state()

    def rescan(self) -> None:
        """Request that the watches are made anew and every file is looked at, and wake the main loop."""
        self._look_is_due = self._watches_are_due = True
        self._woken.set()

    async def reload(self) -> None:
        """Read the configuration again. Raises: KeeperError, OSError if it is wrong; the running values stay."""
        async with self._reloading:
            self._notify.reloading()
            try:
                engine = await asyncio.to_thread(self._load)
                engine.take_over(self._worker.engine)
                self._worker.engine, self._checked = engine, Checked()
                self._say(INFO, "the configuration was read again", Event.RELOADED)
            except (KeeperError, OSError) as error:
                self._checked = self._checked._replace(configuration=f"{WRONG}: {error}")
                self._say(ERROR, f"not reloaded, the running configuration stays: {error}", Event.NOT_RELOADED)
                raise
            finally:
                self.rescan()
                self._notify.ready()
                self._publish_state()

    async def _heed_hangups(self) -> None:
        """Reload after SIGHUP."""
        while True:
            await self._hung_up.wait()
            self._hung_up.clear()
            try:
                await self.reload()
            except (KeeperError, OSError):
                continue  # it is logged
            except Exception as error:  # noqa: BLE001 - whatever it is, the next SIGHUP is heeded
                self.complain("the reload failed", error)

    # -- Reports of the server on the bus ------------------------------------------------------

    def bus_lost(self, why: str) -> None:
        """Log the sentence `why`, which reports that there is no bus. A repeated call logs nothing new."""
        self._log.log("bus", WARNING, why)

    def bus_found(self) -> None:
        """Log that the bus is there again, if its loss was logged."""
        self._log.log_end("bus", "on the system bus again")

    def complain(self, what: str, error: Exception) -> None:
        """Log an unexpected exception with its traceback. `what` is the failure that it caused."""
        self._log.log_bug(what, error)
