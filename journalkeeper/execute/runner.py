# SPDX-License-Identifier: LGPL-2.1-or-later
"""Carrying a plan out: its actions, one after the other.

Each action gets a new Throttle, which is asked before each piece: which window is
open, who waits for this disk, what the last pieces took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from journalkeeper.config import Config
from journalkeeper.execute import leftovers
from journalkeeper.execute.executor import broken_off, execute, not_begun
from journalkeeper.execute.pace import Pace
from journalkeeper.execute.piece_times import PieceTimes
from journalkeeper.execute.throttle import Place, Throttle
from journalkeeper.journald import control, layout
from journalkeeper.model import Action, Instance, JournalFile, Kind, Plan
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.internal_error import InternalError, catch_errors
from journalkeeper.model.progress import Meter, Progress
from journalkeeper.model.run import Done
from journalkeeper.observe.flushes import Flushes
from journalkeeper.observe.observer import Seen


class Runner:
    """The work of one run, until `stop` says so between two pieces.

    `flushes` and `piece_times` learn what was done and how long it took; with `hurry` no flush is waited for.
    """

    def __init__(
        self,
        config: Config,
        flushes: Flushes,
        piece_times: PieceTimes,
        *,
        hurry: bool,
        stop: Callable[[], bool],
    ) -> None:
        self._config = config
        self._flushes = flushes
        self._piece_times = piece_times
        self._hurry = hurry
        self._stop = stop

    def clean(self, paths: Sequence[str]) -> list[str]:
        """Remove what a killed run left behind; sentences about it."""
        return leftovers.remove(paths)

    def synchronize(self, instances: Sequence[Instance]) -> list[str]:
        """Have these journalds sync, from which their timers are known; sentences about those that do not."""
        troubles = []
        for instance in instances:
            if not self._stop():
                try:
                    self._flushes.learn(instance.directory, partial(control.synchronize, instance.namespace))
                except KeeperError as error:
                    troubles.append(str(error))
        return troubles

    def carry_out(
        self, chosen: Plan, seen: Seen, on_progress: Callable[[Progress], None]
    ) -> Iterator[tuple[Action, Done]]:
        """Do what was chosen after `seen`, one action after the other; after a stop the rest are interrupted."""
        meter = Meter(chosen.actions, on_progress)
        for action in chosen.actions:
            if self._stop():
                yield action, not_begun(action)
                continue
            meter.begin(action)
            begun_bytes = meter.done_bytes
            done = catch_errors(partial(self._execute, action, seen, meter))
            if isinstance(done, InternalError):
                done = broken_off(action, done, meter.done_bytes - begun_bytes)
            if action.live or not isinstance(action.target, JournalFile):
                self._flushes.note_rewrite(action.target.directory)
            yield action, done

    def _execute(self, action: Action, seen: Seen, meter: Meter) -> Done:
        """Do one action, asking for leave before each piece."""
        throttle = self._throttle(action, seen)
        pace = Pace(
            most_bytes=self._config.defrag.chunk_bytes,
            piece_us=self._piece_us(action),
            ask=throttle,
            tell=meter.add,
        )
        done = execute(action, pace)
        throttle.let_pass()
        if action.live:
            self._piece_times.add(action.target.directory, pace.slowest_us)
        return done

    def _piece_us(self, action: Action) -> int | None:
        """How long a piece should take. Of an archive: to be over when journald's flush comes, unless in a hurry.

        Compressed extents are short anyway; where nothing is compressed short pieces make short extents.
        """
        if action.live:
            return self._config.defrag.chunk_us
        return None if self._hurry or action.compress == "no" else self._config.window.margin_us

    def _throttle(self, action: Action, seen: Seen) -> Throttle:
        """Who is asked before each piece of `action`."""
        ours = [one for one in seen.instances if one.device == action.target.device and one.name != layout.REMOTE]
        directories = {one.directory for one in ours}
        actives = tuple(
            file.path
            for file in seen.files
            if file.kind is Kind.ACTIVE and file.problem is None and file.directory in directories
        )
        uuid = next(volume.uuid for volume in seen.volumes if volume.device == action.target.device)
        margin_us = self._config.window.margin_us + self._piece_times.longest_us()
        place = Place(uuid, actives)
        return Throttle(
            action, self._config, self._flushes, place, margin_us=margin_us, hurry=self._hurry, stop=self._stop
        )
