# SPDX-License-Identifier: LGPL-2.1-or-later
"""Carrying a plan out: its orders, then its actions, one after the other.

Whoever is asked before a piece is asked anew for every action: which window is
open, who waits for this disk, what the last pieces took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from journalkeeper.config import Config
from journalkeeper.execute import leftovers, orders
from journalkeeper.execute.executor import execute, not_begun
from journalkeeper.execute.pace import Pace
from journalkeeper.execute.piece_times import PieceTimes
from journalkeeper.execute.throttle import Place, Throttle
from journalkeeper.journald import layout
from journalkeeper.model import Action, Instance, JournalFile, Kind, Order, Outcome, Plan, Reason, Result
from journalkeeper.model.internal_error import InternalError, guarded
from journalkeeper.model.progress import Meter, Progress
from journalkeeper.model.run import Done
from journalkeeper.observe.flushes import Flushes
from journalkeeper.observe.observer import Seen

LOOKS_AGAIN: Final = 3
FINISHED_S: Final = 0.3
"""journald's last touch of a file that it archived comes up to 250 ms after its last append."""


class Runner:
    """The work of one run, until `stop` says so between two pieces.

    `flushes` and `piece_times` learn what was done and how long it took; with `hurry` no flush is waited for.
    `again` plans anew for the file of an action: None if there is nothing to do, or not yet.
    """

    def __init__(
        self,
        config: Config,
        flushes: Flushes,
        piece_times: PieceTimes,
        *,
        hurry: bool,
        stop: Callable[[], bool],
        again: Callable[[Action], Action | None],
    ) -> None:
        self._again = again
        self._config = config
        self._flushes = flushes
        self._piece_times = piece_times
        self._hurry = hurry
        self._stop = stop

    def clean(self, paths: Sequence[str]) -> list[str]:
        """Remove what a killed run left behind; sentences about it."""
        return leftovers.remove(paths)

    def carry_out(
        self, chosen: Plan, seen: Seen, on_progress: Callable[[Progress], None]
    ) -> Iterator[tuple[JournalFile | Instance, Done]]:
        """Do what was chosen after `seen`; each outcome with the file or the directory that it is about."""
        yield from self._obey(chosen.orders)
        yield from self._do(chosen.actions, seen, on_progress)

    def _obey(self, given: tuple[Order, ...]) -> Iterator[tuple[Instance, Done]]:
        """Carry out one order after the other; with the directory that each is about."""
        for order in given:
            done = guarded(partial(orders.not_begun if self._stop() else orders.carry_out, order))
            if isinstance(done, InternalError):
                done = Done(_internal_error(order, done, 0), order.instance.inode, 0, 0)
            self._flushes.moved_by_us(order.instance.directory)
            yield order.instance, done

    def _do(
        self, actions: tuple[Action, ...], seen: Seen, on_progress: Callable[[Progress], None]
    ) -> Iterator[tuple[JournalFile, Done]]:
        """Do one action after the other, each with its file; after a stop the rest are interrupted."""
        meter = Meter(actions, on_progress)
        for number, action in enumerate(actions, start=1):
            if self._stop():
                yield action.file, not_begun(action)
                continue
            meter.begin(number, action)
            begun_bytes = meter.done_bytes
            done = guarded(partial(self._one, action, seen, meter))
            if isinstance(done, InternalError):
                file = action.file
                outcome = _internal_error(action, done, meter.done_bytes - begun_bytes)
                done = Done(outcome, file.inode, file.size_bytes, file.mtime_ns)
            if action.file.kind is Kind.ACTIVE:
                self._flushes.moved_by_us(action.path.rpartition("/")[0])
            yield action.file, done

    def _one(self, action: Action, seen: Seen, meter: Meter) -> Done:
        """One file's turn; where journald is about to finish the file and nobody waits for the next run, some more."""
        done = self._execute(action, seen, meter)
        for _ in range(LOOKS_AGAIN):
            if not self._just_archived(action, done):
                break
            time.sleep(FINISHED_S)
            fresh = self._again(action)
            if fresh is not None:
                done = self._execute(fresh, seen, meter)
        return done

    def _just_archived(self, action: Action, done: Done) -> bool:
        """Whether journald was about to finish the file, and who asked does not wait for the next run."""
        changed = action.file.kind is not Kind.ACTIVE and done.outcome.reason is Reason.CHANGED
        return changed and self._hurry and not self._stop()

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
        if action.file.kind is Kind.ACTIVE:
            self._piece_times.add(action.path.rpartition("/")[0], pace.slowest_us)
        return done

    def _piece_us(self, action: Action) -> int | None:
        """How long a piece should take. Of an archive: to be over when journald's flush comes, unless in a hurry.

        Compressed extents are short anyway; where nothing is compressed short pieces make short extents.
        """
        if action.file.kind is Kind.ACTIVE:
            return self._config.defrag.chunk_us
        return None if self._hurry or action.compress == "no" else self._config.window.margin_us

    def _throttle(self, action: Action, seen: Seen) -> Throttle:
        """Who is asked before each piece of `action`."""
        ours = [one for one in seen.instances if one.device == action.file.device and one.name != layout.REMOTE]
        directories = {one.directory for one in ours}
        actives = tuple(
            file.path
            for file in seen.files
            if file.kind is Kind.ACTIVE and file.problem is None and file.path.rpartition("/")[0] in directories
        )
        uuid = next(volume.uuid for volume in seen.volumes if volume.device == action.file.device)
        margin_us = self._config.window.margin_us + self._piece_times.longest_us()
        place = Place(uuid, actives)
        return Throttle(
            action, self._config, self._flushes, place, margin_us=margin_us, hurry=self._hurry, stop=self._stop
        )


def _internal_error(action: Action | Order, error: InternalError, written_bytes: int) -> Outcome:
    """What becomes of a turn that a mistake of ours ended: the file is as it was, or better."""
    count = action.extents_before
    words = (action.path, action.action, Result.FAILED, Reason.INTERNAL_ERROR)
    return Outcome(*words, count, count, None, None, written_bytes, 0.0, error.detail)
