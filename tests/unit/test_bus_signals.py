# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which files are signalled: those that came after somebody could have asked for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from dbus_fast import Message

from journalkeeper.bus import names, properties, signals
from journalkeeper.bus.objects import Objects
from journalkeeper.bus.signals import Signals
from journalkeeper.service.events import Events
from journalkeeper.service.job import Ended, Job
from journalkeeper.service.jobs import Jobs
from journalkeeper.service.snapshot import Findings, Snapshot
from tests import hosts
from tests.figures import STATUS

FIRST, SECOND = "/j/system@1.journal", "/j/system@2.journal"


def found(*paths: str) -> Findings:
    return Findings({path: hosts.file(path=path) for path in paths}, {}, STATUS, 0, "")


async def _never(_: Job) -> Ended:
    raise AssertionError("no job was asked for")


class Bench:
    """A service on no bus: `known` is what it knows, `added` the objects whose InterfacesAdded it sent."""

    def __init__(self, known: Findings | None) -> None:
        self.known = known
        self.added: list[str] = []
        jobs = Jobs(_never, Events(), self._complain)
        self.objects = Objects(self._snapshot, jobs)
        self.signals = Signals(
            self._snapshot, self.objects, jobs, send=self._send, drained=self._drained, complain=self._complain
        )

    def _snapshot(self) -> Snapshot:
        return Snapshot(("/j",), findings=self.known)

    def _send(self, message: Message) -> None:
        if message.member == "InterfacesAdded":
            self.added.append(message.body[0])

    async def _drained(self) -> None:
        await asyncio.sleep(0)

    def _complain(self, what: str, error: Exception) -> None:
        raise AssertionError(what) from error

    async def look(self, *paths: str) -> None:
        """A look finds these files."""
        self.known = found(*paths)
        self.signals.changed()
        await asyncio.sleep(4 * signals.COALESCE_S)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "COALESCE_S", 0.005)


def nothing(_: Objects) -> None:
    """Nobody asks."""


def of_the_manager(objects: Objects) -> None:
    objects.values(names.MANAGER_PATH, names.MANAGER, properties.anybody)
    assert objects.interfaces(names.MANAGER_PATH)


def all_of_them(objects: Objects) -> None:
    assert list(objects.objects(properties.anybody)) == []


def by_name(objects: Objects) -> None:
    assert list(objects.children(names.FILE_PATHS)) == []


def one_of_them(objects: Objects) -> None:
    assert objects.interfaces(names.file_path(FIRST)) is None


@pytest.mark.parametrize(
    ("ask", "told"),
    [(nothing, False), (of_the_manager, False), (all_of_them, True), (by_name, True), (one_of_them, True)],
)
def test_what_the_first_look_finds_is_told_to_who_asked_before(ask: Callable[[Objects], None], *, told: bool) -> None:
    async def scenario() -> None:
        bench = Bench(None)
        ask(bench.objects)
        await bench.look(FIRST)
        assert bench.added == ([names.file_path(FIRST)] if told else [])
        assert names.FILE in dict(bench.objects.objects(properties.anybody))[names.file_path(FIRST)]

    asyncio.run(scenario())


def test_what_a_later_look_finds_is_told_to_everybody() -> None:
    async def scenario() -> None:
        bench = Bench(None)
        await bench.look(FIRST)
        await bench.look(FIRST, SECOND)
        assert bench.added == [names.file_path(SECOND)]

    asyncio.run(scenario())


def test_what_was_found_before_the_bus_was_there_is_not_told() -> None:
    async def scenario() -> None:
        bench = Bench(found(FIRST))
        await bench.look(FIRST)
        assert bench.added == []

    asyncio.run(scenario())


def test_who_asks_right_after_the_first_look_is_told_what_the_next_one_finds() -> None:
    async def scenario() -> None:
        bench = Bench(None)
        bench.known = found(FIRST)
        bench.signals.changed()
        assert len(dict(bench.objects.objects(properties.anybody))) == 1
        await bench.look(FIRST, SECOND)
        assert bench.added == [names.file_path(SECOND)]

    asyncio.run(scenario())
