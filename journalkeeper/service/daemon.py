# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service: it waits for an event or a named time, runs the engine once, and waits again.

The event loop never blocks and nothing polls. One worker thread looks and works; the loop takes events and computes the
next time. It wakes for a change that the watch reports, the time at which a plan can differ (Plan.wake_at_us), the
times around a due flush (Engine.next_flush_look_us), a signal, and systemd's watchdog.

All times are monotonic, so that a change of the wall clock causes neither an early nor a late wake-up.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event as ThreadEvent
from typing import Final, TypeVar

from journalkeeper.engine import DAEMON, DAY_S, Engine, now_us
from journalkeeper.health.verdict import describe_foreign, present_after_run
from journalkeeper.history import state
from journalkeeper.history.database import RecordLockedError
from journalkeeper.model import Outcome, Reason, Request, Result
from journalkeeper.model.errors import BusyError, KeeperError, NotBtrfsError
from journalkeeper.model.internal_error import InternalError, catch_errors
from journalkeeper.model.progress import Progress
from journalkeeper.model.run import Report
from journalkeeper.model.units import HOUR_US, MINUTE_US, quantile
from journalkeeper.observe.intake import IntakeDelays
from journalkeeper.policy.deferral import PASSING, get_retry_delay_us
from journalkeeper.service.api import Api
from journalkeeper.service.backoff import RETRY_S, Backoff, CpuShare
from journalkeeper.service.daily_log import DailyLog, Mistakes, Say
from journalkeeper.service.jobs import FileDone
from journalkeeper.service.log import ERROR, INFO, WARNING, Event
from journalkeeper.service.mailbox import Mailbox
from journalkeeper.service.messages import Began, Failed, FlushesLooked, Looked, Message, NotOnBtrfs
from journalkeeper.service.mounts import read_only_mounts, unwritable
from journalkeeper.service.notify import Notify
from journalkeeper.service.reloader import Reloader
from journalkeeper.service.run_log import RunLog
from journalkeeper.service.snapshot import Snapshot, findings
from journalkeeper.service.wakeups import Wakeups
from journalkeeper.service.watch import Change

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

SOON_S: Final = 0.1
"""The least time between two cycles that no event caused."""

STUCK_S: Final = 120.0
"""A run without any progress for this long waits for a disk that does not answer.

Reading a piece of 32 MiB with 5,000 extents takes 33 s at 150 IOPS.
"""

T = TypeVar("T")


