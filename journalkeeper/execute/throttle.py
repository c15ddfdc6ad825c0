# SPDX-License-Identifier: LGPL-2.1-or-later
"""The decision whether the next piece of an action may begin, from the load on journald and its disk.

Measuring must cost less than it saves: a few system calls for each piece, more only a few times a second.
policy/backpressure.py interprets the measurements.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final

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
"""After this much work comes a rest. During a rest, all activity of the disk is the work of other programs."""

ENTRIES_EVERY_S: Final = 0.2


@dataclass
class Throttle:
    """A callable that returns, before each piece of one action, the reason to end the action, or None.

    `actives` are the active files of all instances on the volume `uuid`. `stop` ends the action at once. So does a
    window that would close before the end of the piece, by the plan or by later looks. No piece may run within
    `margin_us` before a flush. With `hurry` (--now) only `stop` counts.
    """

    action: Action
    config: Config
    flushes: Flushes
    _: KW_ONLY
    uuid: str
    actives: tuple[str, ...]
    margin_us: int
    hurry: bool
    stop: Callable[[], bool]

    def __post_init__(self) -> None:
        self._syncs = Syncs(self.action.path)
        self._intake = Intake()
        self._busy_percent: int | None = None
        self._paused_s = 0.0
        self._rested_s = self._entries_s = time.monotonic()

    def __call__(self, piece_us: int) -> Reason | None:
        """Wait until the next piece may begin, and return None. Return the reason if the action must end instead.

        `piece_us` is the expected time of the piece in microseconds. In a hurry, only a stop ends the action, and
        nothing waits for the load.
        """
        if not self.hurry and time.monotonic() - self._rested_s > REST_EVERY_S:
            self._rest(REST_S)
        self.wait_for_sync()
        while True:
            ended = self._find_end(piece_us)
            if ended is not None or self.hurry:
                return ended
            match advice(self._measure()):
                case Advice.GO_ON:
                    return None
                case Advice.SLOW_DOWN:
                    self._rest(max(REST_S, min(piece_us / 1e6, PAUSE_S)))
                    return self._find_end(piece_us)
                case Advice.PAUSE:
                    self._rest(PAUSE_S)
                    self._paused_s += PAUSE_S
                case Advice.GIVE_UP:
                    return Reason.PRESSURE

    def wait_for_sync(self) -> None:
        """Pause for COMMIT_S if the active file was just synced, unless journald's timer caused the sync.

        Only an action on an active file pauses, and not in a hurry. Call this before each piece, and before an outcome
        is stored. A commit of the history would share the filesystem's log and the I/O with the sync (measured at 500
        IOPS: 100 ms).
        """
        if not self.hurry and self.action.live and self._syncs.has_foreign_sync():
            self._rest(COMMIT_S)

    def _find_end(self, piece_us: int) -> Reason | None:
        if self.stop():
            return Reason.INTERRUPTED
        return Reason.WINDOW_CLOSED if not self.hurry and self._is_closed(piece_us) else None

    def _is_closed(self, piece_us: int) -> bool:
        """Return whether the flush window of an active file closes before a piece of `piece_us` would end.

        The state of the flush timer is read again first. A time limit of the action (`not_after_us`) counts, too.
        Always False for an archive, which has no window.
        """
        action = self.action
        if not action.live:
            return False
        if action.not_after_us is not None and time.time_ns() // 1000 + piece_us > action.not_after_us:
            return True
        directory = action.target.directory
        self.flushes.note_rewrite(directory)
        self.flushes.look_again(directory)
        closes_us = self.flushes.get_closing_us(directory, self.margin_us)
        return closes_us is not None and time.monotonic_ns() // 1000 + piece_us > closes_us

    def _measure(self) -> Reading:
        now_s = time.monotonic()
        next_look_us = self.flushes.get_next_look_us(self.margin_us)
        if next_look_us is not None and now_s * 1e6 >= next_look_us:
            self.flushes.look_again()
        intake_us, busy_percent = None, self._busy_percent
        self._busy_percent = None
        if now_s - self._entries_s >= ENTRIES_EVERY_S:
            self._entries_s, intake_us = now_s, self._intake.find_worst_us(self.actives)
        return Reading(
            self.config,
            flush_due=self.flushes.is_flush_due(self.margin_us),
            intake_delay_us=intake_us,
            others_busy_percent=busy_percent,
            maintenance=find_maintenance(self.uuid),
            paused_us=round(self._paused_s * 1e6),
        )

    def _rest(self, length_s: float) -> None:
        """Sleep for `length_s` seconds, and store how busy other programs kept the disk meanwhile, in percent."""
        self._busy_percent = measure_busy_percent((self.uuid,), length_s).get(self.uuid)
        self._rested_s = time.monotonic()
