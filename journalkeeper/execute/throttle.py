# SPDX-License-Identifier: LGPL-2.1-or-later
"""How journald and its disk are doing, asked before a run and before each piece of it.

The one rule: measuring must cost less than what it saves: a few system calls a piece, more
only a few times a second. What it means is for policy/backpressure.py.

The intake delay comes from journald's newest entries: those from /dev/log and the native
socket bear the sender's time beside journald's own, so what a stall did is known when it ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from journalkeeper.btrfs import fiemap, writeback
from journalkeeper.btrfs.maintenance import disks, maintenance
from journalkeeper.config import Config
from journalkeeper.journald import header, opening
from journalkeeper.model import Action, Kind, Reason, State
from journalkeeper.observe.flushes import COMMIT_S, Flushes
from journalkeeper.policy.backpressure import Advice, Reading, advice

if TYPE_CHECKING:
    from systemd.journal import Reader

PAUSE_S: Final = 0.25
REST_S: Final = 0.05
LOOK_S: Final = 0.25
"""How long to watch the disks before a run: the kernel counts their time in ticks of 1 to 10 ms."""

REST_EVERY_S: Final = 1.0
"""A rest after each second of work, in which whatever the disk does is somebody else's."""

ENTRIES: Final = 16
"""How many of the newest entries are read at a time, some 0.1 ms each."""

ENTRIES_EVERY_S: Final = 0.2
MAINTENANCE_EVERY_S: Final = 5.0


SYNC_US: Final = 1_000
"""Waiting for the write-back of a file of which nothing is being written takes some 10 us."""


class Syncs:
    """Whether somebody syncs the active file at `path`, as journald does at once for a message of priority crit.

    Ask between two pieces: what we rewrote is on the disk then, so pages that are being written
    are somebody else's, and so is a first block that lies elsewhere, unless by the first piece.
    The sync that an append to an OFFLINE file begins with writes nothing, but leaves it ONLINE.
    """

    def __init__(self, path: str) -> None:
        self._directory, _, self._name = path.rpartition("/")
        self._blocks: list[int | None] = []
        self._state = State.UNKNOWN

    def seen(self) -> bool:
        """Whether there was one since this was asked last, or is; then its data is written, and a commit may follow."""
        try:
            with opening.directory(self._directory) as dir_fd, opening.opened(self._name, dir_fd) as fd:
                began_ns = time.monotonic_ns()
                writeback.wait_writeback(fd, 0, 0)
                waited_us = (time.monotonic_ns() - began_ns) // 1000
                block, state = fiemap.physical(fd, 0), header.state(fd)
        except OSError:
            return False  # rotated away: the piece itself will say so
        appended = (self._state, state) == (State.OFFLINE, State.ONLINE)
        moved = len(self._blocks) > 1 and self._blocks[-1] != block
        self._state, self._blocks = state, [*self._blocks[-1:], block]
        return waited_us > SYNC_US or appended or moved


def prepare() -> None:
    """Import what measuring takes, for who stays: its first window is not for reading modules from a slow disk,
    and what it holds after ten minutes is what it holds for good (1.5 MiB came with the first piece)."""
    import psutil  # noqa: F401, PLC0415 - not for a command, which may have nothing to do
    import systemd.journal  # noqa: F401, PLC0415


