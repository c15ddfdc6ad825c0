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

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from journalkeeper.model import State
from journalkeeper.model.units import INFINITY_US
from journalkeeper.policy.window import find_closing_us

MS: Final = 1_000
COALESCED_US: Final = 400 * MS
"""The greatest age of an append when its event arrives: journald holds back its IN_MODIFY for 250 ms
(POST_CHANGE_TIMER_INTERVAL_USEC), the watch for another 100.
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


NEVER: Final = Span(0, -INFINITY_US)


class Generations(NamedTuple):
    """The volume's generation before and after the look at the first blocks."""

    before: int
    after: int


class Phase(Enum):
    """The knowledge of a timer. All phases but UNKNOWN and FLUSHED have a span in which the timer was started."""

    UNKNOWN = "unsynced files, and a timer that started at an unknown time"
    FLUSHED = "nothing unsynced, and no timer"
    UNHEARD = "a timer that a look noticed before inotify reported the append"
    RUNNING = "a timer"
    MOVED = "a timer that is due, and a block that moved: the flush, or the kernel's write-back"
    FOUND = "a timer that a flush revealed, unless sync(2) moved the block"


class Clue(Enum):
    """An observation that can end a phase."""

    APPEND = "inotify reported an append"
    UNSYNCED = "a look found unsynced files"
    QUIET = "a look found nothing unsynced"
    MOVE = "a look found a moved block, which shows a flush"
    COMMIT = "a look found a commit of the volume"
    OVER = "the flush is over, or was cancelled: the timer started again"
    VAGUE = "as OVER, but the start is too vague to find the next flush"
    SYNC = "a requested sync ended"


TIMED: Final = {Clue.QUIET: Phase.FLUSHED, Clue.MOVE: Phase.MOVED, Clue.OVER: Phase.RUNNING, Clue.VAGUE: Phase.UNKNOWN}
TRANSITIONS: Final[Mapping[Phase, Mapping[Clue, Phase]]] = {
    Phase.UNKNOWN: {Clue.QUIET: Phase.FLUSHED, Clue.MOVE: Phase.FOUND, Clue.SYNC: Phase.RUNNING},
    Phase.FLUSHED: {Clue.QUIET: Phase.FLUSHED, Clue.APPEND: Phase.RUNNING, Clue.UNSYNCED: Phase.UNHEARD},
    Phase.UNHEARD: {**TIMED, Clue.APPEND: Phase.RUNNING},
    Phase.RUNNING: TIMED,
    Phase.MOVED: TIMED,
    Phase.FOUND: {**TIMED, Clue.MOVE: Phase.FOUND, Clue.COMMIT: Phase.UNKNOWN},
}
"""The next phase. A clue that a phase does not list means nothing in it."""


class LastLook(NamedTuple):
    """The last look: the inodes of the unsynced files, and the places of their first blocks, where these are evidence.

    `generation` is the volume's before the look.
    """

    at_us: int
    online: frozenset[int] = frozenset()
    blocks: Mapping[int, int] = {}
    generation: int = 0


