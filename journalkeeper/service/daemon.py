# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service: it waits for an event or a named time, runs the engine once, and waits again.

The event loop never blocks and nothing polls. One worker thread looks and works (worker.py); the loop takes events and
messages, and computes the next time. It wakes for a change that the watch reports, the time at which a plan can differ
(Plan.wake_at_us), the times around a due flush (WorkEnded.flush_look_at_s), a signal, and systemd's watchdog. The
state is one immutable Snapshot, which each message of the worker replaces as a whole.

All times are monotonic, so that a change of the wall clock causes neither an early nor a late wake-up.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from functools import partial
from math import inf
from typing import Any, Final

from journalkeeper.engine import Engine, now_us
from journalkeeper.health.verdict import describe_foreign, judge_present
from journalkeeper.history import state
from journalkeeper.journald import control
from journalkeeper.model import Plan, Request
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.units import TIME_LIMIT_US
from journalkeeper.observe.obstacles import Places, find_silent
from journalkeeper.policy.window import update_window
from journalkeeper.report.text import format_minute
from journalkeeper.service import snapshot as snapshots
from journalkeeper.service.jobs import Changed, Job, JobEnd, Jobs, Notification
from journalkeeper.service.log import ERROR, INFO, WARNING, Event, Log, Notify
from journalkeeper.service.watch import DirectoryWatch, watch_directories
from journalkeeper.service.worker import RETRY_S, WRONG, Worker

BUS_S: Final = 5.0  # a bus that does not answer keeps nobody waiting for longer

STUCK_S: Final = 120.0
"""A run that keeps a check waiting for this long waits for a disk that does not answer.

Reading a piece of 32 MiB with 5,000 extents takes 33 s at 150 IOPS.
"""

CHECK_EVERY_S: Final = 90.0
"""How often the present is checked where nothing happens and no caller asks. A new top or a mount is found then."""

CHECK_S: Final = 1.0
CHECK_WAIT_S: Final = 0.2
"""The least time between two checks for callers, and how long a caller waits for one, which a slow disk may delay."""

REST: Final = 4
REST_MOST_S: Final = 5.0
"""After a plan the next one waits four times as long as it took, up to this."""


