# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service: an event or a named moment, one look, one plan, its actions, and asleep again.

The one rule: the event loop never blocks and nothing polls. One worker thread looks and
works; the loop only takes wakes in and names the next. What wakes: a change that the
watch saw, the moment at which a plan can differ (Plan.wake_at_us), the moments around a
due flush (Keeper.next_flush_look_us), a signal, and systemd's watchdog.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from journalkeeper import state
from journalkeeper.cycle import DAEMON, Keeper, Report, now_us
from journalkeeper.errors import KeeperError
from journalkeeper.model import Request
from journalkeeper.notify import Notify
from journalkeeper.watch import Change, Watch

RETRY_US: Final = 60 * 1_000_000
"""After a look that failed (the volume went away, the state directory is full) the next one."""

Say = Callable[[int, str], None]


class Daemon:
    """Keeps journals in order until it is told to stop.

    `load` makes a keeper from the configuration as it is now; `say` takes a syslog priority
    (3 error, 4 warning, 6 information) and a sentence. `cycles` counts the whole looks.
    """

    def __init__(self, load: Callable[[], Keeper], say: Say) -> None:
        self._load = load
        self._say = say
        self._keeper = load()
        self._notify = Notify()
        self._wake = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._stop = False
        self._look = True
        self._plan_wake_us: int | None = None
        self.cycles = 0

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT; an action under way ends between two pieces.

        Raises: BusyError if another daemon has the state directory; KeeperError if nothing can be watched.
        """
        loop = asyncio.get_running_loop()
        with state.lock(self._keeper.state_directory, "daemon.lock"):
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._end)
            loop.add_signal_handler(signal.SIGHUP, self._reload)
            watch = self._watch(loop)
            dog = loop.create_task(self._feed_watchdog())
            self._notify.ready()
            try:
                while not self._stop:
                    watch = await self._turn(loop, watch)
            finally:
                self._notify.stopping()
                dog.cancel()
                watch.close()
                self._worker.shutdown(wait=True)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> Watch:
        watch = Watch(self._keeper.directories, self._changed)
        watch.attach(loop)
        return watch

    async def _turn(self, loop: asyncio.AbstractEventLoop, watch: Watch) -> Watch:
        """One wake: sleep until there is a reason, then look at the timers or at everything."""
        await self._sleep()
        self._wake.clear()
        if self._stop:
            return watch
        if tuple(watch.tops) != tuple(self._keeper.directories):
            watch.close()
            watch = self._watch(loop)
        now = now_us()
        if self._plan_wake_us is not None and now >= self._plan_wake_us:
            self._look = True
        if not self._look:
            self._look = await loop.run_in_executor(self._worker, self._keeper.flush_seen)
        if self._look:
            self._look = False
            self._plan_wake_us = await loop.run_in_executor(self._worker, self._cycle)
        return watch

    async def _sleep(self) -> None:
        """Until something wakes us, or the next named moment."""
        moments = (self._plan_wake_us, self._keeper.next_flush_look_us(), now_us() if self._look else None)
        next_us = min((moment for moment in moments if moment is not None), default=None)
        if next_us is None:
            await self._wake.wait()
            return
        try:
            await asyncio.wait_for(self._wake.wait(), max(0, next_us - now_us()) / 1e6)
        except TimeoutError:
            return

    def _cycle(self) -> int | None:
        """Look, plan and do, in the worker; when the next plan can differ."""
        self.cycles += 1
        try:
            report = self._keeper.run(
                Request(),
                on_progress=lambda progress: self._notify.status(f"working on {progress.path}"),
                stop=lambda: self._stop,
                door=DAEMON,
            )
        except KeeperError as error:
            self._say(4, f"{error}; tried again in a minute")
            self._notify.status(str(error))
            return now_us() + RETRY_US
        self._tell(report)
        return report.plan.wake_at_us

    def _tell(self, report: Report) -> None:
        for notice in report.notices:
            self._say(4, notice)
        for outcome in report.outcomes:
            counts = f"{outcome.extents_before} to {outcome.extents_after} extents"
            what = f"{outcome.path}: {outcome.action} {outcome.result} ({outcome.reason}), {counts}"
            self._say(6 if outcome.result != "failed" else 3, f"{what} {outcome.detail}".rstrip())
        self._notify.status(f"{len(report.plan.skipped) + len(report.plan.actions)} files, idle")

    def _changed(self, change: Change) -> None:
        """The watch saw something: names need a look; an append only may begin an interval."""
        began = [self._keeper.flushes.appended(directory, now_us()) for directory in change.appended]
        self._look = self._look or change.rescan
        if change.rescan or any(began):
            self._wake.set()

    def _end(self) -> None:
        self._stop = True
        self._wake.set()

    def _reload(self) -> None:
        """Read the configuration again; with a wrong one the running values stay."""
        self._notify.reloading()
        try:
            self._keeper = self._load()
        except KeeperError as error:
            self._say(3, f"not reloaded, the running configuration stays: {error}")
        else:
            self._say(6, "the configuration was read again")
        self._notify.ready()
        self._look = True
        self._wake.set()

    async def _feed_watchdog(self) -> None:
        while self._notify.watchdog_s is not None:
            self._notify.alive()
            await asyncio.sleep(self._notify.watchdog_s)
