# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service: an event or a named moment, one look, one plan, its actions, and asleep again.

The one rule: the event loop never blocks and nothing polls. One worker thread looks and
works; the loop only takes wakes in and names the next. What wakes: a change that the
watch saw, the moment at which a plan can differ (Plan.wake_at_us), the moments around a
due flush (Engine.next_flush_look_us), a signal, and systemd's watchdog.

All moments are kept by the monotonic clock, so that a clock that is set wakes nobody early
and lets nobody oversleep.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from journalkeeper.engine import DAEMON, PASSING, Engine, now_us
from journalkeeper.history import state
from journalkeeper.model import Kind, Outcome, Reason, Request, Result
from journalkeeper.model.errors import BusyError, KeeperError, NotBtrfsError
from journalkeeper.model.internal_error import InternalError, guarded
from journalkeeper.model.progress import Progress
from journalkeeper.model.run import Report
from journalkeeper.model.waiting import sentence
from journalkeeper.policy import nocow
from journalkeeper.policy.deferral import AGAIN_US
from journalkeeper.service.api import Api, Connect
from journalkeeper.service.backoff import RETRY_S, Backoff, CpuShare
from journalkeeper.service.daily_log import DailyLog, Say
from journalkeeper.service.log import Event
from journalkeeper.service.notify import Notify
from journalkeeper.service.watch import Change, Watch

LOOK_SHARE: Final = 0.05
LOOK_BURST_S: Final = 0.5
"""Looks take this share of one processor at most, after so much of it that is free: a look at 100
files takes 7 ms and never waits, one at thousands that somebody changes 20 times a second does."""

SOON_S: Final = 0.1
"""The least time between two cycles that only the clock asked for."""

ERROR, WARNING, INFO = 3, 4, 6


