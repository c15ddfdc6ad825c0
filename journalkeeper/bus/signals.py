# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signals: events are sent at once, changed properties a few times a second.

A property is sent when it differs from what was sent last, whatever happened in between.
The files that the first look finds are sent only where somebody has asked for files before: all others get
them when they ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dbus_fast import Message, MessageType

from journalkeeper.bus import contract, names, properties
from journalkeeper.bus.objects import Objects, Values, job_values, variants
from journalkeeper.model import Outcome, Result, Verb
from journalkeeper.service.events import Changed, Event, FileDone, JobAdded, JobRemoved
from journalkeeper.service.job import Job
from journalkeeper.service.jobs import Jobs
from journalkeeper.service.snapshot import Findings, Snapshot, reclaimed_bytes

COALESCE_S: Final = 0.25
AT_ONCE: Final = 100
"""Files whose signals are sent in one turn of the event loop."""

REWRITES: Final = (Verb.DEFRAGMENT, Verb.COMPRESS, Verb.REWRITE)

SIGNALS: Final = {
    (interface.name, signal.name): signal.signature
    for interface in (contract.MANAGER, contract.PROPERTIES, contract.OBJECT_MANAGER)
    for signal in interface.signals
}


def _everything(_: str) -> bool:
    return True


class Signals:
    """Sends by `send` how `snapshot` and the jobs of `objects` change from now on.

    `drained` waits until all is sent; `complain` logs unexpected exceptions. Every client receives it: of a user's
    journal only that something changed.
    """

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        objects: Objects,
        jobs: Jobs,
        *,
        send: Callable[[Message], object],
        drained: Callable[[], Awaitable[None]],
        complain: Callable[[str, Exception], None],
    ) -> None:
        self._snapshot = snapshot
        self._objects = objects
        self._send = send
        self._drained = drained
        self._complain = complain
        self._stale = False
        self._task: asyncio.Task[None] | None = None
        self._manager = objects.manager()
        self._findings = snapshot().findings
        self._jobs = {job.number: (job, job_values(job)) for job in jobs.queue}

    def close(self) -> None:
        """Nobody listens any more."""
        if self._task is not None:
            self._task.cancel()

    async def follow(self, queue: asyncio.Queue[Event]) -> None:
        """Send what happens, as `queue` has it, until this is canceled."""
        while True:
            match await queue.get():
                case Changed():
                    self.changed()
                case JobAdded(job):
                    self.job_new(job)
                case JobRemoved(job, result):
                    self.job_removed(job, result)
                case FileDone(outcome, _):
                    self.outcome(outcome)

    def changed(self) -> None:
        """Something is different: said together with what else becomes different meanwhile."""
        self._objects.changed()
        if self._findings is None and not self._objects.awaited:
            self._findings = self._snapshot().findings  # at once: who asks next gets these, and is told what differs
        self._stale = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._tell())

    def job_new(self, job: Job) -> None:
        """A job was queued."""
        with self._guard():
            values = job_values(job)
            self._jobs[job.number] = job, values
            path = names.job_path(job.number)
            self._say(names.OBJECT_MANAGER, "InterfacesAdded", [path, {names.JOB: values}])
            self._say(names.MANAGER, "JobNew", [job.number, path])

    def job_removed(self, job: Job, result: str) -> None:
        """A job is over."""
        with self._guard():
            if self._jobs.pop(job.number, None) is not None:
                path = names.job_path(job.number)
                self._say(names.MANAGER, "JobRemoved", [job.number, path, result])
                self._say(names.OBJECT_MANAGER, "InterfacesRemoved", [path, [names.JOB]])

    def outcome(self, outcome: Outcome) -> None:
        """Something was done to a file."""
        with self._guard():
            if outcome.result is Result.DONE and outcome.action in REWRITES:
                numbers = (outcome.extents_before, outcome.extents_after, outcome.bytes_written)
                body = [names.shown(outcome.path), *numbers, reclaimed_bytes(outcome)]
                self._say(names.MANAGER, "FileDefragmented", body)

    async def _tell(self) -> None:
        while self._stale:
            await asyncio.sleep(COALESCE_S)
            self._stale = False
            with self._guard():
                before, self._manager = self._manager, self._objects.manager()
                self._differ(names.MANAGER_PATH, names.MANAGER, before, self._manager)
            for number, (job, said) in list(self._jobs.items()):
                with self._guard():
                    values = job_values(job)
                    self._jobs[number] = job, values
                    self._differ(names.job_path(number), names.JOB, said, values)
            old, self._findings = self._findings, self._snapshot().findings
            if self._findings is not None and self._findings is not old:
                for number, _ in enumerate(self._files(old, self._findings), 1):
                    if number % AT_ONCE == 0:
                        await self._drained()

    def _files(self, old: Findings | None, new: Findings) -> Iterator[None]:
        """Say what differs between two looks, step by step."""
        for path in new.files if old is None else new.perhaps_others(old):
            before, now = None if old is None else old.file(path), new.file(path)
            if now == before:
                continue
            with self._guard():
                if now is None:
                    self._say(names.OBJECT_MANAGER, "InterfacesRemoved", [names.file_path(path), [names.FILE]])
                elif before is None:
                    values = variants(contract.FILE, properties.file(*now))
                    self._say(names.OBJECT_MANAGER, "InterfacesAdded", [names.file_path(path), {names.FILE: values}])
                else:
                    was = variants(contract.FILE, properties.file(*before, _everything))
                    is_now = variants(contract.FILE, properties.file(*now, _everything))
                    hidden = () if properties.anybody(now[0].owner) else tuple(properties.PRIVATE)
                    self._differ(names.file_path(path), names.FILE, was, is_now, hidden)
            yield

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Have a mistake of ours cost no more than this one thing its news."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged
            self._complain("a signal was not sent", error)

    def _differ(self, path: str, interface: str, before: Values, now: Values, hidden: tuple[str, ...] = ()) -> None:
        """Say which values are others now; of the `hidden` ones only their names."""
        changed = {name: value for name, value in now.items() if value != before.get(name)}
        invalidated = [name for name in hidden if changed.pop(name, None) is not None]
        if changed or invalidated:
            self._say(names.PROPERTIES, "PropertiesChanged", [interface, changed, invalidated], path)

    def _say(self, interface: str, member: str, body: list[Any], path: str = names.MANAGER_PATH) -> None:
        self._send(
            Message(
                message_type=MessageType.SIGNAL,
                path=path,
                interface=interface,
                member=member,
                signature=SIGNALS[interface, member],
                body=body,
            )
        )
