# SPDX-License-Identifier: LGPL-2.1-or-later
"""Following the flushes of every instance: looking at its files when its timer may have changed.

A look costs a few system calls for each file that is unsynced, and it is made
only when the flush timer (policy/flush_timer.py) names a moment for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final

from journalkeeper.btrfs import fiemap, inode, volume, writeback
from journalkeeper.journald import header, opening
from journalkeeper.model import Instance, JournalFile, Kind, State
from journalkeeper.policy.flush_timer import FlushTimer, Generations

ASKED_LOOKS: Final = 20
ASKED_S: Final = 0.25
"""After a sync that we asked for: looks for OFFLINE, and the time between two. A file that shows it in none of
them was appended to during the sync's own fsync, or the disk is so slow that 5 s make no difference."""

COMMIT_S: Final = 0.25
"""When the data of a flush is written, its commit follows, and after journald has stored OFFLINE a second
fsync; neither shows anywhere. They take about this long, or as long as the data ..."""

COMMIT_MOST_S: Final = 2.0
"""... up to this."""

CLOCK_SET_US: Final = 100_000
"""By how much the wall clock must differ from the monotonic one to have been set."""

NONE_READ: Final = Generations(1 << 64, 0)


class Flushes:
    """The timers of all instances, by directory.

    `clock` is CLOCK_MONOTONIC, `wall` CLOCK_REALTIME, both in microseconds. `appended` is for the event loop,
    all else for the thread that works.
    """

    def __init__(
        self,
        clock: Callable[[], int] | None = None,
        wall: Callable[[], int] | None = None,
    ) -> None:
        self._clock = clock or (lambda: time.monotonic_ns() // 1000)
        self._wall = wall or (lambda: time.time_ns() // 1000)
        self._instances: dict[str, Instance] = {}
        self._timers: dict[str, FlushTimer] = {}
        self._actives: dict[str, tuple[str, ...]] = {}
        self._seen: dict[str, tuple[State, int]] = {}
        """State and mtime (ns) of each active file at the last look, by path."""
        self._offset_us = 0
        self._news = False
        self._lock = Lock()

    def appended(self, directory: str) -> bool:
        """inotify says that journald appended; True if `next_look_us` is another now."""
        with self._lock:
            timer = self._timers.get(directory)
            return timer is not None and timer.note_append(self._clock())

    def moved_by_us(self, directory: str) -> None:
        """We rewrote an active file there: where its first block lies now says nothing of journald."""
        with self._lock:
            if directory in self._timers:
                self._timers[directory].forget_blocks()

    def look(self, instances: Iterable[Instance], files: Iterable[JournalFile]) -> tuple[Instance, ...]:
        """Look at the active ones of `files`, which are all; `instances` with what is known of their timers."""
        actives: dict[str, tuple[str, ...]] = {}
        for file in files:
            if file.kind is Kind.ACTIVE and file.problem is None:
                directory, _, name = file.path.rpartition("/")
                actives[directory] = (*actives.get(directory, ()), name)
        known = tuple(instances)
        with self._lock:
            self._timers = {
                instance.directory: self._timers.get(instance.directory, FlushTimer()) for instance in known
            }
            self._actives = actives
            self._seen = {}
            self._instances = {instance.directory: instance for instance in known}
            for instance in known:
                self._timers[instance.directory].interval_us = instance.sync_interval_us
        self.look_again()
        return tuple(
            instance._replace(
                online_since_us=self._since_us(instance.directory), sync_tells=self._sync_tells(instance.directory)
            )
            for instance in known
        )

    def renew(
        self, instances: Iterable[Instance], files: Iterable[JournalFile]
    ) -> tuple[tuple[Instance, ...], tuple[JournalFile, ...]]:
        """Return `instances` and the active ones of `files` as the last look found them, for their windows alone."""
        actives = [(file, self._seen[file.path]) for file in files if file.path in self._seen]
        return (
            tuple(one._replace(online_since_us=self._since_us(one.directory)) for one in instances),
            tuple(file._replace(state=state, mtime_ns=mtime_ns) for file, (state, mtime_ns) in actives),
        )

    def _since_us(self, directory: str) -> int | None:
        """Since when the instance is ONLINE, by the wall clock."""
        with self._lock:
            since = self._timers[directory].since
            return None if since is None else self._wall_offset_us() + since.earliest_us

    def _wall_offset_us(self) -> int:
        """Return CLOCK_REALTIME less CLOCK_MONOTONIC, the same again until the wall clock was set.

        A moment that is shown twice is then the same to the microsecond.
        """
        offset_us = self._wall() - self._clock()
        if abs(offset_us - self._offset_us) > CLOCK_SET_US:
            self._offset_us = offset_us
        return self._offset_us

    def _sync_tells(self, directory: str) -> bool:
        """Whether nothing but a sync that is asked for tells when the next flush is due."""
        return self._instances[directory].rotatable and self._timers[directory].needs_sync(self._clock())

    def look_again(self, directory: str | None = None) -> None:
        """Look at the same files' states now, or at those of one directory."""
        for one in list(self._timers):
            if directory in {None, one} and self._look(one):
                self._news = True

    def passed(self) -> bool:
        """Whether it is time for a plan: a flush was found to be over since this was asked last, or a sync tells."""
        news, self._news = self._news, False
        return news or any(map(self._sync_tells, self._timers))

    def _look(self, directory: str) -> bool:
        timer = self._timers[directory]
        with self._lock:
            timer.begin_look()
            now_us = self._clock()
        present: set[int] = set()
        online: dict[int, int | None] = {}
        ages_us: list[int] = []
        generations = NONE_READ
        for name in self._actives.get(directory, ()):
            try:
                with opening.open_directory(directory) as dir_fd, opening.hold_open(name, dir_fd) as fd:
                    status = os.fstat(fd)
                    present.add(status.st_ino)
                    age_us = self._wall() - status.st_mtime_ns // 1000
                    ages_us.append(age_us)
                    state = header.read_state(fd)
                    self._seen[f"{directory}/{name}"] = state, status.st_mtime_ns
                    if state is State.ONLINE and timer.may_be_live(status.st_ino, age_us, now_us):
                        first = volume.read_generation(fd)
                        online[status.st_ino] = None if inode.is_nocow(fd) else fiemap.locate_byte(fd, 0)
                        generations = Generations(min(first, generations.before), volume.read_generation(fd))
            except OSError:
                # Gone, or about to be said of the file by the next whole look: nothing to wait for.
                continue
        with self._lock:
            known = timer.state is State.ONLINE
            over = (
                timer.note_unsynced(online, now_us, generations)
                if online
                else timer.note_offline(frozenset(present), now_us)
            )
            due = timer.note_untimed_files(min(ages_us, default=None), now_us)
        if over and known:
            self._wait(directory)
        return over or due

    def learn(self, directory: str, synchronize: Callable[[], None]) -> None:
        """Learn when the next flush is due from a sync that journald is asked for: time for a plan.

        Raises: what `synchronize` raises.
        """
        timer, before_us = self._timers[directory], self._clock()
        timer.note_request(before_us)
        synchronize()
        self._news = True
        for _ in range(ASKED_LOOKS):
            self._wait(directory)
            if self._look(directory):
                return
            time.sleep(ASKED_S)
        with self._lock:
            if timer.since is None:
                timer.note_sync(before_us, self._clock())

    def _wait(self, directory: str) -> None:
        """Until what the flush has begun to write is written, and committed."""
        began_us = self._clock()
        for name in self._actives.get(directory, ()):
            try:
                with opening.open_directory(directory) as dir_fd, opening.hold_open(name, dir_fd) as fd:
                    writeback.wait_writeback(fd, 0, 0)
            except OSError:
                continue  # as in _look
        time.sleep(min(max(COMMIT_S, (self._clock() - began_us) / 1e6), COMMIT_MOST_S))

    def closes_us(self, directory: str, margin_us: int) -> int | None:
        """Until when work on the active files of `directory` may go on, by CLOCK_MONOTONIC; None: no limit is known."""
        with self._lock:
            timer = self._timers.get(directory)
            return None if timer is None else timer.closes_us(margin_us)

    def due(self, margin_us: int) -> bool:
        """Whether any instance's flush is near or under way."""
        with self._lock:
            return any(timer.is_due(margin_us, self._clock()) for timer in self._timers.values())

    def next_look_us(self, margin_us: int) -> int | None:
        """When to `look_again`, by CLOCK_MONOTONIC."""
        with self._lock:
            moments = [timer.next_look_us(margin_us) for timer in self._timers.values()]
        return min((moment for moment in moments if moment is not None), default=None)
