# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether the next piece of an action may begin, by how journald and its disk are doing.

Measuring must cost less than what it saves: a few system calls a piece, more
only a few times a second. What it means is for policy/backpressure.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from journalkeeper.btrfs.maintenance import find_maintenance
from journalkeeper.config import Config
from journalkeeper.model import Action, Reason
from journalkeeper.observe.flushes import COMMIT_S, Flushes
from journalkeeper.observe.intake import Intake
from journalkeeper.observe.load import measure_busy_percent
from journalkeeper.observe.syncs import Syncs
from journalkeeper.policy.backpressure import Advice, Reading, advice

PAUSE_S: Final = 0.25
REST_S: Final = 0.05

REST_EVERY_S: Final = 1.0
"""A rest after each second of work, in which whatever the disk does is somebody else's."""

ENTRIES_EVERY_S: Final = 0.2
MAINTENANCE_EVERY_S: Final = 5.0


class Place(NamedTuple):
    """Where work goes on: the volume, and the active files of all instances there."""

    uuid: str
    actives: tuple[str, ...]


class Throttle:
    """What is asked before each piece of one action: the reason to end here, or None.

    `stop` ends it at once, and so does a window that would close before the piece is over, by
    the plan or by what the flush looks have found since. `margin_us` is how long before a flush
    no piece may go on. With `hurry` (--now) nothing else is asked.
    """

    def __init__(
        self,
        action: Action,
        config: Config,
        flushes: Flushes,
        place: Place,
        *,
        margin_us: int,
        hurry: bool,
        stop: Callable[[], bool],
    ) -> None:
        self._action = action
        self._config = config
        self._flushes = flushes
        self._place = place
        self._margin_us = margin_us
        self._hurry = hurry
        self._stop = stop
        self._syncs = Syncs(action.path)
        self._intake = Intake()
        self._busy_percent: int | None = None
        self._paused_s = 0.0
        self._rested_s = self._entries_s = self._maintenance_s = time.monotonic()

    def __call__(self, piece_us: int) -> Reason | None:
        """Why the next piece, which will take `piece_us`, must not be begun; it may first wait a while."""
        if not self._hurry and time.monotonic() - self._rested_s > REST_EVERY_S:
            self._rest(REST_S)
        self.let_pass()
        while True:
            ended = self._ended(piece_us)
            if ended is not None or self._hurry:
                return ended
            match advice(self._reading()):
                case Advice.GO_ON:
                    return None
                case Advice.SLOW_DOWN:
                    self._rest(max(REST_S, min(piece_us / 1e6, PAUSE_S)))
                    return self._ended(piece_us)
                case Advice.PAUSE:
                    self._rest(PAUSE_S)
                    self._paused_s += PAUSE_S
                case Advice.GIVE_UP:
                    return Reason.PRESSURE

    def let_pass(self) -> None:
        """Wait until an unforeseen sync is over: before the next piece, and after the last one before it is recorded.

        A commit of the record would share the sync's log and its I/Os (measured at 500 IOPS: 100 ms).
        """
        if not self._hurry and self._action.live and self._syncs.has_foreign_sync():
            self._rest(COMMIT_S)

    def _ended(self, piece_us: int) -> Reason | None:
        if self._stop():
            return Reason.INTERRUPTED
        return Reason.WINDOW_CLOSED if not self._hurry and self._closed(piece_us) else None

    def _closed(self, piece_us: int) -> bool:
        """Whether journald's next flush of the file itself comes before the piece is over."""
        action = self._action
        if not action.live:
            return False
        if action.not_after_us is not None and time.time_ns() // 1000 + piece_us > action.not_after_us:
            return True
        directory = action.target.directory
        self._flushes.note_rewrite(directory)
        self._flushes.look_again(directory)
        closes_us = self._flushes.get_closing_us(directory, self._margin_us)
        return closes_us is not None and time.monotonic_ns() // 1000 + piece_us > closes_us

    def _reading(self) -> Reading:
        now_s = time.monotonic()
        next_look_us = self._flushes.get_next_look_us(self._margin_us)
        if next_look_us is not None and now_s * 1e6 >= next_look_us:
            self._flushes.look_again()
        intake_us, doing, busy_percent = None, "", self._busy_percent
        self._busy_percent = None
        if now_s - self._entries_s >= ENTRIES_EVERY_S:
            self._entries_s, intake_us = now_s, self._intake.find_worst_us(self._place.actives)
        if now_s - self._maintenance_s >= MAINTENANCE_EVERY_S:
            self._maintenance_s, doing = now_s, find_maintenance(self._place.uuid)
        return Reading(
            self._config,
            flush_due=self._flushes.is_flush_due(self._margin_us),
            intake_delay_us=intake_us,
            others_busy_percent=busy_percent,
            maintenance=doing,
            paused_us=round(self._paused_s * 1e6),
        )

    def _rest(self, length_s: float) -> None:
        """Do nothing for a moment, and see whether the disk does nothing either."""
        uuid = self._place.uuid
        self._busy_percent = measure_busy_percent((uuid,), length_s).get(uuid)
        self._rested_s = time.monotonic()
