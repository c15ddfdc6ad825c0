# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which signals are sent for what happens in the service, and when a lost bus is tried again."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import Mock

import pytest
from jeepney import HeaderFields, Message

from journalkeeper.bus import names, server
from journalkeeper.bus.server import FIRST_S, MOST_S, Server
from journalkeeper.model import Outcome, Reason, Request, Result, Verb
from journalkeeper.service.jobs import Changed, Job, JobAdded, JobRemoved, Notification
from journalkeeper.service.snapshot import FileDone, Snapshot

DONE = Outcome("/j/a", Verb.COMPRESS, Result.DONE, Reason.FRAGMENTED, 9, 1, 900, 400, 100, 1.0)
JOB = Job(1, Request())
JOB_PATH = names.job_path(1)


class Bench:
    """A service on no bus: `state` is what it knows, `sent` the members and bodies of the signals that it sent."""

    def __init__(self) -> None:
        self.state = Snapshot(("/j",))
        self.sent: list[tuple[str, tuple[Any, ...]]] = []
        self.jobs: list[Job] = []
        self.service = Mock(snapshot=lambda: self.state, jobs=Mock(queue=self.jobs))
        self.server = Server(self.service, Mock(send=self._send))

    def _send(self, message: Message) -> None:
        self.sent.append((message.header.fields[HeaderFields.member], message.body))

    async def follow(self, *events: Notification) -> None:
        """Let the events happen, and wait until the changes are sent together."""
        for event in events:
            self.server.follow(event)
        while self.server._timer is not None:
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "COALESCE_S", 0.005)


@pytest.mark.parametrize(
    ("events", "sent"),
    [
        ([JobAdded(JOB), JobRemoved(JOB, "done")], [("JobNew", (1, JOB_PATH)), ("JobRemoved", (1, JOB_PATH, "done"))]),
        ([FileDone(DONE, 5)], [("FileDefragmented", ("/j/a", 9, 1, 100, 500))]),
        ([FileDone(DONE._replace(result=Result.FAILED), 5)], []),
        ([FileDone(DONE._replace(action=Verb.SET_NOCOW), 5)], []),
        ([Changed()], []),
    ],
)
async def test_each_event_has_its_signal(events: list[Notification], sent: list[tuple[str, tuple[Any, ...]]]) -> None:
    bench = Bench()
    await bench.follow(*events)
    assert bench.sent == sent


async def test_only_what_differs_is_sent_and_together() -> None:
    bench = Bench()
    bench.state = bench.state._replace(present=bench.state.present._replace(paused="until noon"))
    await bench.follow(Changed(), Changed(), Changed())
    ((member, (interface, changed, invalidated)),) = bench.sent
    assert (member, interface, invalidated) == ("PropertiesChanged", names.MANAGER, [])
    assert changed.keys() == {"State", "StateReason", "Paused"}


async def test_a_jobs_progress_is_sent() -> None:
    bench, job = Bench(), Job(2, Request())
    bench.jobs.append(job)
    await bench.follow(JobAdded(job))
    job.state = "running"
    await bench.follow(Changed())
    (_, (interface, changed, _)) = bench.sent[-1]
    assert (interface, changed["State"][1]) == (names.JOB, "running")


@pytest.mark.parametrize(
    ("lasts_s", "waits_s"),
    [
        ((0, 0, MOST_S), [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]),
        ((0, 0, MOST_S + 1, 0), [FIRST_S, 2 * FIRST_S, FIRST_S, 2 * FIRST_S]),
        ((0,) * 10, [*(FIRST_S * 2**power for power in range(7)), MOST_S, MOST_S, MOST_S]),
    ],
)
async def test_a_lost_bus_is_tried_again_later_each_time_until_a_connection_lasts(
    monkeypatch: pytest.MonkeyPatch, lasts_s: tuple[float, ...], waits_s: list[float]
) -> None:
    now_s, waited_s = [0.0], list[float]()

    async def serve(*_: object) -> None:
        now_s[0] += lasts_s[len(waited_s)]
        raise ConnectionResetError

    async def sleep(wait_s: float) -> None:
        waited_s.append(wait_s)
        if len(waited_s) == len(lasts_s):
            raise asyncio.CancelledError

    monkeypatch.setattr(server, "_serve_connection", serve)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await server.serve_bus(Mock(), "unix:path=/none")
    assert waited_s == waits_s