class Daemon:
    """Keeps journals in order until a signal ends it, and does what callers request meanwhile.

    `load` makes an engine from the present configuration, first in the constructor, which must run in the event loop:
    it sets the loop's exception handler. A follower is called soon after every notification.
    """

    def __init__(self, load: Callable[[], Engine], log: Log) -> None:
        self._loop = asyncio.get_running_loop()
        self.log = log
        self._loop.set_exception_handler(self._log_exception)
        self.followers: list[Callable[[Notification], None]] = []
        self.jobs = Jobs(self._run_job, self._tell_followers)
        self._notify = Notify()
        self._stopping = False
        self._worker = Worker(load, self._post, self._must_give_way, lambda: self._stopping)
        self._state = snapshots.Snapshot(self._worker.engine.directories)
        self._watch = DirectoryWatch()
        self._woken = asyncio.Event()
        self._hung_up = asyncio.Event()
        self.bus_was_tried = asyncio.Event()
        self._look_at_s = 0.0
        self._work_ended = snapshots.WorkEnded((), 0, free_at_s=0.0, flush_look_at_s=inf)
        self._watches_are_due = True
        self._resume_at_us = inf
        self._worker_check: asyncio.Future[tuple[set[str], Places]] | None = None
        self._checking: asyncio.Future[None] | None = None
        self._checked_s = 0.0
        self._turn = asyncio.Lock()

    async def run(self, *beside: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run the service, and each of `beside` as a task, until SIGTERM or SIGINT. SIGHUP reloads the configuration.
        With `beside` it reports READY=1 when `bus_was_tried` is set, at most BUS_S later.

        At the end, send STOPPING=1, cancel all jobs, and wait for the worker: an action ends between two pieces.
        Raises: BusyError if another service has the state directory, at the start or later; KeeperError if that
        directory cannot be made or locked; ReplacedError if the service has to be started again.
        """
        with closing(self._watch), state.Lock(self._worker.engine.state_directory, state.DAEMON_LOCK) as lock:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, self._wake_to_stop)
            self._loop.add_signal_handler(signal.SIGHUP, self._hung_up.set)
            repeated = map(self._repeat, (self._feed_watchdog, self._handle_next_change, self._handle_next_hangup))
            tasks = [self._loop.create_task(work) for work in (*repeated, *(work() for work in beside))]
            try:
                await self._renew_watches()
                if beside:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.bus_was_tried.wait(), BUS_S)
                self._notify.send("READY=1")
                await self._work(lock)
            finally:
                self._notify.send("STOPPING=1\nSTATUS=")  # or systemctl shows the last verdict for ever
                self._stopping = True
                await self.jobs.close()
                for task in tasks:
                    task.cancel()
                self._worker.close()

    # -- When it works -------------------------------------------------------------------------

    async def _work(self, lock: state.Lock) -> None:
        """Look at everything or the flush timers when due, until a stop.

        Raises: as `_look_and_schedule`; every exception ends the service.
        Without the lock a second service could run. The service manager makes the directory for the next start.
        """
        while await self._sleep_once():
            if time.monotonic() >= self._next_look_s:
                await self._look_and_schedule(lock)
            elif time.monotonic() >= self._work_ended.flush_look_at_s:
                passed = await self._worker.run(self._worker.look_at_flushes)
                self._look_at_s = 0.0 if passed else self._look_at_s

    @property
    def _next_look_s(self) -> float:
        """The monotonic time of the next whole look: `_look_at_s`, or later by LOOK_SHARE; infinite during a pause."""
        return inf if self._state.present.paused else max(self._look_at_s, self._work_ended.free_at_s)

    async def _sleep_once(self) -> bool:
        """Sleep until an event or until work is due, and end a pause whose time is over. Return False at a stop."""
        wait_s = min(self._next_look_s, self._work_ended.flush_look_at_s) - time.monotonic()
        wait_s = min(wait_s, (self._resume_at_us - now_us()) / 1e6)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), wait_s)
        self._woken.clear()
        if now_us() >= self._resume_at_us:
            self.resume()
        return not self._stopping

    async def _renew_watches(self) -> None:
        """Replace the watches, and publish why one is missing (they stay due) or "". Raises: as `watch_directories`."""
        self._watches_are_due = False  # before the wait: a reload during it requests watches of other directories
        watches = await self._worker.run(partial(watch_directories, self._state.directories))
        self._watch.use(watches)
        self._watches_are_due |= bool(watches.problem)
        self._publish_present(unwatched=watches.problem)

    async def _look_and_schedule(self, lock: state.Lock) -> None:
        """Renew due watches and `lock`, look in the worker, log and publish the result, and set the next time.

        It is the earliest of: the result's `wait_s`, RETRY_S after a failure or with a missing watch, a rescan since.
        Raises: as Worker.look; KeeperError without `lock`; OSError as `_renew_watches`.
        """
        self._look_at_s = inf
        if self._watches_are_due:
            await self._renew_watches()
        message = await self._worker.run(partial(self._worker.look, lock.renew))
        failed = isinstance(message, snapshots.RunFailed) or self._watch.watches.problem
        wait_s = RETRY_S if failed else inf
        if isinstance(message, snapshots.Looked):
            self.log.log_run(message.report, self._state.directories, message.findings.missing)
            wait_s = min(wait_s, message.wait_s)
        elif isinstance(message, snapshots.NotOnBtrfs):  # A check will find a mount; until then there is nothing to do.
            self.log.log("foreign", INFO, describe_foreign([message.path]))
        self._look_at_s = min(self._look_at_s, time.monotonic() + wait_s)
        self._apply(message)

    async def _repeat(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Repeat `work`, which waits before it can fail, until canceled. Log an exception as a bug, and rescan."""
        while True:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - no input ends the service
                self.log.log_bug("an event could not be handled, so all files are examined", error)
                self.rescan()

    async def _handle_next_change(self) -> None:
        """Wait for a change. Have its appends recorded (when idle, only awaited ones), and rescan for all else."""
        change = await self._watch.wait()
        if news := change.appended if self._worker.calls else change.appended & self._work_ended.awaiting:
            heard_us = time.monotonic_ns() // 1000
            self._worker.run_between_pieces(partial(self._worker.note_appends, news, heard_us))
        if change.renamed or change.rescan:
            self.rescan(renew=change.rescan)

    async def _handle_next_hangup(self) -> None:
        """Wait for the next SIGHUP, and reload the configuration. An error is logged, not raised."""
        await self._hung_up.wait()
        self._hung_up.clear()
        with suppress(KeeperError, OSError):  # it is logged
            await self.reload()

    async def _feed_watchdog(self) -> None:
        """Call `refresh`, sleep, always feed the watchdog, and apply a RunFailed if a check has waited for STUCK_S.

        A run makes checks between two pieces. Only the first look may take any time.
        """
        await self.refresh()
        await asyncio.sleep(self._notify.watchdog_s or CHECK_EVERY_S)
        self._notify.send("WATCHDOG=1")
        waits = self._state.findings and self._worker_check and not self._worker_check.done()
        if waits and time.monotonic() - self._checked_s > STUCK_S:
            self._apply(snapshots.RunFailed(f"The run has waited for the disk for more than {STUCK_S:.0f} s", now_us()))

    def _must_give_way(self) -> bool:
        """Return whether the own run must end between two pieces (stop, pause or job). Any thread may call this."""
        return self._stopping or bool(self._state.present.paused or self.jobs.queue)

    def _wake_to_stop(self) -> None:
        self._stopping = True
        self._woken.set()

    def _post(self, message: snapshots.Message) -> None:
        """Pass a message of the worker to `_apply` in the event loop. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._apply, message)

    def _apply(self, message: snapshots.Message) -> None:
        """Apply a message of the worker, and publish the state, unless Checked or WorkEnded changes nothing.

        Set the next times, and show progress in the job or the status line. Tell followers of a file, wake the main
        loop after a call, and rescan if a check found other directories.
        """
        match message:
            case snapshots.Checked() if self._watch.watches.tops not in {None, message.tops}:
                self.rescan()
            case snapshots.WorkEnded():
                self._work_ended = message
                self._woken.set()
            case snapshots.FileDone():
                self._tell_followers(message)
            case snapshots.Progressed(number, progress):
                if number:
                    self.jobs.find(number).progress = progress
                else:
                    self._notify.set_status(f"working on {progress.path}")
        state = snapshots.apply_message(self._state, message)
        if state != self._state or not isinstance(message, snapshots.Checked | snapshots.WorkEnded):
            self._publish(state)

    def _publish_present(self, **facts: Any) -> None:
        """Replace these fields of the present, and publish the state, also if nothing differs."""
        self._publish(self._state._replace(present=self._state.present._replace(**facts)))

    def _publish(self, state: snapshots.Snapshot) -> None:
        """Judge and store `state`, and always tell followers. Log problems and their end. Write new health to metrics.

        Set STATUS= to the headline, but not while the service works or the health is unknown.
        """
        before, self._state = self._state, state._replace(verdict=judge_present(state.present, now_us()))
        state, health = self._state, self._state.verdict.health
        if health != "unknown" and not state.working:
            self._notify.set_status(state.headline)
        if problems := state.verdict.problems:
            self.log.log("health", WARNING, state.headline, same=" ".join(finding.word for finding in problems))
        elif health == "ok":
            self.log.log_end("health", f"no problem is left. {state.headline}")
        if health != before.verdict.health and not self._stopping:
            self._worker.run_between_pieces(
                lambda: self._worker.engine.publisher.publish_health(healthy=state.verdict.healthy)
            )
        self._tell_followers(Changed())

    def _log_exception(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception in the event loop as a bug. The daemon continues."""
        self.log.log_bug(context["message"], context.get("exception") or RuntimeError(context["message"]))

    def _tell_followers(self, notification: Notification) -> None:
        for follow in self.followers:
            self._loop.call_soon(follow, notification)  # an exception of it goes to the loop's handler

    async def refresh(self) -> None:
        """Check what no event reports, unless a check runs or began within CHECK_S. Wait for it up to CHECK_WAIT_S."""
        now_s = time.monotonic()
        if self._checking is None or (self._checking.done() and now_s - self._checked_s >= CHECK_S):
            self._checking, self._checked_s = self._loop.create_task(self._check_and_ask_journalds()), now_s
        await asyncio.wait({self._checking}, timeout=CHECK_WAIT_S)

    async def _check_and_ask_journalds(self) -> None:
        """Have the worker check. Rescan if a directory was replaced: a look ends the daemon. Publish silent journalds.

        Another thread asks them, which shares nothing: a journald that hangs takes control.TIMEOUT_S.
        """
        self._worker_check = self._worker.run_between_pieces(self._worker.check)
        replaced, places = await self._worker_check
        if replaced:
            self.rescan()
        silent = await self._loop.run_in_executor(None, find_silent, places, control.TIMEOUT_S)
        if silent != self._state.present.silent:
            self._publish_present(silent=silent)

    def snapshot(self) -> snapshots.Snapshot:
        """Return the state of the service, with the windows as of now. `working` is True also while there are jobs."""
        windows = tuple(update_window(one, now_us()) for one in self._state.windows)
        return self._state._replace(working=self._state.working or bool(self.jobs.queue), windows=windows)

    async def plan(self, request: Request) -> Plan:
        """Return a plan, made after the worker's earlier calls. Raises: KeeperError, OSError as Engine.plan.

        Plans are made one at a time, a rest after each, because every user may ask and the worker has its own work.
        """
        await self._turn.acquire()
        began_s = time.monotonic()
        try:
            return await self._worker.run(partial(self._worker.plan, request))
        finally:
            rest_s = min(REST_MOST_S, REST * (time.monotonic() - began_s))
            self._loop.call_later(rest_s, self._turn.release)

    async def _run_job(self, job: Job) -> JobEnd:
        """Have the worker do the job, and log its results. Rescan with the same watches, also after an error."""
        try:
            result, report = await self._worker.run(partial(self._worker.do, job))
        finally:
            self.rescan(renew=False)
        self.log.log_results(report)
        return result, report

    def pause(self, span_us: int) -> None:
        """Stop the service's own work, but not jobs, for `span_us`, with 0 until `resume`. A new pause replaces it."""
        self.resume()
        end_us = now_us() + span_us
        self._resume_at_us = end_us if span_us and end_us < TIME_LIMIT_US else inf
        self._publish_present(paused=f"until {format_minute(end_us) if self._resume_at_us < inf else 'it is resumed'}")
        self._woken.set()

    def resume(self) -> None:
        """End a pause, and request new watches and a look at everything. Without a pause, do nothing."""
        self._resume_at_us = inf
        if self._state.present.paused:
            self._publish_present(paused="")
            self.rescan()

    def rescan(self, *, renew: bool = True) -> None:
        """Request a look at every file, with `renew` also new watches, and wake the main loop.

        New watches lose what the old ones have not reported yet, such as an append.
        """
        self._look_at_s, self._watches_are_due = 0.0, self._watches_are_due or renew
        self._woken.set()

    async def reload(self) -> None:
        """Read the configuration again, with RELOADING=1 and READY=1 to systemd, and log and publish the result.

        Always request new watches and a look. Raises: KeeperError, OSError if it is wrong; the running values stay.
        """
        self._notify.send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            directories = await self._worker.run_between_pieces(self._worker.reload)
            self._state = self._state._replace(directories=directories)
            self._publish_present(configuration="", unwritable=())
            self.log.say(INFO, "configuration reloaded; the new settings are in effect", Event.RELOADED)
        except (KeeperError, OSError) as error:
            self._publish_present(configuration=f"{WRONG}: {error}")
            self.log.say(ERROR, f"configuration not reloaded, the old settings stay: {error}", Event.NOT_RELOADED)
            raise
        finally:
            self.rescan()
            self._notify.send("READY=1")
