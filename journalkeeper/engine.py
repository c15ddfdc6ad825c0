# SPDX-License-Identifier: LGPL-2.1-or-later
"""One run: observe, plan, execute, record.

Data flows one way: one look, one plan made from it, and one outcome for each action, which is recorded before the next
action begins. `plan` is a `run` that stops before it touches a file. A file that changed since the look gets
the outcome `changed` and waits for the next plan.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from journalkeeper.btrfs.defrag import HAS_LEVELS
from journalkeeper.config import Config
from journalkeeper.execute.pace import SlowestPiece
from journalkeeper.execute.runner import Runner, remove_leftovers
from journalkeeper.history import state
from journalkeeper.history.store import NAME, Record, group_inodes, store_outcome
from journalkeeper.metrics.publisher import Publisher
from journalkeeper.model import Host, Outcome, Past, Plan, Reason, Refusal, Request, Result, Verb, Window
from journalkeeper.model.errors import NeedsRootError, run_bookkeeping
from journalkeeper.model.run import Counters, Progress, Report, Wait, find_waits
from journalkeeper.model.units import DAY_US
from journalkeeper.observe import load
from journalkeeper.observe.flushes import Flushes
from journalkeeper.observe.observer import Observer, Seen, resolve_path
from journalkeeper.policy.deferral import find_rest, remember
from journalkeeper.policy.plan import plan, with_now
from journalkeeper.policy.window import compose_margin_us, find_windows, next_flush_us

DAEMON: Final = "daemon"
HOUR_S: Final = 60 * 60.0
DAY_S: Final = 24 * HOUR_S


@dataclass
class RecordsMemory:
    """The knowledge about the history that outlives a run.

    `past` has a key, and the last action on each file by (device, inode). `waiting` are the waiting files by path, None
    before the first run. `newest_run` is the newest run, to find runs of other processes. `notices` wait for a report.
    """

    past: tuple[object, dict[tuple[int, int], Past]] = (None, {})
    waiting: dict[str, Wait] | None = None
    counters: Counters | None = None
    newest_run: int | None = None
    observed_s: float = -HOUR_S
    pruned_s: float = -DAY_S
    notices: list[str] = field(default_factory=list)


@dataclass
class Memory:
    """The state that outlives a run. A new engine takes it over as a whole when the configuration is read again.

    `seen` is the last look. `failures` are the last failed actions by (device, inode). `began_us` is the service's
    start.
    """

    observer: Observer
    flushes: Flushes = field(default_factory=Flushes)
    intake: load.IntakeMeter = field(default_factory=lambda: load.IntakeMeter(load.ENTRIES_PER_FLUSH))
    slowest: SlowestPiece = field(default_factory=SlowestPiece)
    records: RecordsMemory = field(default_factory=RecordsMemory)
    seen: Seen = field(default=Seen((), (), (), ()))
    failures: dict[tuple[int, int], Refusal] = field(default_factory=dict)
    began_us: int | None = None


class Engine:
    """The runs over a set of journal directories.

    `directories` replaces Directories= of `config`, without metrics if they differ. `state_directory` replaces the
    first of $STATE_DIRECTORY, or /var/lib/journalkeeper. Without root, `disk_bytes` has no effect. With `follows` (the
    service) each look covers every file, because flush times that are learned from some files only would be wrong.
    """

    def __init__(
        self,
        config: Config,
        *,
        directories: tuple[str, ...] | None = None,
        state_directory: str | None = None,
        disk_bytes: bool = False,
        follows: bool = False,
    ) -> None:
        self.config = config
        self._follows = follows
        self.directories = config.watch.directories if directories is None else directories
        self.state_directory = state_directory or state.default_directory()
        self.memory = Memory(Observer(with_disk_bytes=disk_bytes))
        is_own = self.directories == config.watch.directories  # not another directory, -D
        self.publisher = Publisher(config, config.metrics.textfile if is_own else "", judges=not follows)

    def take_over(self, before: Engine) -> None:
        """Continue with the whole memory and the published metrics of `before`, the engine until a reload."""
        self.memory = before.memory
        self.publisher.take_over(before.publisher)

    def look(self, request: Request) -> Host:
        """Look once at the files of `request`. Return the host with an empty history, which some users may not read.

        A named file that cannot be read has a row with the reason. Raises: FileError for a directory, or a file with
        journald's configuration; without named files also NotBtrfsError, and NeedsRootError if none may be read.
        """
        seen = self._look_and_remember(request)
        return Host(now_us(), seen.files, seen.instances, seen.volumes, {}, 0)

    def plan(self, request: Request) -> Plan:
        """Return the plan of a `run` now, with the skips that --now would end. A missing history counts as empty.

        A notice counts unreadable rows. Raises: as `look`; KeeperError or NeedsRootError for an unreadable history.
        """
        with closing(Record(self.state_directory, read_only=True)) as record:
            _, planned = self._see_and_plan(request, record, marked=True)
            self.memory.records.past = None, {}  # without the lock, another process may be adding to it
            return planned._replace(notices=record.ignored)

    def _see_and_plan(self, request: Request, record: Record, *, marked: bool) -> tuple[Host, Plan]:
        """Return the host at a look and its plan. In the service, a plan for active files is made again from new maps.

        Unless PressureMax= is 100%, a plan with actions is made again with the load of the disks. A `marked` plan shows
        which skips --now would end. Neither happens if `request` hurries.
        """
        host, chosen = self._plan_once(request, record)
        paths = [one.path for one in chosen.actions if one.is_on_active_file or one.action is Verb.ROTATE]
        if paths and self._follows:
            self.memory.observer.forget(paths)
            host, chosen = self._plan_once(request, record)
        if chosen.actions and not request.hurries and self.config.window.pressure_max_percent < 100:
            busy = load.measure_busy_percent({volume.uuid for volume in host.volumes}, load.LOOK_S)
            volumes = tuple(volume._replace(busy_percent=busy.get(volume.uuid)) for volume in host.volumes)
            host = host._replace(volumes=volumes)
            chosen = plan(host, request, self.config)
        return host, with_now(chosen, host, request, self.config) if marked and not request.hurries else chosen

    def _plan_once(self, request: Request, record: Record) -> tuple[Host, Plan]:
        host = self._make_host(self._look_and_remember(request), record)
        return host, plan(host, request, self.config)

    def run(
        self,
        request: Request,
        *,
        on_progress: Callable[[Progress], None],
        stop: Callable[[], bool],
        origin: str = "defrag",
        on_outcome: Callable[[Outcome], None] = lambda _: None,
        on_plan: Callable[[Host, Plan], None] = lambda _host, _plan: None,
    ) -> Report:
        """Look, plan, remove leftovers, ask for the plan's syncs, call `on_plan`, and carry out the actions.

        A rest, a lost lock or `stop` ends the run between two pieces. It is stored with its `origin`, one of DAEMON
        only if it has actions. Metrics are written also after an error, but not for named files or a shutdown. What
        cannot be recorded after the work is a notice in the report. Raises: as `look`; BusyError while another run is
        active; KeeperError if the history cannot be used.
        """
        began, watching = time.monotonic(), origin == DAEMON
        named = request.paths or request.before_shutdown
        publisher = Publisher(self.config, "", judges=True) if named else self.publisher
        with ExitStack() as stack:
            stack.push(publisher.publish_failure)
            ends = partial(self._must_end, stop, stack.enter_context(state.Lock(self.state_directory)), request)
            record = self._open_history(stack, request)
            host, chosen = self._see_and_plan(request, record, marked=not watching)
            worker = Runner(self.config, self.memory.flushes, self.memory.slowest, hurry=request.hurries, stop=ends)
            notices = [*remove_leftovers(self.memory.seen.leftovers), *worker.synchronize(chosen.syncs)]
            self._store_counts_if_due(record, request, at_once=bool(chosen.actions or record.replacement))
            outcomes, unrecorded = list[Outcome](), list[str]()
            on_plan(host, chosen)
            if chosen.actions or not watching:
                self.memory.observer.forget(action.path for action in chosen.actions)
                run = self.memory.records.newest_run = record.begin_run(now_us(), origin)
                for action, done in worker.carry_out(chosen, self.memory.seen, on_progress):
                    outcomes.append(done.outcome)
                    remember(self.memory.failures, action, done.outcome, now_us())
                    unrecorded += store_outcome(record, run, host.volumes, action.target.device, done)
                    on_outcome(done.outcome)
                chosen = chosen.end_after(len(outcomes))
                unrecorded += run_bookkeeping(lambda: record.end_run(run, now_us()))
            notices += run_bookkeeping(lambda: self._update_history(record, chosen, outcomes, request))
            lag_us = self.memory.intake.add_new_delays(load.list_journald_files(host.files)) if watching else None
            notices += run_bookkeeping(partial(publisher.publish_success, (host, chosen), outcomes, record, lag_us))
        said, self.memory.records.notices = (*self.memory.records.notices, *notices, *record.ignored, *unrecorded), []
        written, took_s = sum(outcome.bytes_written for outcome in outcomes), time.monotonic() - began
        return Report(
            chosen, tuple(outcomes), written, took_s, said, host, self.memory.records.counters, tuple(unrecorded)
        )

    defragment = run

    def _open_history(self, stack: ExitStack, request: Request) -> Record:
        """Open the history until `stack` ends. If there is none, look first: a host that the look refuses gets none.

        The caller holds the lock. A removed or replaced history is a notice. If other processes added runs, the next
        look opens the files of these runs. Raises: as `_look_and_remember`; KeeperError if it cannot be opened.
        """
        memory, exists = self.memory.records, os.path.lexists(os.path.join(self.state_directory, NAME))
        if not exists:
            self._look_and_remember(request)
        record = stack.enter_context(Record(self.state_directory))
        stack.callback(lambda: memory.notices.extend(record.replacement))
        known, memory.newest_run = memory.newest_run, record.find_newest_run()
        if known is not None and not exists:
            memory.notices.append(f"{record.path}: the history was removed, and a new one was started")
        if known is not None and known != memory.newest_run:
            # Every run in a new history is new.
            self.memory.observer.forget(record.list_paths_since_run(known if known < memory.newest_run else 0))
        return record

    def _store_counts_if_due(self, record: Record, request: Request, *, at_once: bool) -> None:
        """Store the last look's extent counts `at_once`, in the service also once an hour: a commit costs 14 I/Os.

        A command with named files stores none. Raises: KeeperError.
        """
        due = at_once or (self._follows and time.monotonic() - self.memory.records.observed_s >= HOUR_S)
        if due and (self._follows or not request.paths):
            record.store_counts(now_us(), self.memory.seen.files)
            self.memory.records.observed_s = time.monotonic()

    def _update_history(self, record: Record, chosen: Plan, outcomes: list[Outcome], request: Request) -> None:
        """Read the counters, store the waits. After actions, but not before a shutdown, look first, store counts.

        A run on named files only ends waits, those of finished files; in a command it stores no counts. A command
        prunes after each run, the service once a day: a commit costs 14 I/Os. Raises: as the look; KeeperError.
        """
        self.memory.records.counters = record.read_counters()
        if outcomes and not request.before_shutdown:
            self._look_and_remember(request)
            self._store_counts_if_due(record, request, at_once=True)
        now, memory = now_us(), self.memory.records
        before = memory.waiting or {}
        if not request.paths:
            memory.waiting = find_waits(before, chosen, outcomes, now)
        else:
            done = {outcome.path for outcome in outcomes if outcome.result is Result.DONE}
            memory.waiting = {path: wait for path, wait in before.items() if path not in done}
        record.store_waits(memory.waiting.values(), now_us=now)
        if not self._follows or time.monotonic() - memory.pruned_s >= DAY_S:
            self._prune(record)

    def _prune(self, record: Record) -> None:
        """Delete what exceeds KeepSec= or MaxRows= in the history; forget failures of files not in the last look."""
        self.memory.records.pruned_s = time.monotonic()
        seen = self.memory.seen
        there = {(one.device, one.inode) for found in (seen.files, seen.instances) for one in found}
        self.memory.failures = {key: last for key, last in self.memory.failures.items() if key in there}
        files, keep = group_inodes(seen.files, seen.volumes).values(), self.config.history
        record.prune(now_us(), keep.keep_us, files, max_rows=keep.max_rows)

    def _look_and_remember(self, request: Request) -> Seen:
        """Look at the files that `request` names, one row each, or at all files, and store this look in `memory.seen`.

        The service looks at and stores all files in existing directories, and returns those named. Links in its paths
        are not followed, because any user can send them. In a closed window, known maps of active files are not read
        again, unless `request` hurries.

        Raises: as `Observer.look_at`, for all files as `Observer.look`; NeedsRootError if none of all may be read.
        """
        now, observer = now_us(), self.memory.observer
        observer.closed = [] if request.hurries else [one.instance for one in self.find_windows()[0] if not one.open]
        if request.paths and not self._follows:
            seen = observer.look_at(map(resolve_path, request.paths), now_us=now)
        else:
            there = tuple(filter(os.path.isdir, self.directories)) if self._follows else self.directories
            seen = observer.look(there, now_us=now)
            if seen.files and all(file.problem is Reason.UNREADABLE for file in seen.files):
                readers = "root and the group systemd-journal"
                raise NeedsRootError(f"the journal files in {' and '.join(there)} may be read by {readers} only")
        seen = seen._replace(instances=self.memory.flushes.look(seen.instances, seen.files))
        self.memory.seen = seen
        if not request.paths or not self._follows:
            return seen
        known = {one.directory: one for one in seen.instances}
        some = observer.look_at(request.paths, now_us=now)
        volumes = {volume.device: volume for volume in (*seen.volumes, *some.volumes)}  # a subvolume may be named
        self.memory.seen = seen._replace(volumes=tuple(volumes.values()))
        return some._replace(instances=tuple(known.get(one.directory, one) for one in some.instances))

    def find_windows(self) -> tuple[tuple[Window, ...], int]:
        """Return each instance's flush window, () before a look, and the next flush (CLOCK_REALTIME us, 0 unknown)."""
        instances, files = self.memory.flushes.get_current()
        found = find_windows(instances, files, now_us(), margin_us=self._margin_us)
        return tuple(found.values()), next_flush_us(instances)

    def get_next_look_us(self) -> int | None:
        """Return when (CLOCK_MONOTONIC, us, may be past) to call `look_for_due_plan`; None until a look or append."""
        return self.memory.flushes.get_next_look_us(self._margin_us)

    @property
    def _margin_us(self) -> int:
        """The configured margin plus the slowest recent piece."""
        return compose_margin_us(self.config.window.margin_us, self.memory.slowest.get_us())

    def _make_host(self, seen: Seen, record: Record) -> Host:
        """Call tzset. Return the Host: `seen`, history, memory, battery. Reread `past` after runs, for other files."""
        now = now_us()
        time.tzset()  # QuietHours= are local; a host that travels gets another /etc/localtime
        memory, here = self.memory.records, group_inodes(seen.files, seen.volumes)
        key = record.find_newest_run(), here
        if memory.past[0] != key:
            memory.past = key, record.find_past(here)
        if memory.waiting is None:
            memory.waiting = record.list_waits()
        return Host(
            now_us=now,
            files=seen.files,
            instances=seen.instances,
            volumes=seen.volumes,
            past=memory.past[1],
            written_bytes=record.sum_written_bytes(now - DAY_US, now),
            refused=dict(self.memory.failures),
            rotations=record.count_rotations(now - DAY_US, now),
            made_nocow=record.list_nocow_directories(now),
            began_us=self.memory.began_us,
            has_levels=HAS_LEVELS,
            on_battery=load.is_on_battery(),
            slowest_piece_us=self.memory.slowest.get_us(),
            waiting={path: wait.reason for path, wait in memory.waiting.items()},
        )

    def _must_end(self, stop: Callable[[], bool], lock: state.Lock, request: Request) -> bool:
        """Return whether to end: `stop`, a lost lock; OnBattery=no or QuietHours=, unless in a hurry or asked for."""
        rest = find_rest(now_us(), request, self.config, on_battery=load.is_on_battery())
        return stop() or not lock.is_held() or rest is not None


def now_us() -> int:
    """Return CLOCK_REALTIME in microseconds."""
    return time.time_ns() // 1000
