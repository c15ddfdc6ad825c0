# SPDX-License-Identifier: LGPL-2.1-or-later
"""The way of everything: observe, plan, execute, record.

The one rule: data flows one way. One look with the time in it, one plan from it, and of
each action one outcome, recorded before the next begins. `plan` is `run` stopped before
anything is touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

from journalkeeper import state
from journalkeeper.config import Config
from journalkeeper.errors import KeeperError, NeedsRootError
from journalkeeper.execute import Done, execute, leftovers, not_begun
from journalkeeper.execute.pace import Pace
from journalkeeper.flushes import Flushes
from journalkeeper.model import Action, Host, Kind, Outcome, Past, Plan, Reason, Request, Volume
from journalkeeper.observe import Observer, Seen
from journalkeeper.policy import plan
from journalkeeper.record import Record

DAEMON: Final = "daemon"
DAY_US: Final = 24 * 60 * 60 * 1_000_000


class Progress(NamedTuple):
    """How far a run is: file `number` (from 1) of `total`, and bytes over the whole run."""

    number: int
    total: int
    path: str
    done_bytes: int
    total_bytes: int


class Report(NamedTuple):
    """What a run did. `notices` are sentences about the run itself, not about one file."""

    plan: Plan
    outcomes: tuple[Outcome, ...]
    written_bytes: int
    duration_s: float
    notices: tuple[str, ...]


class Keeper:
    """One journal directory's cycle.

    `directories` stands in for Directories= of `config`, `state_directory` for
    $STATE_DIRECTORY or /var/lib/journalkeeper; journald's configuration is read below `root`.
    `disk_bytes` has every look ask what a file really occupies, which only root may.
    """

    def __init__(
        self,
        config: Config,
        *,
        directories: tuple[str, ...] | None = None,
        state_directory: str | None = None,
        root: str = "/",
        disk_bytes: bool = False,
    ) -> None:
        self._config = config
        self.directories = config.watch.directories if directories is None else directories
        self.state_directory = state_directory or state.default_directory()
        self._observer = Observer(root, with_disk_bytes=disk_bytes)
        self.flushes = Flushes()
        self._slowest_us: dict[str, int] = {}
        self._last = Seen((), (), (), ())

    def look(self, request: Request) -> Host:
        """One look at the files of `request`; without the record, which not every reader of journals may read.

        Raises: NotBtrfsError; FileError for a directory; NeedsRootError if no file may be read.
        """
        seen = self._see(request)
        return Host(now_us(), seen.files, seen.instances, seen.volumes, {}, 0)

    def plan(self, request: Request) -> Plan:
        """What `run` would do now.

        Raises: as `look`; NeedsRootError, KeeperError for a record that cannot be read.
        """
        with closing(Record(self.state_directory, read_only=True)) as record:
            return plan(self._host(self._see(request), record), request, self._config)

    def run(
        self,
        request: Request,
        *,
        on_progress: Callable[[Progress], None],
        stop: Callable[[], bool],
        door: str = "defrag",
    ) -> Report:
        """Plan and do it, until it is done or `stop` says so between two pieces.

        A `door` of "daemon" leaves no trace in the record of a run that had nothing to do.

        Raises: as `look`; BusyError while another run is on; KeeperError where no record can be kept.
        """
        began = time.monotonic()
        with state.lock(self.state_directory), closing(Record(self.state_directory)) as record:
            notices: list[str] = []
            seen = self._see(request)
            notices += leftovers.remove(seen.leftovers)
            chosen = plan(self._host(seen, record), request, self._config)
            outcomes: list[Outcome] = []
            if door == DAEMON and not chosen.actions:
                return Report(chosen, (), 0, time.monotonic() - began, tuple(notices))
            run = record.begin_run(now_us(), door)
            for action, done in self._execute(chosen.actions, on_progress, stop):
                outcomes.append(done.outcome)
                notices += _kept(record, run, seen.volumes, action, done)
            record.end_run(run, now_us())
            record.prune(now_us(), self._config.history.keep_us)
            if record.set_aside is not None:
                notices.append(f"the record was damaged and is now {record.set_aside}; a new one was begun")
        written = sum(outcome.bytes_written for outcome in outcomes)
        return Report(chosen, tuple(outcomes), written, time.monotonic() - began, tuple(notices))

    def _see(self, request: Request) -> Seen:
        now = now_us()
        if request.paths:
            return self._timed(self._observer.look_at(request.paths, now_us=now), now)
        seen = self._observer.look(self.directories, now_us=now)
        if seen.files and all(file.problem is Reason.UNREADABLE for file in seen.files):
            where = " and ".join(self.directories)
            raise NeedsRootError(f"the journal files in {where} may be read by root and the group systemd-journal only")
        return self._timed(seen, now)

    def _timed(self, seen: Seen, now: int) -> Seen:
        """The same with what is known of each instance's flushes and of our pieces there."""
        self._last = seen._replace(
            instances=tuple(
                instance._replace(slowest_piece_us=self._slowest_us.get(instance.directory, 0))
                for instance in self.flushes.look(seen.instances, seen.files, now)
            )
        )
        return self._last

    def flush_seen(self) -> bool:
        """Look at the timers alone, of the instances of the last look; True if one began anew."""
        known = self.flushes.look(self._last.instances, self._last.files, now_us())
        began_anew = any(
            new.online_since_us != old.online_since_us for new, old in zip(known, self._last.instances, strict=True)
        )
        self._last = self._last._replace(instances=known)
        return began_anew

    def next_flush_look_us(self) -> int | None:
        """When `flush_seen` should look."""
        slowest_us = max(self._slowest_us.values(), default=0)
        return self.flushes.next_look_us(self._config.window.margin_us + slowest_us)

    def _host(self, seen: Seen, record: Record) -> Host:
        now = now_us()
        past: dict[tuple[int, int], Past] = {}
        for volume in seen.volumes:
            known = record.past((volume.uuid, volume.subvolume))
            past |= {(volume.device, inode): row for inode, row in known.items()}
        written = record.written_since(now - DAY_US)
        return Host(now, seen.files, seen.instances, seen.volumes, past, written)

    def _execute(
        self, actions: tuple[Action, ...], on_progress: Callable[[Progress], None], stop: Callable[[], bool]
    ) -> Iterator[tuple[Action, Done]]:
        """Do one action after the other; after a stop the rest are interrupted."""
        meter = _Meter(actions, on_progress)
        for number, action in enumerate(actions, start=1):
            if stop():
                yield action, not_begun(action)
                continue
            meter.begin(number, action)
            self._observer.forget(action.path)
            defrag = self._config.defrag
            pace = Pace(
                most_bytes=defrag.chunk_bytes,
                piece_us=defrag.chunk_us if action.file.kind is Kind.ACTIVE else None,
                ask=partial(_reason_to_end, action, stop),
                tell=meter.add,
            )
            done = execute(action, pace)
            if action.file.kind is Kind.ACTIVE:
                directory = action.path.rpartition("/")[0]
                self.flushes.moved_by_us(directory)
                self._slowest_us[directory] = max(self._slowest_us.get(directory, 0), pace.slowest_us)
            yield action, done


