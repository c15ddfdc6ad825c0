# SPDX-License-Identifier: LGPL-2.1-or-later
"""Signals: events are sent at once, changed properties a few times a second.

A property is sent when it differs from what was sent last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from jeepney import Message

from journalkeeper.bus import contract, names
from journalkeeper.bus.connection import make_signal
from journalkeeper.bus.contract import Signal, Values, join_signatures
from journalkeeper.bus.objects import Objects
from journalkeeper.bus.values import job_values
from journalkeeper.model import Result, Verb
from journalkeeper.service.jobs import Changed, JobAdded, JobRemoved, Notification
from journalkeeper.service.snapshot import FileDone

COALESCE_S: Final = 0.25

REWRITES: Final = (Verb.DEFRAGMENT, Verb.COMPRESS, Verb.REWRITE)


class Signals:
    """Sends signals about changes of `objects` with `send`. `complain` logs an unexpected exception."""

    def __init__(
        self, objects: Objects, send: Callable[[Message], object], complain: Callable[[str, Exception], None]
    ) -> None:
        self._objects = objects
        self._send = send
        self._complain = complain
        self._timer: asyncio.TimerHandle | None = None
        self._sent = self._read()

    def _read(self) -> dict[str, Values]:
        return {path: values() for path, (_, values) in self._objects.tree().items()}

    def close(self) -> None:
        """Cancel the signals about changed properties that were not sent yet."""
        if self._timer is not None:
            self._timer.cancel()

    def follow(self, notification: Notification) -> None:
        """Send the signal for a notification of the service. Changed properties are sent together, COALESCE_S later."""
        with self._guard():
            match notification:
                case Changed():
                    if self._timer is None:
                        self._timer = asyncio.get_running_loop().call_later(COALESCE_S, self._tell)
                case JobAdded(job):
                    path = names.job_path(job.number)
                    self._sent[path] = job_values(job)
                    self._say(contract.JOB_NEW, job.number, path)
                case JobRemoved(job, result):
                    self._say(contract.JOB_REMOVED, job.number, names.job_path(job.number), result)
                case FileDone(outcome, _) if outcome.result is Result.DONE and outcome.action in REWRITES:
                    numbers = (outcome.extents_before, outcome.extents_after, outcome.bytes_written)
                    path, reclaimed_bytes = names.to_ascii(outcome.path), outcome.reclaimed_bytes
                    self._say(contract.FILE_DEFRAGMENTED, path, *numbers, reclaimed_bytes)

    def _tell(self) -> None:
        self._timer = None
        with self._guard():
            before, self._sent = self._sent, self._read()
            for path, (interface, _) in self._objects.tree().items():
                now = self._sent[path]
                changed = {name: value for name, value in now.items() if value != before.get(path, {}).get(name)}
                if changed:
                    self._say(contract.PROPERTIES_CHANGED, interface.name, changed, [], path=path)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged
            self._complain("a signal was not sent", error)

    def _say(self, signal: Signal, *values: object, path: str = names.MANAGER_PATH) -> None:
        self._send(make_signal(path, signal.interface, signal.name, join_signatures(signal.takes), *values))
