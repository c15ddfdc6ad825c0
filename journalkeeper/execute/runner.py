# SPDX-License-Identifier: LGPL-2.1-or-later
"""Execution of a plan: its actions, one after the other, and the removal of what a killed run left behind.

Each action gets a new Throttle, which decides before each piece. It considers the window, the load on the disk, and the
time of the last pieces.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from journalkeeper.btrfs import mtime_note
from journalkeeper.config import Config
from journalkeeper.execute.executor import Turn, execute
from journalkeeper.execute.pace import Pace, PieceTimes
from journalkeeper.execute.throttle import Throttle
from journalkeeper.journald import control, layout, opening
from journalkeeper.journald.names import classify, is_leftover
from journalkeeper.model import Action, Instance, JournalFile, Kind, Plan, Reason, Result
from journalkeeper.model.errors import InternalError, KeeperError, catch_errors
from journalkeeper.model.progress import Meter, Progress
from journalkeeper.model.run import Done
from journalkeeper.observe.flushes import Flushes
from journalkeeper.observe.observer import Seen


@dataclass
class Runner:
    """The work of one run. It ends between two pieces when `stop` returns True.

    `flushes` and `piece_times` record what was rewritten and how long it took. With `hurry` the work does not wait for
    flushes.
    """

    config: Config
    flushes: Flushes
    piece_times: PieceTimes
    hurry: bool
    stop: Callable[[], bool]

    def synchronize(self, instances: Sequence[Instance]) -> list[str]:
        """Ask the journald of each instance to sync, to learn when its next flush is due.

        Return an error sentence for each journald that did not do so.
        """
        troubles = []
        for instance in instances:
            if not self.stop():
                try:
                    self.flushes.learn(instance.directory, partial(control.synchronize, instance.namespace))
                except KeeperError as error:
                    troubles.append(str(error))
        return troubles

    def carry_out(
        self, chosen: Plan, seen: Seen, on_progress: Callable[[Progress], None]
    ) -> Iterator[tuple[Action, Done]]:
        """Execute the actions of `chosen` in order, and yield each with its outcome.

        After a stop, the other actions are skipped as interrupted. `seen` is the look from which the plan was made.
        """
        meter = Meter(chosen.actions, on_progress)
        for action in chosen.actions:
            if self.stop():
                yield action, Turn(action).make_done(Result.SKIPPED, Reason.INTERRUPTED, "stopped before this action")
                continue
            meter.begin(action)
            begun_bytes = meter.done_bytes
            done = catch_errors(partial(self._execute, action, seen, meter))
            if isinstance(done, InternalError):  # the file is as it was, or better
                written_bytes = meter.done_bytes - begun_bytes
                done = Turn(action).make_done(
                    Result.FAILED, Reason.INTERNAL_ERROR, done.detail, written_bytes=written_bytes
                )
            if action.live or not isinstance(action.target, JournalFile):
                self.flushes.note_rewrite(action.target.directory)
            yield action, done

    def _execute(self, action: Action, seen: Seen, meter: Meter) -> Done:
        """Execute one action, and ask the throttle before each piece."""
        throttle = self._build_throttle(action, seen)
        pace = Pace(
            most_bytes=self.config.defrag.chunk_bytes,
            piece_us=self._choose_piece_us(action),
            ask=throttle,
            tell=meter.add,
        )
        done = execute(action, pace)
        throttle.wait_for_sync()
        if action.live:
            self.piece_times.add(action.target.directory, pace.slowest_us)
        return done

    def _choose_piece_us(self, action: Action) -> int | None:
        """Return how long a piece should take, or None for no limit.

        Without hurry, a piece of an archive should end within the margin before journald's flush. Short pieces do no
        harm to compressed extents, which are short anyway. Without compression short pieces would make short extents,
        so they have no limit.
        """
        if action.live:
            return self.config.defrag.chunk_us
        return None if self.hurry or action.compress == "no" else self.config.window.margin_us

    def _build_throttle(self, action: Action, seen: Seen) -> Throttle:
        """Return the throttle for `action`, which watches the disks of its volume and the intake delay on its device.

        The intake delay is read from the active files of `seen` that a journald writes on the same device. Work stops
        before a flush by the configured margin plus the longest recent piece.
        """
        device = action.target.device
        actives = tuple(
            file.path
            for file in seen.files
            if file.kind is Kind.ACTIVE
            and file.problem is None
            and file.device == device
            and file.instance != layout.REMOTE
        )
        return Throttle(
            action,
            self.config,
            self.flushes,
            uuid=next(volume.uuid for volume in seen.volumes if volume.device == device),
            actives=actives,
            margin_us=self.config.window.margin_us + self.piece_times.get_longest_us(),
            hurry=self.hurry,
            stop=self.stop,
        )


def remove_leftovers(paths: Iterable[str]) -> list[str]:
    """Delete the temporary files among `paths`, and restore the mtimes that notes in journal files contain.

    Return a sentence about each path for the report. Call it only under the lock. A temporary file is a copy before its
    exchange, or an original after it. In both cases the journal's name leads to a whole file (execute.rewrite), so
    nothing is lost.

    Raises: ValueError for a path that is neither a temporary file of ours nor a journal file.
    """
    said: list[str] = []
    for path in paths:
        directory, _, name = path.rpartition("/")
        if not is_leftover(name) and classify(name) is None:
            raise ValueError(f"{path} is neither a temporary file of journalkeeper nor a journal file")
        try:
            with opening.open_directory(directory) as fd:
                said.append(f"{path}: {_remove_leftover(name, fd)}")
        except FileNotFoundError:
            continue
        except OSError as error:
            said.append(f"{path}: cannot remove what a killed run left behind: {os.strerror(error.errno or 0)}")
    return said


def _remove_leftover(name: str, directory: int) -> str:
    """Delete a temporary file, or apply the note in a journal file. Return what was done."""
    if is_leftover(name):
        os.unlink(name, dir_fd=directory)
        return "temporary file of a killed run removed"
    with opening.hold_open(name, directory) as fd:
        moved = mtime_note.apply(fd)
    return "modification time restored after a killed run" if moved else "note of a killed run removed"
