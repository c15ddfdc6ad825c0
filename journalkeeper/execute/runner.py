# SPDX-License-Identifier: LGPL-2.1-or-later
"""Execution of a plan: its actions, one after the other, and the removal of what a killed run left behind.

Each action gets a new Throttle, which decides before each piece. It considers the window, the load on journald and its
disk, and the time of the last pieces. Measuring must cost less than it saves: a few system calls for each piece, more
only a few times a second. policy/window.py interprets the measurements.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from journalkeeper.btrfs.maintenance import find_maintenance
from journalkeeper.config import Config
from journalkeeper.execute.executor import Turn, execute
from journalkeeper.execute.pace import Pace, SlowestPiece
from journalkeeper.journald import control, opening
from journalkeeper.journald.layout import is_leftover
from journalkeeper.model import Action, Instance, JournalFile, Plan, Reason, Result
from journalkeeper.model.errors import InternalError, catch_errors, describe_errno, run_bookkeeping
from journalkeeper.model.run import Done, Meter, Progress
from journalkeeper.observe.flushes import Flushes
from journalkeeper.observe.load import IntakeMeter, list_journald_files, measure_busy_percent
from journalkeeper.observe.observer import Seen
from journalkeeper.policy.window import Advice, Reading, advise, compose_margin_us

PAUSE_S: Final = 0.25
REST_S: Final = 0.05

REST_EVERY_S: Final = 1.0
"""After this much work comes a rest. During a rest, all activity of the disk is the work of other programs."""

ENTRIES_EVERY_S: Final = 0.2


@dataclass
class Runner:
    """The work of one run, which ends between two pieces when `stop` returns True.

    `flushes` and `slowest` note the work on active files and directories. With `hurry` no work waits for flushes.
    """

    config: Config
    flushes: Flushes
    slowest: SlowestPiece
    hurry: bool
    stop: Callable[[], bool]

    def synchronize(self, instances: Sequence[Instance]) -> list[str]:
        """Ask the journald of each instance for a sync, from which `flushes` learns its next flush: seconds each.

        Return an error sentence for each journald that failed to answer or refused. After a stop ask no further one.
        """
        troubles: list[str] = []
        for instance in instances:
            if not self.stop():
                ask = partial(control.synchronize, instance.namespace)
                troubles += run_bookkeeping(partial(self.flushes.learn, instance.directory, ask))
        return troubles

    def carry_out(
        self, chosen: Plan, seen: Seen, on_progress: Callable[[Progress], None]
    ) -> Iterator[tuple[Action, Done]]:
        """Execute the actions of `chosen`, planned from the look `seen`, and yield each with its outcome until a stop.

        A path that is gone is skipped as VANISHED. An unforeseen exception fails an action with INTERNAL_ERROR.
        """
        meter = Meter(chosen.actions, on_progress)
        for action in chosen.actions:
            if self.stop():
                return
            meter.begin(action)
            if not os.path.lexists(action.path):
                yield action, Turn(action).make_done(Result.SKIPPED, Reason.VANISHED, "the file is gone")
                continue
            begun_bytes = meter.now.done_bytes
            done = catch_errors(partial(self._execute_with_throttle, action, seen, meter))
            if isinstance(done, InternalError):  # the file is as it was, or better
                written_bytes = meter.now.done_bytes - begun_bytes
                done = Turn(action).make_done(
                    Result.FAILED, Reason.INTERNAL_ERROR, done.detail, written_bytes=written_bytes
                )
            if action.is_on_active_file or not isinstance(action.target, JournalFile):
                self.flushes.note_rewrite(action.target.directory)
            yield action, done

    def _execute_with_throttle(self, action: Action, seen: Seen, meter: Meter) -> Done:
        """Execute one action with a new throttle, and note the slowest piece of an active file."""
        pace = Pace(
            most_bytes=self.config.defrag.chunk_bytes,
            piece_us=self._choose_piece_us(action),
            ask=Throttle(self, action, seen),
            tell=meter.add,
        )
        done = execute(action, pace)
        if action.is_on_active_file:
            self.slowest.add(pace.slowest_us)
        return done

    def _choose_piece_us(self, action: Action) -> int | None:
        """Return chunk_us for an active file; for others the margin, or None (no limit) in a hurry or uncompressed."""
        if action.is_on_active_file:
            return self.config.defrag.chunk_us
        # An uncompressed extent can be as long as its piece.
        return None if self.hurry or action.compress == "no" else self.config.window.margin_us


class Throttle:
    """A callable that returns, before each piece of one action, the reason to end the action, or None.

    In a hurry (--now) only a stop counts. `seen` must have the action's volume. Its active files that a journald writes
    on the same device show the intake delay. The constructor fixes the margin, and measures nothing yet.
    """

    def __init__(self, runner: Runner, action: Action, seen: Seen) -> None:
        device = action.target.device
        self._runner = runner
        self._action = action
        self._uuid = next(volume.uuid for volume in seen.volumes if volume.device == device)
        self._actives = list_journald_files(file for file in seen.files if file.device == device)
        self._margin_us = compose_margin_us(runner.config.window.margin_us, runner.slowest.get_us())
        self._intake = IntakeMeter()
        self._busy_percent: int | None = None
        self._paused_s = 0.0
        self._rested_s = self._entries_s = time.monotonic()

    def __call__(self, piece_us: int) -> Reason | None:
        """Wait until the next piece, of `piece_us` microseconds, may begin, or return a reason to end the action.

        The reason is INTERRUPTED, WINDOW_CLOSED or PRESSURE. Except in a hurry, sleep REST_S after each REST_EVERY_S,
        and as `advise` demands. The sleeps also measure the load of other programs.
        """
        if not self._runner.hurry and time.monotonic() - self._rested_s > REST_EVERY_S:
            self._rest(REST_S)
        while True:
            ended = self._find_end(piece_us)
            if ended is not None or self._runner.hurry:
                return ended
            match advise(self._read_load(), self._runner.config.window):
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

    def _find_end(self, piece_us: int) -> Reason | None:
        """Return INTERRUPTED after a stop, WINDOW_CLOSED if a window closes too soon (not in a hurry), else None."""
        if self._runner.stop():
            return Reason.INTERRUPTED
        return Reason.WINDOW_CLOSED if not self._runner.hurry and self._look_if_window_closes(piece_us) else None

    def _look_if_window_closes(self, piece_us: int) -> bool:
        """Note an active file's rewrite, look at its timer, and return whether its window closes within `piece_us`.

        Return False for other files, without a timer and if nothing is unsynced, True if the flush is unknown.
        """
        if not self._action.is_on_active_file:
            return False
        directory = self._action.target.directory
        # This comes first, so that the look takes no block that this rewrite moved for a flush.
        self._runner.flushes.note_rewrite(directory)
        self._runner.flushes.look_again(directory)
        closes_us = self._runner.flushes.get_closing_us(directory, self._margin_us)
        return closes_us is not None and time.monotonic_ns() // 1000 + piece_us > closes_us

    def _read_load(self) -> Reading:
        """Return all of a Reading as of now, but a rest's busy time once, a delay at most each ENTRIES_EVERY_S."""
        flush_due = self._is_flush_due()
        now_s, intake_us = time.monotonic(), None
        busy_percent, self._busy_percent = self._busy_percent, None
        if now_s - self._entries_s >= ENTRIES_EVERY_S:
            self._entries_s, intake_us = now_s, self._intake.add_new_delays(self._actives)
        return Reading(
            flush_due=flush_due,
            intake_delay_us=intake_us,
            others_busy_percent=busy_percent,
            maintenance=find_maintenance(self._uuid),
            paused_us=round(self._paused_s * 1e6),
        )

    def _is_flush_due(self) -> bool:
        """Return whether any flush is near or under way. If it is time for that, look at the flush timers first."""
        next_look_us = self._runner.flushes.get_next_look_us(self._margin_us)
        if next_look_us is not None and time.monotonic_ns() // 1000 >= next_look_us:
            self._runner.flushes.look_again()
        return self._runner.flushes.is_flush_due(self._margin_us)

    def _rest(self, length_s: float) -> None:
        """Sleep in full. Store how busy other programs kept the disk (None if unknown), and when this rest ended."""
        self._busy_percent = measure_busy_percent((self._uuid,), length_s).get(self._uuid)
        self._rested_s = time.monotonic()


def remove_leftovers(paths: Iterable[str]) -> list[str]:
    """Delete temporary files of a killed run. Hold the lock.

    Return one sentence per existing path for the report, also for a failure. A temporary file is a copy before its
    exchange, or an original after it: the journal's name leads to a whole file (execute.rewrite), so nothing is lost.

    Raises: ValueError at the first path that is no temporary file of ours.
    """
    said: list[str] = []
    for path in paths:
        directory, _, name = path.rpartition("/")
        if not is_leftover(name):
            raise ValueError(f"{path} is no temporary file of journalkeeper")
        try:
            with opening.open_directory(directory) as fd:
                os.unlink(name, dir_fd=fd)
            said.append(f"{path}: temporary file of a killed run removed")
        except FileNotFoundError:
            continue
        except OSError as error:
            said.append(f"{path}: cannot remove what a killed run left behind: {describe_errno(error.errno)}")
    return said
