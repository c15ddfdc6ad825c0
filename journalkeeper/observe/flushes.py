# SPDX-License-Identifier: LGPL-2.1-or-later
"""The flush timers of all journald instances, updated by looks at their active files.

A look makes a few system calls for each unsynced file. It happens only at the moments that the flush timer
(policy/flush_timer.py) names.
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
"""The number of looks for the end of a sync on request, and the pause after each. A file that is never OFFLINE was
appended to during the sync's own fsync, or the disk is so slow that 5 s make no difference.
"""

COMMIT_S: Final = 0.25
"""After a flush has written its data, btrfs commits, and journald makes a second fsync after it has stored OFFLINE.
Both are invisible. They take about this long, or as long as the data ...
"""

COMMIT_MOST_S: Final = 2.0
"""... but at most this long."""

NONE_READ: Final = Generations(1 << 64, 0)


class Flushes:
    """The flush timers of all instances, by directory.

    `clock` returns CLOCK_MONOTONIC and `wall` CLOCK_REALTIME, both in microseconds. The event loop may call
    `note_append`; all other methods are for the worker thread.
    """

    def __init__(
        self,
        clock: Callable[[], int] = lambda: time.monotonic_ns() // 1000,
        wall: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._rotatable: frozenset[str] = frozenset()
        self._timers: dict[str, FlushTimer] = {}
        self._actives: dict[str, list[str]] = {}
        self._seen: dict[str, tuple[State, int]] = {}
        """State and mtime (ns) of each active file at the last look, by path."""
        self._news = False
        self._lock = Lock()

    def note_append(self, directory: str) -> bool:
        """Record that inotify reported an append by journald in `directory`.

        Return True if `get_next_look_us` may have changed, which is one of these cases:
        - The append started the flush timer.
        - A look found the append before inotify reported it, so the start of the timer is now known more exactly.
        - This journald has no flush timer, and the append is the first that makes a look necessary.

        Otherwise return False. Ignore an unknown directory, and return False.
        """
        with self._lock:
            timer = self._timers.get(directory)
            return timer is not None and timer.note_append(self._clock())

    def note_rewrite(self, directory: str) -> None:
        """Record that journalkeeper rewrote an active file in `directory`. Ignore an unknown directory.

        A look detects a flush by a file's first block that has moved on the disk. A rewrite moves this block, too. So
        forget the stored addresses of first blocks in `directory`: the next look stores new ones, and takes no move for
        a flush.
        """
        with self._lock:
            if directory in self._timers:
                self._timers[directory].forget_blocks()

    def look(self, instances: Iterable[Instance], files: Iterable[JournalFile]) -> tuple[Instance, ...]:
        """Store which instances and active files exist, look at the files, and return the renewed `instances`.

        The look is that of `look_again`: it can wait for a flush, and it can make a plan due. `renew` describes which
        fields are renewed. A known instance keeps its flush timer, and a new one gets a timer in an unknown state.
        The timers of all other instances are forgotten. `files` must contain the files of all instances. Archives,
        and files with a problem, are ignored.
        """
        known = tuple(instances)
        self._rotatable = frozenset(one.directory for one in known if one.rotatable)
        self._actives, self._seen = {one.directory: [] for one in known}, {}
        for file in files:
            if file.kind is Kind.ACTIVE and file.problem is None:
                directory, _, name = file.path.rpartition("/")
                self._actives.setdefault(directory, []).append(name)
        with self._lock:
            self._timers = {one.directory: self._timers.get(one.directory, FlushTimer()) for one in known}
            for one in known:
                self._timers[one.directory].interval_us = one.sync_interval_us
        self.look_again()
        return self.renew(known, ())[0]

    def renew(
        self, instances: Iterable[Instance], files: Iterable[JournalFile]
    ) -> tuple[tuple[Instance, ...], tuple[JournalFile, ...]]:
        """Return `instances`, and the active files among `files`, with the results of the last look.

        Each file gets the state and mtime that the last look read. Archives, and files that the look did not read, are
        left out. Each instance gets two fields:
        - `sync_tells`: True if journald should be asked for a sync, because the state of its flush timer stayed unknown
          for too long. False for a journald that cannot be asked.
        - `online_since_us`: the earliest time (CLOCK_REALTIME) at which the running flush timer can have started. None
          if nothing is unsynced, or if the start is unknown. It has no meaning for a journald without a timer.

        Raises: KeyError for an instance that the last call of `look` did not name.
        """
        offset_us = round(self._wall() - self._clock(), -5)  # so that each look shows a moment as the same one
        with self._lock:
            spans = {directory: timer.since for directory, timer in self._timers.items()}
        since_us = {one: None if span is None else offset_us + span.earliest_us for one, span in spans.items()}
        actives = [(file, self._seen[file.path]) for file in files if file.path in self._seen]
        return (
            tuple(
                one._replace(online_since_us=since_us[one.directory], sync_tells=self._needs_sync(one.directory))
                for one in instances
            ),
            tuple(file._replace(state=state, mtime_ns=mtime_ns) for file, (state, mtime_ns) in actives),
        )

    def _needs_sync(self, directory: str) -> bool:
        """Return whether to ask journald for a sync, because its flush timer was unknown for longer than its interval.

        False for a journald that cannot be asked, and for an hour after a request. False also if a sync would not
        help, as `FlushTimer.needs_sync` describes: without a timer, with a short interval, or without unsynced
        datacow files.
        """
        return directory in self._rotatable and self._timers[directory].needs_sync(self._clock())

    def look_again(self, directory: str | None = None) -> None:
        """Read the states of the known active files again, and update the flush timers.

        A file that cannot be read is skipped. With `directory`, only the files in this directory are read; an unknown
        directory is ignored. This can block: if a flush ended and the start of its timer was known, wait until the
        flushed data is on the disk.

        The next call of `needs_plan` returns True in each of these cases:
        - A flush ended, or did not come in time.
        - Nothing is unsynced any more: a file was at the look before, or `note_append` recorded an append since.
        - Nothing is unsynced at the first look.
        - `note_append` planned a look, and its time has come (only for a journald without a flush timer).
        """
        for one in list(self._timers):
            if directory in {None, one} and self._look(one):
                self._news = True

    def needs_plan(self) -> bool:
        """Return whether a new plan is due, and forget the events that made it due.

        The events since the last call are those that `look_again` describes, such as the end of a flush or the first
        look, and a sync on request (`learn`). A plan also is due as long as a journald should be asked for a sync.
        """
        news, self._news = self._news, False
        return news or any(map(self._needs_sync, self._timers))

    def _look(self, directory: str) -> bool:
        """Read the states of the active files in `directory`, update its flush timer, and return whether a plan is due.

        Store the state and mtime of each file for `renew`. Skip a file that cannot be read. A file is unsynced if its
        state is ONLINE and a journald will still flush it (`may_be_live`). A plan is due in each of these cases:
        - A flush is over, or did not come in time.
        - Nothing is unsynced any more: a file was at the look before, or `note_append` recorded an append since.
        - Nothing is unsynced at the first look.
        - `note_append` planned this look, for a journald without a flush timer.

        In the first two cases, wait until the flushed data is on the disk, if the start of the timer was known
        before.
        """
        timer = self._timers[directory]
        with self._lock:
            timer.begin_look()
            now_us = self._clock()
        present: set[int] = set()
        online: dict[int, int | None] = {}
        generations = NONE_READ
        for name in self._actives[directory]:
            try:
                with opening.open_directory(directory) as dir_fd, opening.hold_open(name, dir_fd) as fd:
                    status, state = os.fstat(fd), header.read_state(fd)
                    present.add(status.st_ino)
                    age_us = self._wall() - status.st_mtime_ns // 1000
                    self._seen[f"{directory}/{name}"] = state, status.st_mtime_ns
                    if state is State.ONLINE and timer.may_be_live(status.st_ino, age_us, now_us):
                        first = volume.read_generation(fd)
                        online[status.st_ino] = None if inode.is_nocow(fd) else fiemap.locate_byte(fd, 0)
                        generations = Generations(min(first, generations.before), volume.read_generation(fd))
            except OSError:
                # The file vanished, or the next whole look reports the error: there is nothing to wait for.
                continue
        with self._lock:
            known = timer.state is State.ONLINE
            if online:
                over = timer.note_unsynced(online, now_us, generations)
            else:
                over = timer.note_offline(frozenset(present), now_us)
            due = timer.note_untimed_look(now_us)
        if over and known:
            self._wait_for_writeback(directory)
        return over or due

    def learn(self, directory: str, synchronize: Callable[[], None]) -> None:
        """Call `synchronize`, which asks the journald of `directory` for a sync, to learn when its next flush is due.

        Then look at the files until they show the end of the sync; the next append starts the flush timer. If
        ASKED_LOOKS looks do not show the end, assume that the timer started between the request and the last look. So
        many looks take 10 s or longer. The next call of `needs_plan` returns True, because work may now be possible.
        After the request, `renew` recommends no other sync within ASK_EVERY_US, not even after an error.

        Raises: KeyError for an unknown directory; the errors of `synchronize`, after which the timer stays unknown.
        """
        timer, before_us = self._timers[directory], self._clock()
        timer.note_request(before_us)
        synchronize()
        self._news = True
        for _ in range(ASKED_LOOKS):
            self._wait_for_writeback(directory)
            if self._look(directory):
                return
            time.sleep(ASKED_S)
        with self._lock:
            if timer.since is None:
                timer.note_sync(before_us, self._clock())

    def _wait_for_writeback(self, directory: str) -> None:
        """Wait until the pages of the active files that are in write-back are on the disk, and the flush is committed.

        The commit is invisible. So sleep as long as the write-back took: at least COMMIT_S, at most COMMIT_MOST_S. A
        file that cannot be read is skipped.
        """
        began_us = self._clock()
        for name in self._actives[directory]:
            try:
                with opening.open_directory(directory) as dir_fd, opening.hold_open(name, dir_fd) as fd:
                    writeback.wait_writeback(fd, 0, 0)
            except OSError:
                continue  # as in _look
        time.sleep(min(max(COMMIT_S, (self._clock() - began_us) / 1e6), COMMIT_MOST_S))

    def get_closing_us(self, directory: str, margin_us: int) -> int | None:
        """Return until when (CLOCK_MONOTONIC, us) work on the active files of `directory` may continue.

        That is `margin_us` before the next flush, and can be in the past. Return None for no limit: nothing is
        unsynced, journald has no flush timer, or the directory is unknown. Return 0, which forbids work, if the start
        of the timer is unknown, or if its interval is at most twice `margin_us`.
        """
        with self._lock:
            timer = self._timers.get(directory)
            return None if timer is None else timer.closes_us(margin_us)

    def is_flush_due(self, margin_us: int) -> bool:
        """Return whether any journald's flush is under way, or due within `margin_us`.

        A flush at an unknown time does not count, nor does that of a journald whose interval is at most twice
        `margin_us`.
        """
        with self._lock:
            return any(timer.is_due(margin_us, self._clock()) for timer in self._timers.values())

    def get_next_look_us(self, margin_us: int) -> int | None:
        """Return the earliest time (CLOCK_MONOTONIC) at which a flush timer needs `look_again`; it can be in the past.

        A running timer needs a look `margin_us` before its flush is due. Then it needs looks until the flush is over
        or LATE_US overdue. An unknown timer needs looks repeatedly, and a timer too short for work needs one each
        minute. A journald without a timer needs one look, RARELY_US after an append. Return None if no timer needs a
        look before the next append.
        """
        with self._lock:
            moments = [timer.next_look_us(margin_us) for timer in self._timers.values()]
        return min((moment for moment in moments if moment is not None), default=None)