class Intake:
    """How long messages waited for journald, by the newest `entries` of its active files `paths`."""

    def __init__(self, paths: Iterable[str], entries: int = ENTRIES) -> None:
        self._paths = list(paths)
        self._entries = entries
        self._inodes: list[int] = []
        self._reader: Reader | None = None
        self._cursor = ""

    def close(self) -> None:
        """Let go of the files."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def worst_us(self) -> int | None:
        """The longest wait of the entries that came since the last call, of at most `entries`; None without any."""
        return max(self.waits_us(), default=None)

    def waits_us(self) -> list[int]:
        """The waits of the entries that came since the last call, of at most `entries`."""
        if not self._paths:
            return []
        try:
            entries = self._newest(self._opened())
        except OSError:
            # Rotated away, or being written just now: the next call opens what there is then.
            self.close()
            return []
        first, self._cursor = not self._cursor, entries[0]["__CURSOR"] if entries else self._cursor
        waits = [
            entry["__REALTIME_TIMESTAMP"] - entry["_SOURCE_REALTIME_TIMESTAMP"]
            for entry in entries
            if "_SOURCE_REALTIME_TIMESTAMP" in entry
        ]
        # What came before the first call was not our doing.
        return [] if first else [wait for wait in waits if wait >= 0]

    def _newest(self, reader: Reader) -> list[dict[str, Any]]:
        """The entries behind our cursor, the newest first."""
        entries: list[dict[str, Any]] = []
        reader.seek_tail()
        while len(entries) < self._entries:
            entry = reader.get_previous()
            if not entry or entry["__CURSOR"] == self._cursor:
                break
            entries.append(entry)
        return entries

    def _opened(self) -> Reader:
        """A reader of what the names lead to now: after a rotation that is another file."""
        inodes = [os.stat(path).st_ino for path in self._paths]
        if inodes != self._inodes:
            self.close()
            self._inodes = inodes
        if self._reader is None:
            from systemd.journal import Reader  # noqa: PLC0415 - only where work is done

            times = ("_SOURCE_REALTIME_TIMESTAMP", "__REALTIME_TIMESTAMP")
            self._reader = Reader(files=self._paths, converters=dict.fromkeys(times, int))
        return self._reader


def others_busy_percent(uuids: Iterable[str], length_s: float) -> dict[str, int]:
    """Do nothing for so long: the share of that time in which the busiest disk of each volume was at work.

    What we did before was written back by then, so it is the work of others. A volume of which
    nobody can tell is left out.
    """
    names = {uuid: disks(uuid) for uuid in uuids}
    began_s, before = time.monotonic(), _busy_ms()
    time.sleep(length_s)
    after, length_ms = _busy_ms(), (time.monotonic() - began_s) * 1000
    shares = {
        name: min(100, round(100 * (after[name] - ms) / length_ms)) for name, ms in before.items() if name in after
    }
    known = {uuid: [shares[name] for name in found if name in shares] for uuid, found in names.items()}
    return {uuid: max(found) for uuid, found in known.items() if found}


def _busy_ms() -> dict[str, int]:
    """For how long each block device has been busy since the machine started."""
    from psutil import disk_io_counters  # noqa: PLC0415 - only where work is done

    return {name: one.busy_time for name, one in disk_io_counters(perdisk=True, nowrap=False).items()}


class Place(NamedTuple):
    """Where work goes on: the volume, and the active files of all instances there."""

    uuid: str
    actives: tuple[str, ...]


class Attention:
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
        self._intake = Intake(place.actives)
        self._busy_percent: int | None = None
        self._paused_s = 0.0
        self._rested_s = self._entries_s = self._maintenance_s = time.monotonic()

    def close(self) -> None:
        """Let go of the journal's files."""
        self._intake.close()

    def __call__(self, piece_us: int) -> Reason | None:
        """Why the next piece, which will take `piece_us`, must not be begun; it may first wait a while."""
        if not self._hurry and time.monotonic() - self._rested_s > REST_EVERY_S:
            self._rest(REST_S)
        self.let_pass()
        while True:
            ended = self._ended(piece_us)
            if ended is not None or self._hurry:
                return ended
            match advice(self._reading(), self._config):
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
        if not self._hurry and self._action.file.kind is Kind.ACTIVE and self._syncs.seen():
            self._rest(COMMIT_S)

    def _ended(self, piece_us: int) -> Reason | None:
        if self._stop():
            return Reason.INTERRUPTED
        return Reason.WINDOW_CLOSED if not self._hurry and self._closed(piece_us) else None

    def _closed(self, piece_us: int) -> bool:
        """Whether journald's next flush of the file itself comes before the piece is over."""
        action = self._action
        if action.file.kind is not Kind.ACTIVE:
            return False
        if action.not_after_us is not None and time.time_ns() // 1000 + piece_us > action.not_after_us:
            return True
        directory = action.path.rpartition("/")[0]
        self._flushes.moved_by_us(directory)
        self._flushes.look_again(directory)
        closes_us = self._flushes.closes_us(directory, self._margin_us)
        return closes_us is not None and time.monotonic_ns() // 1000 + piece_us > closes_us

    def _reading(self) -> Reading:
        now_s = time.monotonic()
        next_look_us = self._flushes.next_look_us(self._margin_us)
        if next_look_us is not None and now_s * 1e6 >= next_look_us:
            self._flushes.look_again()
        intake_us, doing, busy_percent = None, "", self._busy_percent
        self._busy_percent = None
        if now_s - self._entries_s >= ENTRIES_EVERY_S:
            self._entries_s, intake_us = now_s, self._intake.worst_us()
        if now_s - self._maintenance_s >= MAINTENANCE_EVERY_S:
            self._maintenance_s, doing = now_s, maintenance(self._place.uuid)
        return Reading(
            flush_due=self._flushes.due(self._margin_us),
            intake_delay_us=intake_us,
            others_busy_percent=busy_percent,
            maintenance=doing,
            paused_us=round(self._paused_s * 1e6),
        )

    def _rest(self, length_s: float) -> None:
        """Do nothing for a moment, and see whether the disk does nothing either."""
        uuid = self._place.uuid
        self._busy_percent = others_busy_percent((uuid,), length_s).get(uuid)
        self._rested_s = time.monotonic()
