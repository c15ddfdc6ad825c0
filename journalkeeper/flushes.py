# SPDX-License-Identifier: LGPL-2.1-or-later
"""When each journald began to have something to flush, and when we must look again.

The one rule: what is not known is taken to be early. A flush awaited too early closes the
window for nothing; one awaited too late has journald wait for us.

The first append after a flush makes the file ONLINE, arms the timer, and within 250 ms shows
as inotify's IN_MODIFY (journald's coalesced ftruncate). The flush itself is silent, and under
load the state byte never shows it: an append during journald's fsync takes OFFLINE back before
it is stored (journal-file.c, OFFLINE_CANCEL), or even stops the thread before its fsync, and
the flush does not happen at all (measured at 100 messages/s and SyncIntervalSec=10s: 7 timers,
5 flushes, OFFLINE never seen). The timer begins anew in either case.

What a flush of a datacow file cannot hide is that its first block lies elsewhere afterwards.
From the due moment on that is looked at, a few times within a second. The kernel's own
write-back moves the block, too, 30 s after it was dirtied at the earliest: so a move is a
flush when a flush is due, or when flushes are closer together than that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from journalkeeper import opening
from journalkeeper.btrfs import fiemap, writeback
from journalkeeper.journald import header
from journalkeeper.model import Instance, JournalFile, Kind, State
from journalkeeper.values import INFINITY_US

MS: Final = 1_000
COALESCED_US: Final = 250 * MS
"""How long journald may hold back the IN_MODIFY of an append (POST_CHANGE_TIMER_INTERVAL_USEC)."""

LOOK_EVERY_US: Final = 50 * MS
LATE_US: Final = 1_000 * MS
"""A flush that was not seen this long after it was due was taken back by an append."""

KERNEL_EXPIRES_US: Final = 25_000 * MS
"""Dirty pages are left alone for at least 30 s (vm.dirty_expire_centisecs); 5 s of caution."""


class _Beat:
    """What is known of one instance: since when it is ONLINE, and where its first block lay when."""

    def __init__(self) -> None:
        self.since_us: int | None = None
        self.offline_seen = False
        self.block: int | None = None
        self.looked_us = 0
        self.interval_us = 0

    def due_us(self) -> int | None:
        if self.since_us is None or self.interval_us in {0, INFINITY_US}:
            return None
        return self.since_us + self.interval_us

    def online(self, block: int | None, now_us: int) -> bool:
        """Take in a look that found the file ONLINE; True if a flush was seen to have begun."""
        moved = self.block is not None and block is not None and block != self.block
        due_us = self.due_us()
        due = due_us is not None and now_us >= due_us
        flushed = moved and (due or self.interval_us < KERNEL_EXPIRES_US)
        if flushed:
            # The timer was armed by the first append after the flush: not before our last look.
            self.since_us = self.looked_us
        elif due_us is not None and now_us > due_us + LATE_US:
            self.since_us = due_us
        self.block, self.looked_us, self.offline_seen = block, now_us, False
        return flushed

    def offline(self, now_us: int) -> None:
        """Take in a look that found nothing to flush."""
        self.since_us, self.block, self.looked_us, self.offline_seen = None, None, now_us, True


class Flushes:
    """The beats of all instances, by directory. Times are CLOCK_REALTIME microseconds."""

    def __init__(self) -> None:
        self._beats: dict[str, _Beat] = {}

    def appended(self, directory: str, now_us: int) -> bool:
        """inotify says that journald appended; True if that began a new interval."""
        beat = self._beats.get(directory)
        if beat is None or not beat.offline_seen:
            return False
        beat.since_us = max(beat.looked_us, now_us - COALESCED_US)
        beat.offline_seen = False
        return True

    def moved_by_us(self, directory: str) -> None:
        """We rewrote an active file there: where its first block lies now says nothing of journald."""
        if directory in self._beats:
            self._beats[directory].block = None

    def look(self, instances: Iterable[Instance], files: Iterable[JournalFile], now_us: int) -> tuple[Instance, ...]:
        """Look at the active files of `instances` now; the same with what is known of their timers."""
        actives: dict[str, list[JournalFile]] = {}
        for file in files:
            if file.kind is Kind.ACTIVE and file.problem is None:
                actives.setdefault(file.path.rpartition("/")[0], []).append(file)
        known = []
        for instance in instances:
            beat = self._beats.setdefault(instance.directory, _Beat())
            beat.interval_us = instance.sync_interval_us
            _update(beat, actives.get(instance.directory, []), now_us)
            known.append(instance._replace(online_since_us=beat.since_us))
        self._beats = {instance.directory: self._beats[instance.directory] for instance in known}
        return tuple(known)

    def next_look_us(self, margin_us: int) -> int | None:
        """When to look again though nothing happened: before a flush is due, and until it was seen."""
        moments = []
        for beat in self._beats.values():
            due_us = beat.due_us()
            if due_us is not None:
                before_us = due_us - margin_us
                moments.append(before_us if beat.looked_us < before_us else max(due_us, beat.looked_us + LOOK_EVERY_US))
        return min(moments, default=None)


def _update(beat: _Beat, files: list[JournalFile], now_us: int) -> None:
    """Read the state bytes again: the files' rows may be older than the look."""
    for file in files:
        directory, _, name = file.path.rpartition("/")
        try:
            with opening.directory(directory) as dir_fd, opening.opened(name, dir_fd) as fd:
                if header.state(fd) is not State.ONLINE:
                    continue
                if beat.online(fiemap.physical(fd, 0), now_us):
                    # It has begun; it is over when nothing of the file is under write-back any more.
                    writeback.wait_writeback(fd, 0, 0)
                return
        except FileNotFoundError:
            continue
    beat.offline(now_us)