class FlushTimer:
    """The state, at first UNKNOWN, of a sync timer that started in the span `since`. The caller sets `interval_us`."""

    def __init__(self) -> None:
        self.phase = Phase.UNKNOWN
        self.since: Span | None = None
        self.interval_us = 0
        self._flush: Span | None = None
        """The span in which the flush came, if the phase is MOVED or FOUND."""
        self._looked = LastLook(0)
        self._armed = NEVER
        """The start of a timer that keeps running after a rotation."""
        self._moved_us = self._asked_us = -INFINITY_US
        """The time of the last move of a block with an unknown timer, and of the last requested sync."""
        self._unknown_us = INFINITY_US
        """The time of the first look that found unsynced files with an unknown timer."""
        self._untimed_look_us: int | None = None
        """The time of the next look at an instance without a timer."""

    @property
    def state(self) -> State:
        """The phase as a State, whatever the interval: OFFLINE for FLUSHED, UNKNOWN for itself, else ONLINE."""
        return {Phase.UNKNOWN: State.UNKNOWN, Phase.FLUSHED: State.OFFLINE}.get(self.phase, State.ONLINE)

    @property
    def has_timer(self) -> bool:
        """True if this journald flushes by a timer: its interval is neither 0 nor infinite."""
        return self.interval_us not in {0, INFINITY_US}

    @property
    def awaits_append(self) -> bool:
        """False if `note_append` has no effect before the next other call."""
        return Clue.APPEND in TRANSITIONS[self.phase] if self.has_timer else self._untimed_look_us is None

    def _try_enter(self, clue: Clue, since: Span | None = None, flush: Span | None = None) -> bool:
        """Enter the phase after `clue` with these spans, and reset `_unknown_us`. Return False if there is none."""
        after = TRANSITIONS[self.phase].get(clue)
        if after is None:
            return False
        self.phase, self.since, self._flush = after, since, flush
        self._unknown_us = INFINITY_US
        return True

    def _begin(self, clue: Clue, since: Span) -> None:
        """Enter the phase after `clue`. If a timer from before a rotation may run on, `since` begins at its start."""
        is_armed = since.latest_us < self._armed.latest_us + self.interval_us + LATE_US
        self._try_enter(clue, Span(self._armed.earliest_us, since.latest_us) if is_armed else since)

    def note_append(self, heard_us: int) -> None:
        """Record an append, reported at `heard_us`: start a timer or date an UNHEARD one. Untimed, only plan a look."""
        if not self.has_timer:
            self._untimed_look_us = self._untimed_look_us or heard_us + RARELY_US
            return
        bounds = self.since or Span(self._looked.at_us, heard_us)
        # A look that found nothing unsynced has seen earlier appends flushed.
        if self.awaits_append and bounds.earliest_us <= bounds.latest_us:
            earliest_us = min(max(bounds.earliest_us, heard_us - COALESCED_US), bounds.latest_us)
            self._begin(Clue.APPEND, Span(earliest_us, bounds.latest_us))

    def note_offline(self, present: frozenset[int], now_us: int) -> bool:
        """Record a look that found nothing unsynced. Return True if the state before this call was not OFFLINE.

        The look began at `now_us` and read the inodes `present`. If the last look found unsynced files and none of them
        is present, a rotation took them away, and their timer runs on.
        """
        news = self.state is not State.OFFLINE
        if self._looked.online:  # synced, or rotated away, which does not stop the timer
            self._armed = self.since if self.since and not self._looked.online & present else NEVER
        self._try_enter(Clue.QUIET)
        self._looked, self._moved_us = LastLook(now_us), -INFINITY_US
        return news

    def note_unsynced(self, files: dict[int, int | None], now_us: int, volumes: Generations) -> bool:
        """Record a look that found unsynced files. Return True if a flush is over, and the timer has started anew.

        `files` has the address of each file's first block, by inode; None is no evidence. A flush moves the block. So
        does sync(2), but it also commits the volume, as `volumes` shows. A move without a commit dates an unknown timer
        if the interval, or the time since the move before, is below KERNEL_EXPIRES_US.
        """
        before, blocks = self._looked, {number: block for number, block in files.items() if block is not None}
        self._looked = LastLook(now_us, frozenset(files), blocks, volumes.before)
        moved = any(before.blocks.get(number, block) != block for number, block in blocks.items())
        synced, seen = volumes.after != before.generation, Span(before.at_us, now_us)
        if self.since is not None:
            return self._note_known_timer(self.since, seen, moved=moved, synced=synced)
        if self.phase is Phase.FLUSHED:
            self._begin(Clue.UNSYNCED, seen)
            return False
        self._unknown_us = min(self._unknown_us, now_us)
        if moved:
            # Also sync(2) and the kernel's write-back move a block, but the latter not as soon as this.
            soon = min(now_us - self._moved_us, self.interval_us) < KERNEL_EXPIRES_US
            self._moved_us = now_us
            if soon and not synced:
                self._try_enter(Clue.MOVE, Span(seen.earliest_us - self.interval_us, now_us - self.interval_us), seen)
        return False

    def _note_known_timer(self, since: Span, seen: Span, *, moved: bool, synced: bool) -> bool:
        """Record a look, made within `seen`, at unsynced files with a timer that started within `since`.

        `moved`: a first block has moved since the last look. `synced`: the volume was committed, which ends FOUND in
        UNKNOWN. Before the due time, a move without a commit makes `since` longer if the interval is below
        KERNEL_EXPIRES_US. Return True if the timer has started anew, at the moves or, without any, when it was due:
        `_patience_us` is over and no block moves any more. If that start is too vague, the phase is UNKNOWN.
        """
        now_us = seen.latest_us
        due_us, end_us = since.earliest_us + self.interval_us, since.latest_us + self.interval_us
        if synced and self._try_enter(Clue.COMMIT):  # sync(2) writes first and ends the transaction last
            return False
        if now_us < due_us:
            if moved and not synced and self.interval_us < KERNEL_EXPIRES_US:
                # Either a message of priority crit restarted the timer, or another process called fsync.
                self.since = Span(since.earliest_us, now_us)
            return False
        if moved:
            self._try_enter(Clue.MOVE, since, Span((self._flush or seen).earliest_us, now_us))
            return False
        if now_us < end_us + self._patience_us:
            return False
        start = self._flush or Span(due_us, end_us + SLACK_US)
        is_vague = 2 * (start.latest_us - start.earliest_us) > self.interval_us
        if is_vague or now_us >= start.earliest_us + self.interval_us:
            self._try_enter(Clue.VAGUE)
            return False
        return self._try_enter(Clue.OVER, start)

    @property
    def _patience_us(self) -> int:
        """The time after its due time in which a flush can still come: SLACK_US in phase MOVED, else LATE_US."""
        return SLACK_US if self.phase is Phase.MOVED else LATE_US

    def note_untimed_look(self, now_us: int) -> bool:
        """Return whether a planned look at files that no timer syncs is due. If it is, it is no longer planned."""
        due = self._untimed_look_us is not None and now_us >= self._untimed_look_us
        if due:
            self._untimed_look_us = None
        return due

    def needs_sync(self, now_us: int) -> bool:
        """Return whether to request a sync, because looks did not find the timer's start for its interval and LATE_US.

        Looks alone find a timer below KERNEL_EXPIRES_US. NOCOW files need no window: there is nothing to do to them.
        After `note_request` the answer is False for ASK_EVERY_US.
        """
        can_find = not self.has_timer or self.interval_us < KERNEL_EXPIRES_US or not self._looked.blocks
        if can_find or self.phase is not Phase.UNKNOWN or now_us - self._asked_us < ASK_EVERY_US:
            return False
        return now_us - self._unknown_us > self.interval_us + LATE_US

    def note_request(self, now_us: int) -> None:
        """Record that a sync is being requested at `now_us`. This does not request it."""
        self._asked_us = now_us

    def note_sync(self, before_us: int, now_us: int) -> None:
        """Record a requested sync. A timer in UNKNOWN started between `before_us` and `now_us`. Forget blocks."""
        self._try_enter(Clue.SYNC, Span(before_us, now_us))
        self._armed = NEVER
        self._looked = self._looked._replace(at_us=now_us, blocks={})

    def forget_blocks(self) -> None:
        """Forget the addresses of the first blocks, because a rewrite by this service moved them."""
        self._looked = self._looked._replace(blocks={})

    def may_be_live(self, inode_number: int, unchanged_us: int, now_us: int) -> bool:
        """Return whether a journald will flush this ONLINE file yet: `unchanged_us` is at most `interval_us` + LATE_US.

        Interval 0 is no exception. If a set clock made it larger, a known timer decides, for files last seen ONLINE.
        """
        if unchanged_us <= self.interval_us + LATE_US:
            return True
        awaited = self.since is not None and now_us < self.since.latest_us + self.interval_us + LATE_US
        return awaited and inode_number in self._looked.online

    def get_closing_us(self, margin_us: int) -> int | None:
        """Return when (CLOCK_MONOTONIC) to stop work: None without a timer or unsynced files, 0 if unknown or short."""
        if self.phase is Phase.FLUSHED or not self.has_timer:
            return None
        return 0 if self.since is None else find_closing_us(self.since.earliest_us, self.interval_us, margin_us) or 0

    def is_due(self, margin_us: int, now_us: int) -> bool:
        """Return whether the time of `get_closing_us` has come: a flush is near or under way. False for None and 0."""
        closes_us = self.get_closing_us(margin_us)
        return bool(closes_us and now_us >= closes_us)

    def get_next_look_us(self, margin_us: int) -> int | None:
        """Return when (CLOCK_MONOTONIC, also past) to look at the files again; None: only after the next append.

        Without a timer: RARELY_US after an append; too short an interval: after a look. A known timer is looked at when
        it starts, `margin_us` before it is due, and often from the due time on; an unknown one often, all NOCOW rarely.
        """
        looked_us = self._looked.at_us
        if not self.has_timer or self.phase is Phase.FLUSHED:
            return None if self.has_timer else self._untimed_look_us
        if find_closing_us(0, self.interval_us, margin_us) is None:
            return looked_us + RARELY_US
        if self.since is None:
            # NOCOW blocks never move, so the state OFFLINE is the only evidence.
            found_by_looking = min(SEARCH_EVERY_US, self.interval_us // STEPS)
            return looked_us + (found_by_looking if self._looked.blocks else max(self.interval_us, RARELY_US))
        if not self._looked.online:
            return self.since.latest_us  # which files are unsynced shows a rotation later
        due_us, end_us = self.since.earliest_us + self.interval_us, self.since.latest_us + self.interval_us
        if looked_us < due_us:
            return due_us - margin_us if looked_us < due_us - margin_us else due_us
        is_near = self._flush is not None
        wait_us = LOOK_EVERY_US if is_near else max(LOOK_EVERY_US, (end_us - due_us) // STEPS)
        return max(looked_us + wait_us, end_us + self._patience_us if is_near else 0)