class Daemon:
    """Keeps journals in order until it is told to stop.

    `load` makes an engine from the configuration as it is now; `say` takes a syslog priority
    (3 error, 4 warning, 6 information) and a sentence, and takes no time; `connect`
    makes what serves on the system bus. `cycles` counts the whole looks.
    """

    def __init__(self, load: Callable[[], Engine], say: Say, connect: Connect | None = None) -> None:
        self._load = load
        self._connect = connect
        self._say = say
        self._daily = DailyLog(say)
        self._engine = load()
        self._notify = Notify()
        self._wake = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._api = Api(self, self._worker)
        self._watch = Watch(self._engine.directories, self._changed)
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False
        self._reload_error: KeeperError | OSError | None = None
        self._stop = False
        self._look = self._refresh = True
        self._again_s: float | None = None
        self._retry, self._watch_retry = Backoff(), Backoff()
        self._looks, self._flush_looks = (CpuShare(LOOK_SHARE, LOOK_BURST_S) for _ in range(2))
        self._work_began_cpu_s: float | None = None
        self._watch_problem = ""
        self.cycles = 0

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT; an action under way ends between two pieces.

        Raises: BusyError if another daemon has the state directory, now or later; KeeperError without one.
        """
        loop = asyncio.get_running_loop()
        try:
            with state.lock(self._engine.state_directory, state.DAEMON_LOCK) as lock:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self._end)
                loop.add_signal_handler(signal.SIGHUP, self._reload)
                self._watch.attach(loop)
                beside = [loop.create_task(self._feed_watchdog()), *self._door(loop)]
                try:
                    await self._work(loop, lock)
                finally:
                    self._notify.stopping()
                    await self._api.jobs.close()
                    for task in beside:
                        task.cancel()
                    self._worker.shutdown(wait=True)
        finally:
            self._watch.close()

    def _door(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[None]]:
        """Serve on the system bus, as soon as there is one."""
        if self._connect is None:
            return []

        def well() -> None:
            if self._daily.clear("bus"):
                self._say(INFO, "on the system bus again", Event.RECOVERED)

        def mistake(text: str) -> None:
            self._say(ERROR, text)

        listener = self._connect(self._api, lambda text: self._daily.log("bus", WARNING, text), well, mistake)
        self._api.open(loop, listener)
        return [loop.create_task(listener.run())]

    @property
    def engine(self) -> Engine:
        """By the configuration as it is now."""
        return self._engine

    @property
    def stopping(self) -> bool:
        """Whether it is to end. From any thread."""
        return self._stop

    def rescan(self) -> None:
        """Look at everything, soon."""
        self._look = self._refresh = True
        self._wake.set()

    async def reload(self) -> None:
        """Read the configuration again. Raises: KeeperError, OSError if it is wrong; the running one stays."""
        self._reload()
        if self._reloading is not None:
            await asyncio.shield(self._reloading)
        if self._reload_error is not None:
            raise self._reload_error

    def _gives_way(self) -> bool:
        """Whether the service's own work is to end between two pieces. From any thread."""
        return self._stop or self._api.paused or self._api.jobs.waiting

    async def _work(self, loop: asyncio.AbstractEventLoop, lock: state.Lock) -> None:
        """Sleep until there is a reason, then look at the timers or at everything, and so on.

        Raises: KeeperError if the state directory was removed and cannot be made or locked anew: a
            second service may be at work. The service manager makes the directory for the next start.
        """
        await loop.run_in_executor(self._worker, self._watch_again)
        self._notify.ready()
        while not self._stop:
            await self._sleep()
            self._wake.clear()
            if self._stop:
                return
            if self._again_s is not None and time.monotonic() >= self._again_s:
                self._look, self._again_s = True, None
            if self._may_look(time.monotonic()):
                self._look = False
                await loop.run_in_executor(self._worker, lock.keep)
                wait_s = await loop.run_in_executor(self._worker, self._cycle)
                again_s = None if wait_s is None else time.monotonic() + max(wait_s, SOON_S)
                self._again_s = _earliest(again_s, self._watch_retry.at_s)
            elif time.monotonic() >= self._flush_looks.free_at_s:
                passed = await loop.run_in_executor(self._worker, self._flush_passed)
                if passed:  # and not `|=`, which would forget a look that was asked for meanwhile
                    self._look = True

    async def _sleep(self) -> None:
        """Until something wakes us, or the next named moment."""
        if self._may_look(time.monotonic()):
            return
        flush_us = self._engine.next_flush_look_us()
        flush_s = None if flush_us is None else max(flush_us / 1e6, self._flush_looks.free_at_s)
        look_s = self._looks.free_at_s if self._look and not self._api.paused else None
        next_s = _earliest(self._again_s, flush_s, look_s)
        try:
            await asyncio.wait_for(self._wake.wait(), None if next_s is None else max(0.0, next_s - time.monotonic()))
        except TimeoutError:
            return

    def _may_look(self, now_s: float) -> bool:
        """Whether a look at everything is due and its turn has come."""
        return self._look and not self._api.paused and now_s >= self._looks.free_at_s

    def _flush_passed(self) -> bool:
        """Look at the flush timers, in the worker."""
        began_s = time.thread_time()
        passed = self._engine.flush_passed()
        self._flush_looks.spend(time.thread_time() - began_s, time.monotonic())
        return passed

    def _watch_again(self) -> None:
        """Watch what there is now, in the worker: it may wait for a disk.

        What is refused is tried again at every look, and a look is made for it.
        """
        self._refresh = False
        try:
            self._watch.refresh()
        except KeeperError as error:
            self._refresh, self._watch_problem = True, str(error)
            self._watch_retry.failed(time.monotonic())
            self._daily.log("watch", WARNING, f"{error}; looked at by the clock, and tried again, until that succeeds")
        else:
            self._watch_problem = ""
            self._watch_retry.succeeded()
            if self._daily.clear("watch"):
                self._say(INFO, "every directory is watched again", Event.RECOVERED)

    def _cycle(self) -> float | None:
        """Look, plan and do, in the worker; after how many seconds the next plan can differ."""
        began_s, self._work_began_cpu_s = time.thread_time(), None
        try:
            return self._looked()
        finally:
            # Rewriting files is wanted, and bounded by the budget; looking is not.
            ended_s = time.thread_time() if self._work_began_cpu_s is None else self._work_began_cpu_s
            self._looks.spend(ended_s - began_s, time.monotonic())

    def _looked(self) -> float | None:
        self.cycles += 1
        if self._refresh:
            self._watch_again()
        engine = self._engine
        try:
            report = engine.run(
                Request(upkeep=True),
                on_progress=self._progress,
                stop=self._gives_way,
                origin=DAEMON,
                on_outcome=self._api.outcome,
            )
        except NotBtrfsError as error:
            # A mount will tell; until then there is nothing to do.
            self._daily.log("cycle", WARNING, str(error))
            self._notify.status(str(error))
            self._api.failed(str(error))
            return None
        except (KeeperError, OSError) as error:
            return self._failed(error)
        self._retry.succeeded()
        if self._daily.clear("cycle"):
            self._say(INFO, "at work again", Event.RECOVERED)
        self._tell(engine, report)
        reached = [f"{skip.path}: {skip.detail}" for skip in report.plan.skipped if skip.reason is Reason.TOO_MANY]
        self._api.limits = (*reached, *filter(None, [self._watch_problem]))
        self._api.looked(engine, report)
        if engine.flush_passed():
            return 0.0
        return _wait_s(report)

    def _failed(self, error: KeeperError | OSError) -> float:
        """The whole cycle came to nothing: try again, each time later; a run of somebody else's is no failure."""
        self._notify.status(str(error))
        if isinstance(error, BusyError):
            self._api.failed("")
            return RETRY_S
        self._api.failed(str(error))
        self._daily.log("cycle", ERROR, f"{error}; tried again later")
        now_s = time.monotonic()
        self._retry.failed(now_s)
        return (self._retry.at_s or now_s) - now_s

    def _progress(self, progress: Progress) -> None:
        if self._work_began_cpu_s is None:
            self._work_began_cpu_s = time.thread_time()
        self._notify.status(f"working on {progress.path}")
        self._api.began()

    def tell_job(self, report: Report) -> None:
        """What a job did; in the worker."""
        for notice in report.notices:
            self._daily.log(notice, WARNING, notice)
        for outcome in report.outcomes:
            self._tell_outcome(outcome, once_a_day=False)

    def _tell(self, engine: Engine, report: Report) -> None:
        for notice in report.notices:
            self._daily.log(notice, WARNING, notice)
        again = {action.path for action in report.plan.actions if action.file.kind is Kind.ACTIVE}
        for outcome in report.outcomes:
            self._tell_outcome(outcome, once_a_day=outcome.path in again)
        for skip in report.plan.skipped:
            if skip.reason in {*nocow.UNWANTED, Reason.TOO_MANY}:
                self._daily.log(f"{skip.reason} {skip.path}", WARNING, f"{skip.path}: {skip.detail}", same=skip.reason)
            elif skip.reason is Reason.INTERNAL_ERROR:
                what = f"{skip.path}: left alone until it changes ({skip.reason}) {skip.detail}"
                self._daily.log(skip.path, ERROR, what, same=skip.reason)
        long = sentence(report.waiting, now_us())
        if long:
            self._daily.log("long", WARNING, f"{long}; journalkeeper plan says why", same=long.partition(":")[2])
        elif self._daily.clear("long"):
            self._say(INFO, "no file waits for longer than a day any more", Event.RECOVERED)
        waiting = sorted(engine.missing())
        if waiting:
            self._daily.log("waiting", INFO, f"waiting for {' and '.join(waiting)} to appear")
        elif self._daily.clear("waiting"):
            self._say(INFO, f"{' and '.join(engine.directories)}: there now", Event.RECOVERED)
        here = {skip.path for skip in report.plan.skipped} | {action.path for action in report.plan.actions}
        here |= {order.path for order in report.plan.orders}
        conditions = {f"{skip.reason} {skip.path}" for skip in report.plan.skipped}
        self._daily.retain(frozenset({"bus", "watch", "waiting", "long", "event", *report.notices, *here, *conditions}))
        self._notify.status(f"{len(here)} files, idle" if not waiting else f"waiting for {' and '.join(waiting)}")

    def _tell_outcome(self, outcome: Outcome, *, once_a_day: bool) -> None:
        """What became of a file: an active one is rewritten again and again."""
        what = f"{outcome.path}: {outcome.action} {outcome.result} ({outcome.reason})"
        if outcome.result is Result.DONE:
            counts = f"{outcome.extents_before} to {outcome.extents_after} extents"
            self._daily.log(
                outcome.path, INFO, f"{what}, {counts}", same="done" if once_a_day else None, outcome=outcome
            )
        elif outcome.reason not in PASSING or outcome.reason is Reason.NO_GAIN:
            priority = ERROR if outcome.result is Result.FAILED else INFO
            same = outcome.reason if outcome.reason is Reason.INTERNAL_ERROR else None
            self._daily.log(outcome.path, priority, f"{what} {outcome.detail}", same=same, outcome=outcome)

    def _changed(self, change: Change) -> None:
        """The watch saw something: names need a look; an append only may begin an interval."""
        began = guarded(lambda: [self._engine.flushes.appended(directory) for directory in change.appended])
        trouble = began.detail if isinstance(began, InternalError) else change.trouble
        if trouble:
            self._daily.log("event", ERROR, f"what changed is not known, so everything is looked at: {trouble}")
        if change.rescan or trouble:
            self._look = self._refresh = True
        if change.rescan or trouble or (not isinstance(began, InternalError) and any(began)):
            self._wake.set()

    def _end(self) -> None:
        self._stop = True
        self._wake.set()

    def _reload(self) -> None:
        """Read the configuration again, aside; a signal that comes meanwhile has it read once more."""
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reloaded())
        else:
            self._reload_again = True

    async def _reloaded(self) -> None:
        """With a wrong configuration the running values stay."""
        self._notify.reloading()
        self._reload_error = None
        try:
            engine = await asyncio.to_thread(self._load)
            watch = None if engine.directories == self._watch.tops else Watch(engine.directories, self._changed)
        except (KeeperError, OSError) as error:
            self._reload_error = error
            self._say(ERROR, f"not reloaded, the running configuration stays: {error}", Event.NOT_RELOADED)
        else:
            engine.take_over(self._engine)
            self._engine = engine
            if watch is not None:
                self._watch.close()
                self._watch = watch
                watch.attach(asyncio.get_running_loop())
            self._say(INFO, "the configuration was read again", Event.RELOADED)
            self._look = self._refresh = True
            self._wake.set()
        self._notify.ready()
        if self._reload_again:
            self._reload_again = False
            await self._reloaded()

    async def _feed_watchdog(self) -> None:
        while self._notify.watchdog_s is not None:
            self._notify.alive()
            await asyncio.sleep(self._notify.watchdog_s)


def _earliest(*moments_s: float | None) -> float | None:
    """The first of those that are known."""
    return min((moment_s for moment_s in moments_s if moment_s is not None), default=None)


def _wait_s(report: Report) -> float | None:
    """After how many seconds another plan can differ though nothing happens."""
    wake_us = report.plan.wake_at_us
    waits = [] if wake_us is None else [(wake_us - now_us()) / 1e6]
    undone = [outcome for outcome in report.outcomes if outcome.result is not Result.DONE]
    waits += [RETRY_S if outcome.reason in PASSING else AGAIN_US / 1e6 for outcome in undone]
    return min(waits, default=None)