class Daemon:
    """Keeps journals in order until a signal ends it.

    `load` makes an engine from the present configuration. `say` logs a sentence with a syslog priority (3 error, 4
    warning, 6 information) without blocking. Create it in the event loop. `cycles` counts the whole looks.
    """

    def __init__(self, load: Callable[[], Engine], say: Say) -> None:
        self._loop = asyncio.get_running_loop()
        self._say = say
        self._daily = DailyLog(say)
        self._notify = Notify()
        self._wakeups = Wakeups()
        self._stop = ThreadEvent()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._log = RunLog(self._daily, say)
        self._reloader = Reloader(load, self._handle_change, self._wakeups, say=say, notify=self._notify)
        self._mistakes = Mistakes(partial(say, ERROR))
        self._mailbox = Mailbox[Message](self._loop, self._take)
        self.api = Api(
            self._reloader,
            self._wakeups,
            self._worker,
            log=self._log,
            post=self._mailbox.post,
            stop=self._stop,
            complain=self.complain,
            tell=self._tell,
        )
        self._health = ""
        self._intake_delays = IntakeDelays()
        self._again_s: float | None = None
        self._retry, self._watch_retry = Backoff(), Backoff()
        self._looks, self._flush_looks = (CpuShare(LOOK_SHARE, LOOK_BURST_S) for _ in range(2))
        self._work_began_cpu_s: float | None = None
        self._alive_s: float | None = None
        self._watch_problem = ""
        self._flushes_looked: FlushesLooked | None = None
        self._read_only_at_start = frozenset(read_only_mounts(self._reloader.engine.directories))
        self.cycles = 0

    async def run(self, *beside: Callable[[], Coroutine[None, None, None]]) -> None:
        """Work until SIGTERM or SIGINT, and run the tasks `beside`; a running action ends between two pieces.

        Raises: BusyError if another daemon has the state directory, now or later; KeeperError without one.
        """
        loop, reloader = self._loop, self._reloader
        try:
            with state.lock(reloader.engine.state_directory, state.DAEMON_LOCK) as lock:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self._end)
                loop.add_signal_handler(signal.SIGHUP, reloader.request)
                reloader.watch.attach(loop)
                tasks = [loop.create_task(work()) for work in (self._feed_watchdog, *beside)]
                try:
                    await self._work(lock)
                finally:
                    self._notify.stopping()
                    await self.api.jobs.close()
                    for task in tasks:
                        task.cancel()
                    self._worker.shutdown(wait=True)
        finally:
            reloader.watch.close()

    # -- Reports of the server on the bus ------------------------------------------------------

    def bus_lost(self, why: str) -> None:
        """Log that there is no bus; calls may repeat."""
        self._daily.log("bus", WARNING, why)

    def bus_found(self) -> None:
        """Log that the bus is there again, if its loss was logged."""
        if self._daily.clear("bus"):
            self._say(INFO, "on the system bus again", Event.RECOVERED)

    def complain(self, what: str, error: Exception) -> None:
        """Log an unexpected exception."""
        self._mistakes.complain(what, error)

    # -- In the event loop ---------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        self.api.take(message)

    def _tell(self, state: Snapshot) -> None:
        """Pass the verdict on to the service manager, the log and the metrics."""
        if state.verdict.health != "unknown" and not state.working:
            self._notify.status(state.status_line)
        if problems := state.verdict.problems:
            words = " ".join(finding.word for finding in problems)
            self._daily.log("health", WARNING, state.headline, same=words)
        elif state.verdict.health == "ok" and self._daily.clear("health"):
            self._say(INFO, state.headline, Event.RECOVERED)
        if state.verdict.health != self._health and not self._stop.is_set():
            self._health = state.verdict.health
            healthy = {"ok": True, "act": False}.get(self._health)
            publish = self._reloader.engine.publish_health
            self._loop.run_in_executor(self._worker, lambda: publish(healthy=healthy))

    def _gives_way(self) -> bool:
        """Return whether the service's own work must end between two pieces. From any thread."""
        return self._stop.is_set() or self.api.paused or self.api.jobs.waiting

    async def _work(self, lock: state.Lock) -> None:
        """Sleep until there is a reason to act, then look at the flush timers or at everything, and repeat.

        Raises: KeeperError if the state directory was removed and cannot be made or locked anew, since a second service
        may run. The service manager makes the directory for the next start.
        """
        await self._in_worker(self._watch_again)
        self._notify.ready()
        while not self._stop.is_set():
            await self._sleep()
            self._wakeups.clear()
            if self._stop.is_set():
                return
            if self._again_s is not None and time.monotonic() >= self._again_s:
                self._wakeups.look, self._again_s = True, None
            if self._may_look(time.monotonic()):
                self._wakeups.look = False
                await self._in_worker(lock.renew)
                wait_s = await self._in_worker(self._cycle)
                again_s = None if wait_s is None else time.monotonic() + max(wait_s, SOON_S)
                self._again_s = _earliest(again_s, self._watch_retry.at_s)
            elif time.monotonic() >= self._flush_looks.free_at_s:
                passed = await self._in_worker(self._look_at_flushes)
                if passed:  # and not `|=`, which would forget a look that was asked for in the worker
                    self._wakeups.look = True

    async def _in_worker(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._worker, work)

    async def _sleep(self) -> None:
        """Wait for a wake-up or the next named time."""
        if self._may_look(time.monotonic()):
            return
        flush_us = self._reloader.engine.next_flush_look_us()
        flush_s = None if flush_us is None else max(flush_us / 1e6, self._flush_looks.free_at_s)
        look_s = self._looks.free_at_s if self._wakeups.look and not self.api.paused else None
        next_s = _earliest(self._again_s, flush_s, look_s)
        await self._wakeups.wait(None if next_s is None else max(0.0, next_s - time.monotonic()))

    def _may_look(self, now_s: float) -> bool:
        """Return whether a look at everything is due and allowed now."""
        return self._wakeups.look and not self.api.paused and now_s >= self._looks.free_at_s

    def _look_at_flushes(self) -> bool:
        """Look at the flush timers and return whether a flush is over. In the worker."""
        began_s = time.thread_time()
        passed = self._reloader.engine.has_flush_passed()
        self._flush_looks.spend(time.thread_time() - began_s, time.monotonic())
        self._post_windows()
        return passed

    def _post_windows(self) -> None:
        """Report the windows to the loop if they changed."""
        looked = FlushesLooked(*self._reloader.engine.windows())
        if looked != self._flushes_looked:
            self._flushes_looked = looked
            self._mailbox.post(looked)

    def _watch_again(self) -> None:
        """Make all watches again. In the worker, because it may wait for a disk.

        Refused watches are tried again at every look, and cause one.
        """
        self._wakeups.refresh = False
        try:
            self._reloader.watch.refresh()
        except KeeperError as error:
            self._wakeups.refresh, self._watch_problem = True, str(error)
            self._watch_retry.note_failure(time.monotonic())
        else:
            self._watch_problem = ""
            self._watch_retry.note_success()

    def _cycle(self) -> float | None:
        """Look, plan and work, in the worker. Return after how many seconds the next plan can differ.

        Raises: KeeperError if a directory can no longer be written because another one took its place. The mounts of a
        unit are made when it starts, so systemd has to start it again. A directory that was read-only at the start does
        not end the service, because a new start would change nothing.
        """
        tops = self._reloader.engine.directories
        replaced = {key: path for key, path in read_only_mounts(tops).items() if key not in self._read_only_at_start}
        if replaced:
            path = next(iter(replaced.values()))
            raise KeeperError(
                f"{path} was made or replaced after the service started, and its unit may not write there; "
                "it ends now, and systemd starts it again"
            )
        began_s, self._work_began_cpu_s = time.thread_time(), None
        self._alive_s = time.monotonic() if self.cycles else None  # the first look may take any time
        try:
            return self._run_engine()
        finally:
            self._alive_s = None
            # Only the time of looking counts: the budget bounds rewrites, and the first look is free.
            ended_s = time.thread_time() if self._work_began_cpu_s is None else self._work_began_cpu_s
            if self.cycles > 1:
                self._looks.spend(ended_s - began_s, time.monotonic())

    def _run_engine(self) -> float | None:
        self.cycles += 1
        if self._wakeups.refresh:
            self._watch_again()
        engine = self._reloader.engine
        try:
            report = engine.run(
                Request(upkeep=True),
                on_progress=self._progress,
                stop=self._gives_way,
                origin=DAEMON,
                on_outcome=lambda outcome: self._mailbox.post(FileDone(outcome, now_us())),
            )
        except NotBtrfsError as error:
            if engine.memory.seen.instances:  # it was on btrfs before, so it is unmounted or replaced
                return self._report_failure(error)
            # A mount will cause an event; until then there is nothing to do.
            self._daily.log("foreign", INFO, describe_foreign([error.path]))
            self._mailbox.post(NotOnBtrfs(error.path))
            return None
        except (KeeperError, OSError) as error:
            return self._report_failure(error)
        self._retry.note_success()
        self._log.run(engine, report)
        self._reloader.compare()
        self._mailbox.post(self._summarize(engine, report))
        passed = engine.has_flush_passed()
        self._post_windows()
        if passed:
            return 0.0
        return _wait_s(report, engine.next_whole_look_us())

    def _summarize(self, engine: Engine, report: Report) -> Message:
        """Return the result of a run over everything as a message for the loop."""
        host = report.host
        if host is None:
            return Failed("", now_us())
        numbers = engine.status(host, report.plan, report.outcomes)
        found = findings(host, report.plan, report.outcomes, numbers, engine.settle_us)
        present = present_after_run(report.plan, report.outcomes, report.waiting)._replace(
            unwatched=self._watch_problem,
            unwritable=unwritable(engine.directories),
            unrecorded="; ".join(report.unrecorded),
        )
        p99_us = quantile(sorted(self._intake_delays.look(host.files)), 990)
        return Looked(found, tuple(sorted(engine.list_missing_directories())), p99_us, present, report.counters)

    def _report_failure(self, error: KeeperError | OSError) -> float:
        """Report a failed cycle and return the delay before the next, which grows.

        A run of another process is no failure.
        """
        if isinstance(error, BusyError):
            limit_us = MINUTE_US if isinstance(error, RecordLockedError) else HOUR_US
            self._mailbox.post(Failed(str(error), now_us(), limit_us))
            return RETRY_S
        self._mailbox.post(Failed(str(error), now_us()))
        now_s = time.monotonic()
        self._retry.note_failure(now_s)
        return (self._retry.at_s or now_s) - now_s

    def _progress(self, progress: Progress) -> None:
        if self._work_began_cpu_s is None:
            self._work_began_cpu_s = time.thread_time()
        self._alive_s = time.monotonic()
        self._notify.status(f"working on {progress.path}")
        self._mailbox.post(Began())

    def _handle_change(self, change: Change) -> None:
        """Handle a change that the watch reports: a rescan, a look, or a wake-up if a flush interval begins."""
        engine = self._reloader.engine
        began = catch_errors(lambda: [engine.memory.flushes.note_append(directory) for directory in change.appended])
        trouble = began.detail if isinstance(began, InternalError) else change.trouble
        if trouble:
            self._daily.log("event", ERROR, f"what changed is not known, so everything is looked at: {trouble}")
        if change.everything or trouble:
            self._wakeups.rescan()
        elif change.rescan:
            self._wakeups.look_soon()
        elif not isinstance(began, InternalError) and any(began):
            self._wakeups.wake()

    def _end(self) -> None:
        self._stop.set()
        self._wakeups.wake()

    async def _feed_watchdog(self) -> None:
        while self._notify.watchdog_s is not None:
            self._notify.alive()
            self._notice_a_hang()
            await asyncio.sleep(self._notify.watchdog_s)

    def _notice_a_hang(self) -> None:
        """Report a run without progress as failed; its end corrects the report."""
        alive_s = self._alive_s
        if alive_s is not None and time.monotonic() - alive_s > STUCK_S:
            self._take(Failed(f"The run has waited for the disk for more than {STUCK_S:.0f} s", now_us()))


def _earliest(*moments_s: float | None) -> float | None:
    """Return the earliest of the known times, None if none is known."""
    return min((moment_s for moment_s in moments_s if moment_s is not None), default=None)


def _wait_s(report: Report, whole_us: int) -> float:
    """Return after how many seconds another plan can differ without an event; at `whole_us` everything is looked at."""
    wake_us = report.plan.wake_at_us
    wakes_us = [whole_us] if wake_us is None else [wake_us, whole_us]
    waits = [(min(wakes_us) - now_us()) / 1e6, DAY_S]  # no later, where the clock was set back meanwhile
    undone = [outcome for outcome in report.outcomes if outcome.result is not Result.DONE]
    return min([*waits, *map(_again_s, undone)])


def _again_s(outcome: Outcome) -> float:
    """Return after how many seconds an action that was not done is due again."""
    if outcome.reason is Reason.CHANGED:
        return CHANGED_S
    return RETRY_S if outcome.reason in PASSING else get_retry_delay_us(outcome.reason) / 1e6
