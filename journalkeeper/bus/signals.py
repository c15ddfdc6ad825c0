# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signals: events are sent at once, changed properties a few times a second.

A property is sent when it differs from what was sent last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dbus_fast import Message

from journalkeeper.bus import contract, names
from journalkeeper.bus.objects import Objects, Values, job_values
from journalkeeper.model import Outcome, Result, Verb
from journalkeeper.service.jobs import Changed, Event, JobAdded, JobRemoved, Jobs
from journalkeeper.service.snapshot import FileDone, count_reclaimed_bytes

COALESCE_S: Final = 0.25

REWRITES: Final = (Verb.DEFRAGMENT, Verb.COMPRESS, Verb.REWRITE)

SIGNALS: Final = {
    (interface.name, signal.name): signal.signature
    for interface in (contract.MANAGER, contract.PROPERTIES)
    for signal in interface.signals
}


class Signals:
    """Sends signals about changes of `objects` and `jobs` with `send`. `complain` logs an unexpected exception."""

    def __init__(
        self,
        objects: Objects,
        jobs: Jobs,
        *,
        send: Callable[[Message], object],
        complain: Callable[[str, Exception], None],
    ) -> None:
        self._objects = objects
        self._send = send
        self._complain = complain
        self._timer: asyncio.TimerHandle | None = None
        self._manager = objects.manager()
        self._jobs = {job.number: (job, job_values(job)) for job in jobs.queue}

    def close(self) -> None:
        """Stop sending signals."""
        if self._timer is not None:
            self._timer.cancel()

    async def follow(self, queue: asyncio.Queue[Event]) -> None:
        """Send a signal for each event in `queue`, until this task is canceled."""
        while True:
            event = await queue.get()
            with self._guard():
                match event:
                    case Changed():
                        # Send the changed properties soon, together with what else changes meanwhile.
                        if self._timer is None:
                            self._timer = asyncio.get_running_loop().call_later(COALESCE_S, self._tell)
                    case JobAdded(job):
                        self._jobs[job.number] = job, job_values(job)
                        self._say(names.MANAGER, "JobNew", [job.number, names.job_path(job.number)])
                    case JobRemoved(job, result):
                        if self._jobs.pop(job.number, None) is not None:
                            self._say(names.MANAGER, "JobRemoved", [job.number, names.job_path(job.number), result])
                    case FileDone(outcome, _):
                        self._say_outcome(outcome)

    def _say_outcome(self, outcome: Outcome) -> None:
        if outcome.result is Result.DONE and outcome.action in REWRITES:
            numbers = (outcome.extents_before, outcome.extents_after, outcome.bytes_written)
            body = [names.to_ascii(outcome.path), *numbers, count_reclaimed_bytes(outcome)]
            self._say(names.MANAGER, "FileDefragmented", body)

    def _tell(self) -> None:
        self._timer = None
        with self._guard():
            before, self._manager = self._manager, self._objects.manager()
            self._say_changes(names.MANAGER_PATH, names.MANAGER, before, self._manager)
            for number, (job, said) in self._jobs.items():
                values = job_values(job)
                self._jobs[number] = job, values
                self._say_changes(names.job_path(number), names.JOB, said, values)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Log an unexpected exception in the block, so that it costs only this signal."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged
            self._complain("a signal was not sent", error)

    def _say_changes(self, path: str, interface: str, before: Values, now: Values) -> None:
        changed = {name: value for name, value in now.items() if value != before.get(name)}
        if changed:
            self._say(names.PROPERTIES, "PropertiesChanged", [interface, changed, []], path)

    def _say(self, interface: str, member: str, body: list[Any], path: str = names.MANAGER_PATH) -> None:
        self._send(Message.new_signal(path, interface, member, SIGNALS[interface, member], body))