class _Meter:
    """Counts bytes over a whole run and tells of each step."""

    def __init__(self, actions: tuple[Action, ...], tell: Callable[[Progress], None]) -> None:
        self._tell = tell
        self._now = Progress(0, len(actions), "", 0, sum(part.length for action in actions for part in action.ranges))
        self._before = 0
        self._length = 0

    def begin(self, number: int, action: Action) -> None:
        """The next file: what the last one left out counts as done, too."""
        self._before += self._length
        self._length = sum(part.length for part in action.ranges)
        self._now = self._now._replace(number=number, path=action.path, done_bytes=self._before)
        self._tell(self._now)

    def add(self, length: int) -> None:
        """`length` bytes more of the present file."""
        self._now = self._now._replace(done_bytes=self._now.done_bytes + length)
        self._tell(self._now)


def _reason_to_end(action: Action, stop: Callable[[], bool], piece_us: int) -> Reason | None:
    """Why the next piece of `action`, which will take `piece_us`, must not be begun."""
    if stop():
        return Reason.INTERRUPTED
    if action.not_after_us is not None and now_us() + piece_us > action.not_after_us:
        return Reason.WINDOW_CLOSED
    return None


def _kept(record: Record, run: int, volumes: tuple[Volume, ...], action: Action, done: Done) -> list[str]:
    """Record what became of `action`; what is to be said if that failed.

    The file is done and whole then; only the memory of it is lost, and the next look finds it ideal.
    """
    key = next((volume.uuid, volume.subvolume) for volume in volumes if volume.device == action.file.device)
    after = {"mtime_ns": done.mtime_ns, "size_bytes": done.size_bytes, "when_us": now_us()}
    try:
        record.outcome(run, key, done.inode, done.outcome, **after)
    except KeeperError as error:
        return [f"{action.path}: not recorded: {error}"]
    return []


def now_us() -> int:
    """CLOCK_REALTIME in microseconds."""
    return time.time_ns() // 1000
