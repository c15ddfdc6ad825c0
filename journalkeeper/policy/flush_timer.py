# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state of one journald's sync timer: when its files became unsynced, and when the next flush is due.

Uncertain times count as early where a window closes and as late where it opens. A flush that is expected for too long
only keeps the window closed. A flush that comes unexpectedly makes journald wait for this service.

The first append after a flush makes the file ONLINE and arms the timer. Within 250 ms it shows as inotify's IN_MODIFY
(journald's coalesced ftruncate). The flush itself is silent. Under load the state byte never shows it: an append during
journald's fsync takes OFFLINE back before it is stored (journal-file.c, OFFLINE_CANCEL). Such an append can even stop
the thread before its fsync, and then no flush happens (measured at 100 messages/s and SyncIntervalSec=10s: 7 timers, 5
flushes, OFFLINE never seen). The timer begins anew in either case.

A flush of a datacow file always moves its first block. So from the due time on the block's place is checked a few times
within a second. The kernel's own write-back moves the block, too, at the earliest 30 s after it was dirtied. So a move
counts as a flush if a flush is due, or if it follows another move sooner than that. The second rule finds an unknown
timer, for example after the start of the service. A sync(2) by any process moves the block at any time, but also ends
the volume's transaction, which an fsync does not. So a move together with a new generation of the volume is no
evidence.

The timer runs on CLOCK_MONOTONIC (server_schedule_sync), and so do all times here. A rotation does not stop the timer,
and every sync does (server_sync). If the timer stays unknown for longer than its interval, on a host that always
writes, one requested sync reveals the next due time. No journald will flush a file that a killed journald left ONLINE;
such a file has not changed for longer than the timer's interval.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from journalkeeper.model import State
from journalkeeper.model.units import INFINITY_US
from journalkeeper.policy.window import closing_us

MS: Final = 1_000
COALESCED_US: Final = 400 * MS
"""The greatest age of an append when its event arrives:

journald holds back its IN_MODIFY for 250 ms (POST_CHANGE_TIMER_INTERVAL_USEC), the watch for another 100.
"""

SLACK_US: Final = 250 * MS
"""The longest time by which sd-event delays a timer to let others fire with it (DEFAULT_ACCURACY_USEC)."""

LATE_US: Final = 1_000 * MS
"""A flush that was not seen this long after its due time was cancelled by an append."""

LOOK_EVERY_US: Final = 50 * MS
SEARCH_EVERY_US: Final = 1_000 * MS
RARELY_US: Final = 60_000 * MS
"""The time between two looks at an instance whose timer leaves no window to find.

It is also the delay before a look at appends that no timer syncs: the kernel has written them back by then.
"""

KERNEL_EXPIRES_US: Final = 25_000 * MS
"""The kernel leaves dirty pages alone for at least 30 s (vm.dirty_expire_centisecs); this is 5 s less, for caution."""

STEPS: Final = 20
"""The approximate maximum number of looks during the time in which a flush may come."""

ASK_EVERY_US: Final = 3_600_000 * MS
"""The shortest time between two requested syncs, because each is an additional flush."""


class Span(NamedTuple):
    """The earliest and the latest moment at which an event can have happened."""

    earliest_us: int
    latest_us: int


class Generations(NamedTuple):
    """The volume's generation before and after the look at the first blocks."""

    before: int
    after: int


class FlushTimer:
    """The state of one instance's sync timer. Pure: times are arguments.

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

    Each phase also ends with a look that finds nothing unsynced: flushed. "Running anew" becomes unknown if the times
    are too vague to find the next flush. `since` is the span in which the timer was started.
    """

    def __init__(self) -> None:
        self.state = State.UNKNOWN
        self.since: Span | None = None
        self.interval_us = 0
        self._looked_us = 0
        self._online: frozenset[int] = frozenset()
        """The inodes that were unsynced at the last look."""
        self._blocks: dict[int, int] = {}
        """The places of their first blocks, for files whose place is evidence, by inode."""
        self._generation = 0
        """The volume's generation before the last look."""
        self._moved_us: int | None = None
        """The time when a block was last seen to have moved while the timer was unknown."""
        self._seen: Span | None = None
        """The span in which the observed flush came."""
        self._unsure = False
        """True if a sync(2) by another process may have caused the supposed flush."""
        self._unknown_us: int | None = None
        """The time when a look first found unsynced files with an unknown timer."""
        self._armed: Span | None = None
        """The start of a timer that keeps running after a rotation."""
        self._appended_us: int | None = None
        """The time of an append that was reported since the last look began."""
        self._unheard = False
        """True if a look found the first append before inotify reported it."""
        self._asked_us: int | None = None
        """The time of the last requested sync."""
        self._untimed_look_us: int | None = None
        """The time of the next look at an instance without a timer."""

    @property
    def has_timer(self) -> bool:
        """True if this journald flushes by a timer: its interval is neither 0 nor infinite."""
        return self.interval_us not in {0, INFINITY_US}

    def note_append(self, now_us: int) -> bool:
        """Record an append that inotify reported at `now_us`. Return True if that changes `next_look_us`.

        inotify can report an append up to COALESCED_US late, so the timer may have started earlier.
        """
        if not self.has_timer:
            first = self._untimed_look_us is None
            if first:
                self._untimed_look_us = now_us + RARELY_US
            return first
        self._appended_us = now_us
        if self.state is State.OFFLINE:
            self._begin(max(self._looked_us, now_us - COALESCED_US), now_us)
            return True
        if not self._unheard or self.since is None:
            return False
        # A look was quicker than inotify: the first append was not long before it.
        self._unheard = False
        self.since = Span(
            min(max(self.since.earliest_us, now_us - COALESCED_US), self.since.latest_us), self.since.latest_us
        )
        return True

    def begin_look(self) -> None:
        """Begin a look, which sees all earlier appends. An append that is reported from now on may be newer."""
        self._appended_us = None

    def note_offline(self, present: frozenset[int], now_us: int) -> bool:
        """Record a look that found nothing unsynced. Return True if the state before this call was not OFFLINE.

        `present` are the inodes of the files that the look read, and `now_us` is the time when it began. A rotation
        does not stop journald's timer, and an append reported since `begin_look` may be newer than the look.
        """
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

    def note_unsynced(self, files: dict[int, int | None], now_us: int, volumes: Generations) -> bool:
        """Record a look that found unsynced files. Return True if a flush is over, and the timer has started anew.

        `files` has the address of each file's first block, by inode; None is no evidence. A flush moves the block, and
        so does sync(2), which also commits the volume. The generations in `volumes` show a commit since the last look.
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
            return self._follow(self.since, before_us, now_us, moved=moved, synced=synced)
        if self._unknown_us is None:
            self._unknown_us = now_us
        if moved:
            self._accept_flush(before_us, now_us, synced=synced)
        return False

    def note_untimed_look(self, now_us: int) -> bool:
        """Record a look at files that no timer syncs. Return True if it was due; the next append plans another."""
        due = self._untimed_look_us is not None and now_us >= self._untimed_look_us
        if due:
            self._untimed_look_us = None
        return due

    def needs_sync(self, now_us: int) -> bool:
        """Return whether to request a sync, because looks at the files do not find the timer's start.

        NOCOW files need no window, because there is nothing to do to them.
        """
        if not self.has_timer or self.interval_us < KERNEL_EXPIRES_US or not self._blocks or self.since is not None:
            return False
        if self._asked_us is not None and now_us - self._asked_us < ASK_EVERY_US:
            return False
        return self._unknown_us is not None and now_us - self._unknown_us > self.interval_us + LATE_US

    def note_request(self, now_us: int) -> None:
        """Record that a sync is being requested at `now_us`. This does not request it."""
        self._asked_us = now_us

    def note_sync(self, before_us: int, now_us: int) -> None:
        """Record a sync that was requested at `before_us` and is over at `now_us`: the timer started between the two
        times.
        """
        self._armed = None
        self._begin(before_us, now_us)
        self._blocks, self._looked_us = {}, now_us

    def _begin(self, earliest_us: int, latest_us: int) -> None:
        """Set the state to ONLINE, with a timer that started between the two times.

        A rotation does not stop a timer, so one from before the rotation (`_armed`) may still run.
        """
        self._unheard, self._unknown_us = False, None
        if self._armed is not None and latest_us < self._armed.latest_us + self.interval_us + LATE_US:
            earliest_us = self._armed.earliest_us
        self.state, self.since = State.ONLINE, Span(earliest_us, latest_us)

    def _accept_flush(self, before_us: int, now_us: int, *, synced: bool) -> None:
        """Decide whether a first block that moved between two looks shows a flush, while the timer's start is unknown.

        sync(2) and the kernel's write-back also move the block. The flush stays uncertain: if a later look finds a
        commit of the volume, `_follow` makes the timer unknown again.
        """
        soon = self._moved_us is not None and now_us - self._moved_us < KERNEL_EXPIRES_US
        self._moved_us = now_us
        if not synced and (soon or self.interval_us < KERNEL_EXPIRES_US):
            self._unsure, self._unknown_us = True, None
            self.state, self._seen = State.ONLINE, Span(before_us, now_us)
            self.since = Span(before_us - self.interval_us, now_us - self.interval_us)

    def _follow(self, since: Span, before_us: int, now_us: int, *, moved: bool, synced: bool) -> bool:
        due_us, end_us = since.earliest_us + self.interval_us, since.latest_us + self.interval_us
        if self._unsure and synced:
            # sync(2) writes first and ends the transaction last, so the move was no flush.
            self._lose_timer()
            return False
        if now_us < due_us:
            if moved and not synced and self.interval_us < KERNEL_EXPIRES_US:
                # Either a message of priority crit restarted the timer, or another process called fsync.
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
        """Restart the timer at `since`, or make it unknown if `since` is too vague. Return whether it was restarted."""
        self._seen, self._unsure = None, False
        vague = 2 * (since.latest_us - since.earliest_us) > self.interval_us
        if vague or now_us >= since.earliest_us + self.interval_us:
            self._lose_timer()
            return False
        self.since = since
        return True

    def _lose_timer(self) -> None:
        self.state, self.since, self._seen, self._unsure = State.UNKNOWN, None, None, False

    def forget_blocks(self) -> None:
        """Forget the addresses of the first blocks, because a rewrite by this service moved them."""
        self._blocks = {}

    def may_be_live(self, inode_number: int, age_us: int, now_us: int) -> bool:
        """Return whether a journald will still flush this ONLINE file, last changed `age_us` ago by the wall clock.

        Setting the clock can make `age_us` too large.
        """
        if age_us <= self.interval_us + LATE_US:
            return True
        # If the clock was set, the age is wrong, and the known timer decides.
        awaited = self.since is not None and now_us < self.since.latest_us + self.interval_us + LATE_US
        return awaited and inode_number in self._online

    def closes_us(self, margin_us: int) -> int | None:
        """Return until when (CLOCK_MONOTONIC) work on the active files may continue: None for no limit, 0 for not at
        all.
        """
        if self.state is State.OFFLINE or not self.has_timer:
            return None
        return 0 if self.since is None else closing_us(self.since.earliest_us, self.interval_us, margin_us) or 0

    def is_due(self, margin_us: int, now_us: int) -> bool:
        """Return whether the next flush is known to be under way, or due within `margin_us`."""
        closes_us = self.closes_us(margin_us)
        return bool(closes_us) and now_us >= (closes_us or 0)

    def next_look_us(self, margin_us: int) -> int | None:
        """Return when (CLOCK_MONOTONIC) to look at the files again, or None to look only after the next append.

        The time can be in the past. The blocks of NOCOW files never move, so the search for a flush looks at them
        rarely.
        """
        if not self.has_timer or self.state is State.OFFLINE:
            return None if self.has_timer else self._untimed_look_us
        if closing_us(0, self.interval_us, margin_us) is None:
            return self._looked_us + RARELY_US
        if self.since is None:
            # NOCOW blocks never move, so the state OFFLINE is the only evidence.
            found_by_looking = min(SEARCH_EVERY_US, self.interval_us // STEPS)
            return self._looked_us + (found_by_looking if self._blocks else max(self.interval_us, RARELY_US))
        due_us, end_us = self.since.earliest_us + self.interval_us, self.since.latest_us + self.interval_us
        if self._looked_us < due_us:
            return due_us - margin_us if self._looked_us < due_us - margin_us else due_us
        if self._seen is not None:
            return max(end_us + (LATE_US if self._unsure else SLACK_US), self._looked_us + LOOK_EVERY_US)
        return self._looked_us + max(LOOK_EVERY_US, (end_us - due_us) // STEPS)
