# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is known of one journald's sync timer: when it began to have something to flush, and when it will.

What is not known is taken to be early where a window closes, and late where
one opens. A flush awaited for too long keeps the window closed for nothing; one that comes
while we take it for past has journald wait for us.

The first append after a flush makes the file ONLINE, arms the timer, and within 250 ms shows
as inotify's IN_MODIFY (journald's coalesced ftruncate). The flush itself is silent, and under
load the state byte never shows it: an append during journald's fsync takes OFFLINE back before
it is stored (journal-file.c, OFFLINE_CANCEL), or even stops the thread before its fsync, and
the flush does not happen at all (measured at 100 messages/s and SyncIntervalSec=10s: 7 timers,
5 flushes, OFFLINE never seen). The timer begins anew in either case.

What a flush of a datacow file cannot hide is that its first block lies elsewhere afterwards.
From the due moment on that is looked at, a few times within a second. The kernel's own
write-back moves the block, too, 30 s after it was dirtied at the earliest: so a move is a
flush when one is due, or when it comes sooner after another than that. By the latter a timer
is found of which nothing is known, as at our start. Somebody's sync(2) moves it at any time,
but ends the volume's transaction as well, which an fsync does not: a move together with the
volume's generation tells nothing.

The timer runs on CLOCK_MONOTONIC (server_schedule_sync), and so do all times in here; a
rotation does not stop it, and every sync does (server_sync). So where nothing was found out
for longer than the timer takes, on a host that is never at rest, one sync asked for settles
when the next one is due. A file that a killed journald left ONLINE is nobody's to flush: it
was not changed for longer than its timer takes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from journalkeeper.model import State
from journalkeeper.model.units import INFINITY_US
from journalkeeper.policy.window import closing_us

MS: Final = 1_000
COALESCED_US: Final = 400 * MS
"""How old an append may be that we hear of: journald holds back its IN_MODIFY for 250 ms
(POST_CHANGE_TIMER_INTERVAL_USEC), the watch for another 100."""

SLACK_US: Final = 250 * MS
"""By how much sd-event may move a timer to let others fire with it (DEFAULT_ACCURACY_USEC)."""

LATE_US: Final = 1_000 * MS
"""A flush that was not seen this long after it was due was taken back by an append."""

LOOK_EVERY_US: Final = 50 * MS
SEARCH_EVERY_US: Final = 1_000 * MS
RARELY_US: Final = 60_000 * MS
"""How often to see whether an instance has gone OFFLINE whose timer leaves no window to find; and when to look
at what was appended where nothing syncs by a timer: the kernel has written it back by then."""

KERNEL_EXPIRES_US: Final = 25_000 * MS
"""Dirty pages are left alone for at least 30 s (vm.dirty_expire_centisecs); 5 s of caution."""

STEPS: Final = 20
"""Looks at the most, roughly, in the time in which a flush may come."""

ASK_EVERY_US: Final = 3_600_000 * MS
"""How often a sync may be asked for: it is one flush more."""


class Span(NamedTuple):
    """The earliest and the latest moment at which something was."""

    earliest_us: int
    latest_us: int


class Generations(NamedTuple):
    """The volume's generation before and after the first blocks were looked at."""

    before: int
    after: int


UNTOLD: Final = Generations(0, 0)


