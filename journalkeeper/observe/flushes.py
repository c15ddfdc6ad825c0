# SPDX-License-Identifier: LGPL-2.1-or-later
"""The flush timers of all journald instances, updated by looks at their active files.

A look makes a few system calls for each unsynced file. It happens only at the moments that the flush timer
(policy/flush_timer.py) names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from typing import Final

from journalkeeper.btrfs import fiemap, inode, volume, writeback
from journalkeeper.journald import journal_file, opening
from journalkeeper.model import Instance, JournalFile, Kind, State
from journalkeeper.policy.flush_timer import FlushTimer, Generations

ASKED_LOOKS: Final = 20
ASKED_S: Final = 0.25
"""The number of looks for the end of a sync on request, and the pause after each. A file that is never OFFLINE was
appended to during the sync's own fsync, or the disk is so slow that 5 s make no difference.
"""

COMMIT_S: Final = 0.25
"""After a flush has written its data, btrfs commits, and journald makes a second fsync after it has stored OFFLINE.
Both are invisible. They take about this long, or as long as the data ...
"""

COMMIT_MOST_S: Final = 2.0
"""... but at most this long."""


class Flushes:
    """The flush timers of all instances, by directory. `clock` is CLOCK_MONOTONIC and `wall` CLOCK_REALTIME, in us."""

    def __init__(
        self,
        clock: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
        wall: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._instances: tuple[Instance, ...] = ()
        self._timers: dict[str, FlushTimer] = {}
        self._actives: dict[str, list[JournalFile]] = {}
        self._news = False

    def note_append(self, directory: str, heard_us: int) -> None:
        """Record an append by journald in `directory`, heard at `heard_us` by `clock`. Ignore unknown directories."""
        if directory in self._timers:
            self._timers[directory].note_append(heard_us)

    @property
    def awaiting(self) -> frozenset[str]:
        """The directories for which `note_append` can have an effect now."""
        return frozenset(directory for directory, timer in self._timers.items() if timer.awaits_append)

    def note_rewrite(self, directory: str) -> None:
        """Record a rewrite by us of an active file in `directory`: no look takes its moved block for a flush."""
        if directory in self._timers:
            self._timers[directory].forget_blocks()

    def look(self, instances: Iterable[Instance], files: Iterable[JournalFile]) -> tuple[Instance, ...]:
        """Replace the known instances and active files, `look_again`, and return `instances` as `get_current` does.

        A known instance keeps its flush timer. `files` must contain the active files of all instances and of no other.
        """
        self._instances = tuple(instances)
        self._actives = {one.directory: [] for one in self._instances}
        for file in files:
            if file.kind is Kind.ACTIVE and file.problem is None:
                self._actives[file.directory].append(file)
        self._timers = {directory: self._timers.get(directory, FlushTimer()) for directory in self._actives}
        for one in self._instances:
            self._timers[one.directory].interval_us = one.sync_interval_us
        self.look_again()
        return self.get_current()[0]

    def get_current(self) -> tuple[tuple[Instance, ...], tuple[JournalFile, ...]]:
        """Return the instances, with the timers' start by `wall` and need of a sync, and active files as last read."""
        offset_us = round(self._wall() - self._clock(), -5)  # so that each look shows a moment as the same one
        instances = []
        for one in self._instances:
            since = self._timers[one.directory].since
            since_us = None if since is None else offset_us + since.earliest_us
            instances.append(one._replace(online_since_us=since_us, sync_tells=self._needs_sync(one)))
        return tuple(instances), tuple(chain.from_iterable(self._actives.values()))

    def _needs_sync(self, instance: Instance) -> bool:
        """Return whether the instance can be asked for a sync, and its timer needs one now to become known."""
        return instance.rotatable and self._timers[instance.directory].needs_sync(self._clock())

    def look_again(self, directory: str | None = None) -> None:
        """Read the active files again, of `directory` or all, and update the flush timers. Note if a plan became due.

        This can block until the data of a flush is on the disk. An unknown directory is ignored.
        """
        for one in list(self._timers):
            if directory in {None, one} and self._update_timer(one):
                self._news = True

    def look_for_due_plan(self) -> bool:
        """Look again. Return whether a plan became due since the last call, or a sync is needed now."""
        self.look_again()
        news, self._news = self._news, False
        return news or any(map(self._needs_sync, self._instances))

    def _update_timer(self, directory: str) -> bool:
        """Update the flush timer of `directory` and the states and mtimes of its files. Return whether a plan is due.

        A plan is due when a flush is over, nothing is unsynced any more, or an untimed look was due. A file is unsynced
        if it is ONLINE and a journald will still flush it. After a flush by a known timer, wait for the write-back.
        """
        timer = self._timers[directory]
        now_us = self._clock()
        present: set[int] = set()
        online: dict[int, int | None] = {}
        generations: list[int] = []
        for number, file in enumerate(self._actives[directory]):
            # A file vanished, or the next whole look reports the error: there is nothing to wait for.
            with suppress(OSError), opening.open_path(file.path) as fd:
                status, state = os.fstat(fd), journal_file.read_state(fd)
                present.add(status.st_ino)
                age_us = self._wall() - status.st_mtime_ns // 1000
                self._actives[directory][number] = file._replace(state=state, mtime_ns=status.st_mtime_ns)
                if state is State.ONLINE and timer.may_be_live(status.st_ino, age_us, now_us):
                    generations.append(volume.read_generation(fd))
                    online[status.st_ino] = None if inode.is_nocow(fd) else fiemap.locate_byte(fd, 0)
                    generations.append(volume.read_generation(fd))
        known = timer.state is State.ONLINE
        if online:
            over = timer.note_unsynced(online, now_us, Generations(generations[0], generations[-1]))
        else:
            over = timer.note_offline(frozenset(present), now_us)
        due = timer.note_untimed_look(now_us)
        if over and known:
            self._wait_for_writeback(directory)
        return over or due

    def learn(self, directory: str, synchronize: Callable[[], None]) -> None:
        """Learn when the next flush of `directory` is due, by a sync that `synchronize` requests.

        Look until the flush shows, at most ASKED_LOOKS times (10 s or longer). A timer still unknown counts as started
        since the call. A plan is due then. `get_current` asks for no sync within ASK_EVERY_US, even after errors.

        Raises: KeyError for an unknown directory; the errors of `synchronize`, after which the timer stays unknown.
        """
        timer, before_us = self._timers[directory], self._clock()
        timer.note_request(before_us)
        synchronize()
        self._news = True
        for _ in range(ASKED_LOOKS):
            self._wait_for_writeback(directory)
            if self._update_timer(directory):
                return
            time.sleep(ASKED_S)
        if timer.since is None:
            timer.note_sync(before_us, self._clock())

    def _wait_for_writeback(self, directory: str) -> None:
        """Wait for a running write-back of active files, then sleep for as long, COMMIT_S to COMMIT_MOST_S."""
        began_us = self._clock()
        for file in self._actives[directory]:
            with suppress(OSError), opening.open_path(file.path) as fd:  # as in _update_timer
                writeback.wait_writeback(fd, 0, 0)
        time.sleep(min(max(COMMIT_S, (self._clock() - began_us) / 1e6), COMMIT_MOST_S))

    def get_closing_us(self, directory: str, margin_us: int) -> int | None:
        """Return until when (CLOCK_MONOTONIC, us) work on the active files of `directory` may continue.

        It is None without a limit or for an unknown directory, 0 if the next flush is unknown or too soon for any work.
        """
        timer = self._timers.get(directory)
        return None if timer is None else timer.get_closing_us(margin_us)

    def is_flush_due(self, margin_us: int) -> bool:
        """Return whether any flush is near or under way: the time of `get_closing_us` is past, and not 0."""
        return any(timer.is_due(margin_us, self._clock()) for timer in self._timers.values())

    def get_next_look_us(self, margin_us: int) -> int | None:
        """Return when (CLOCK_MONOTONIC, us) to `look_again`, as `margin_us` before a flush; None: after an append."""
        moments = [timer.get_next_look_us(margin_us) for timer in self._timers.values()]
        return min((moment for moment in moments if moment is not None), default=None)