class FlushTimer:
    """What is known of one instance's timer. Pure: the times are arguments.

    | phase        | state   | since | what else is set           | ends with                                      |
    |--------------|---------|-------|----------------------------|------------------------------------------------|
    | flushed      | OFFLINE | None  |                            | an append, heard or seen: running              |
    | running      | ONLINE  | known |                            | a move of the block when it is due: flush seen;|
    |              |         |       |                            | LATE_US after that: running anew               |
    | flush seen   | ONLINE  | known | _seen                      | SLACK_US after it was due: running anew        |
    | found        | ONLINE  | known | _seen, _unsure             | a commit of the volume: unknown;               |
    |              |         |       |                            | LATE_US after it was due: running anew         |
    | unknown      | UNKNOWN | None  | _unknown_us, from a look on| a move that is a flush: found;                 |
    |              |         |       |                            | a sync that was asked for: running             |

    Each phase ends with a look that finds nothing unsynced, too: flushed. "Running anew" is unknown where the times
    are too vague to find the next flush by. `since` is the span in which the timer was started.
    """

    def __init__(self) -> None:
        self.state = State.UNKNOWN
        self.since: Span | None = None
        self.interval_us = 0
        self._looked_us = 0
        self._online: frozenset[int] = frozenset()
        """The inodes that were unsynced at the last look."""
        self._blocks: dict[int, int] = {}
        """Where their first blocks lay, of those of which that tells something."""
        self._generation = 0
        """The volume's, before the last look."""
        self._moved_us: int | None = None
        """When a block was last seen to have moved while the timer was unknown."""
        self._seen: Span | None = None
        """When the flush came that was seen."""
        self._unsure = False
        """What was taken for a flush may have been the sync(2) of somebody."""
        self._unknown_us: int | None = None
        """When a look first found something unsynced, and nothing of its timer."""
        self._armed: Span | None = None
        """When the timer was started that runs on beyond a rotation."""
        self._appended_us: int | None = None
        """When an append was reported since the last look began."""
        self._unheard = False
        """A look found the first append before inotify told of it."""
        self._asked_us: int | None = None
        """When a sync was last asked for."""
        self._untimed_look_us: int | None = None
        """When to look again where nothing syncs by a timer."""

    @property
    def timed(self) -> bool:
        """Whether this journald flushes by a timer at all."""
        return self.interval_us not in {0, INFINITY_US}

    def appended(self, now_us: int) -> bool:
        """Take in an append that inotify reported; True if `next_look_us` is another now."""
        if not self.timed:
            first = self._untimed_look_us is None
            if first:
                self._untimed_look_us = now_us + RARELY_US
            return first
        if self.state is State.OFFLINE:
            self._begin(max(self._looked_us, now_us - COALESCED_US), now_us)
            return True
        self._appended_us = now_us
        if not self._unheard or self.since is None:
            return False
        # A look was quicker than inotify: the first append was not long before it.
        self._unheard = False
        self.since = Span(
            min(max(self.since.earliest_us, now_us - COALESCED_US), self.since.latest_us), self.since.latest_us
        )
        return True

    def ask(self) -> None:
        """A look begins: appends that are reported from here on may be newer than what it finds."""
        self._appended_us = None

    def offline(self, present: frozenset[int], now_us: int) -> bool:
        """Take in a look that found nothing unsynced in the files `present`; True if that is new."""
        news = self.state is not State.OFFLINE
        if self._online:
            # Synced, or rotated away: that does not stop the timer.
            self._armed = None if self._online & present else self.since
        self.state, self.since, self._seen, self._moved_us = State.OFFLINE, None, None, None
        self._unknown_us = None
        self._unsure = False
        self._online, self._blocks, self._looked_us = frozenset(), {}, now_us
        if self._appended_us is not None:
            self._begin(max(now_us, self._appended_us - COALESCED_US), max(now_us, self._appended_us))
        return news

    def online(self, files: dict[int, int | None], now_us: int, volumes: Generations = UNTOLD) -> bool:
        """Take in a look at unsynced files: inode and where its first block lies, None if that tells nothing.

        True if a flush is over, or must be taken to have been dropped.
        """
        synced, self._generation = volumes.after != self._generation, volumes.before
        blocks = {number: block for number, block in files.items() if block is not None}
        moved = any(self._blocks.get(number, block) != block for number, block in blocks.items())
        before_us, self._looked_us = self._looked_us, now_us
        self._online, self._blocks = frozenset(files), blocks
        if self.state is State.OFFLINE:
            self._begin(before_us, now_us)
            self._unheard = self.since == Span(before_us, now_us)
            return False
        if self.since is not None:
            return self._followed(self.since, before_us, now_us, moved=moved, synced=synced)
        if self._unknown_us is None:
            self._unknown_us = now_us
        if moved:
            self._found(before_us, now_us, synced=synced)
        return False

    def untimed(self, age_us: int | None, now_us: int) -> bool:
        """Take in a look at files, the last changed `age_us` ago; True if they have no timer and a look was due.

        systemd-journal-remote syncs by no timer, and closes its files silently.
        """
        if self.timed:
            return False
        due = self._untimed_look_us is not None and now_us >= self._untimed_look_us
        if due or self._untimed_look_us is None:
            fresh = age_us is not None and 0 <= age_us < RARELY_US
            self._untimed_look_us = now_us + RARELY_US - age_us if fresh and age_us is not None else None
        return due

    def worth_a_sync(self, now_us: int) -> bool:
        """Whether to ask journald for a sync: nothing else has shown for longer than its timer takes when one is due.

        Short timers are found by their flushes, and of NOCOW files nothing is to be done in a window.
        """
        if not self.timed or self.interval_us < KERNEL_EXPIRES_US or not self._blocks or self.since is not None:
            return False
        if self._asked_us is not None and now_us - self._asked_us < ASK_EVERY_US:
            return False
        return self._unknown_us is not None and now_us - self._unknown_us > self.interval_us + LATE_US

    def asked(self, now_us: int) -> None:
        """journald is being asked for a sync."""
        self._asked_us = now_us

    def synced(self, before_us: int, now_us: int) -> None:
        """A sync that was asked for at `before_us` stopped the timer, and an append up to `now_us` started it again."""
        self._armed = None
        self._begin(before_us, now_us)
        self._blocks, self._looked_us = {}, now_us

    def _begin(self, earliest_us: int, latest_us: int) -> None:
        """The first append after a flush; after a rotation the timer may still run from before."""
        self._unheard, self._unknown_us = False, None
        if self._armed is not None and latest_us < self._armed.latest_us + self.interval_us + LATE_US:
            earliest_us = self._armed.earliest_us
        self.state, self.since = State.ONLINE, Span(earliest_us, latest_us)

    def _found(self, before_us: int, now_us: int, *, synced: bool) -> None:
        """A block moved while no timer was known: take it for a flush if nothing else can have done it."""
        soon = self._moved_us is not None and now_us - self._moved_us < KERNEL_EXPIRES_US
        self._moved_us = now_us
        if not synced and (soon or self.interval_us < KERNEL_EXPIRES_US):
            self._unsure, self._unknown_us = True, None
            self.state, self._seen = State.ONLINE, Span(before_us, now_us)
            self.since = Span(before_us - self.interval_us, now_us - self.interval_us)

    def _followed(self, since: Span, before_us: int, now_us: int, *, moved: bool, synced: bool) -> bool:
        due_us, end_us = since.earliest_us + self.interval_us, since.latest_us + self.interval_us
        if self._unsure and synced:
            # sync(2) writes first and ends the transaction last: that was no flush.
            self._unknown()
            return False
        if now_us < due_us:
            if moved and not synced and self.interval_us < KERNEL_EXPIRES_US:
                # A message of priority crit, and the timer runs from here; or fsync by another, and it does not.
                self.since = Span(since.earliest_us, now_us)
            return False
        if moved:
            # It may also have been the kernel: the flush can still come until the timer's slack is over.
            self._seen = Span(before_us if self._seen is None else self._seen.earliest_us, now_us)
        elif self._seen is not None and now_us >= end_us + (LATE_US if self._unsure else SLACK_US):
            return self._restart(self._seen, now_us)
        elif self._seen is None and now_us >= end_us + LATE_US:
            return self._restart(Span(due_us, end_us + SLACK_US), now_us)
        return False

    def _restart(self, since: Span, now_us: int) -> bool:
        """The timer began anew; if that is too vague to find the next flush by, nothing is known."""
        self._seen, self._unsure = None, False
        vague = 2 * (since.latest_us - since.earliest_us) > self.interval_us
        if vague or now_us >= since.earliest_us + self.interval_us:
            self._unknown()
            return False
        self.since = since
        return True

    def _unknown(self) -> None:
        self.state, self.since, self._seen, self._unsure = State.UNKNOWN, None, None, False

    def moved_by_us(self) -> None:
        """Where the first blocks lie now says nothing of journald."""
        self._blocks = {}

    def may_be_live(self, inode_number: int, age_us: int, now_us: int) -> bool:
        """Whether a journald will flush this ONLINE file, which was changed `age_us` ago by the wall clock."""
        if age_us <= self.interval_us + LATE_US:
            return True
        # Unless the clock was set: then what we know of the timer counts.
        awaited = self.since is not None and now_us < self.since.latest_us + self.interval_us + LATE_US
        return awaited and inode_number in self._online

    def closes_us(self, margin_us: int) -> int | None:
        """Until when work may go on as far as is known; None: nothing is unsynced, or no timer runs."""
        if self.state is State.OFFLINE or not self.timed:
            return None
        return 0 if self.since is None else closing_us(self.since.earliest_us, self.interval_us, margin_us) or 0

    def due(self, margin_us: int, now_us: int) -> bool:
        """Whether a flush is known to be near, or under way."""
        if not self.timed or self.since is None:
            return False
        closes_us = closing_us(self.since.earliest_us, self.interval_us, margin_us)
        return closes_us is not None and now_us >= closes_us

    def next_look_us(self, margin_us: int) -> int | None:
        """When to look again though nothing happened: before a flush is due, and until it was seen."""
        if not self.timed or self.state is State.OFFLINE:
            return None if self.timed else self._untimed_look_us
        if closing_us(0, self.interval_us, margin_us) is None:
            return self._looked_us + RARELY_US
        if self.since is None:
            # NOCOW blocks stay where they are: all that can be seen of such a file is that it is OFFLINE.
            found_by_looking = min(SEARCH_EVERY_US, self.interval_us // STEPS)
            return self._looked_us + (found_by_looking if self._blocks else max(self.interval_us, RARELY_US))
        due_us, end_us = self.since.earliest_us + self.interval_us, self.since.latest_us + self.interval_us
        if self._looked_us < due_us:
            return due_us - margin_us if self._looked_us < due_us - margin_us else due_us
        if self._seen is not None:
            return max(end_us + (LATE_US if self._unsure else SLACK_US), self._looked_us + LOOK_EVERY_US)
        return self._looked_us + max(LOOK_EVERY_US, (end_us - due_us) // STEPS)
