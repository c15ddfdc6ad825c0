# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which user calls, how often the user is answered, and who gets no answer because of what is unread."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import pytest
from jeepney import HeaderFields, Message

from journalkeeper.bus import callers, client
from journalkeeper.bus.callers import BURST, EARLY_BYTES, EARLY_SHARE, RATE_PER_S, UNREAD_MOST, Caller, Callers
from journalkeeper.bus.connection import Connection
from journalkeeper.bus.names import CallError
from journalkeeper.bus.server import Server
from journalkeeper.service.snapshot import Snapshot

OURS = ":1.0"
Clock = SimpleNamespace


class Bus:
    """Answers about connections: whose they are, and how many bytes are kept; `asked` is what was asked for."""

    name = OURS

    count_kept = Connection.count_kept

    def __init__(self) -> None:
        self.uids = {":1.1": 1000, ":1.2": 1000, ":1.3": 1001, ":1.4": 0, ":1.5": 0}
        self.kept: dict[str, int] | None = {}
        self.asked: list[tuple[str, str]] = []

    async def call(self, message: Message) -> tuple[Any, ...]:
        (name,) = message.body
        member = message.header.fields[HeaderFields.member]
        self.asked.append((member, name))
        await asyncio.sleep(0)
        if member == "GetConnectionUnixUser" and name in self.uids:
            return (self.uids[name],)
        if member == "GetConnectionStats" and self.kept is not None:
            kept = "u", self.kept.get(name, 0)
            return ({"IncomingBytes": kept, "OutgoingBytes": kept},)
        raise CallError("a.b", "no")


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
def known(bus: Any) -> Callers:
    return Callers(bus)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The loop's clock as a test sets it."""
    clock = Clock(now_s=1000.0)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: Mock(time=lambda: clock.now_s))
    return clock


def accept(known: Callers, name: str) -> Caller:
    caller = known.accept(name, 100)
    assert caller is not None
    return caller


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "CHECK_S", 0.0)


async def identify(known: Callers, name: str) -> Caller:
    caller = accept(known, name)
    await known.identify(caller)
    assert caller.uid is not None
    return caller


def count_admitted(known: Callers, caller: Caller, calls: int, cost: float = 1.0) -> int:
    return sum(known.admit(caller.user, cost) == 0 for _ in range(calls))


async def settle() -> None:
    """Let a check of the bus end."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_a_caller_whom_the_bus_does_not_know_is_not_identified(known: Callers) -> None:
    caller = accept(known, ":1.99")
    await known.identify(caller)
    assert caller.uid is None
    assert not known._known


async def test_a_user_has_a_burst_and_a_rate_over_all_connections(known: Callers, clock: Clock) -> None:
    first, second, other = [await identify(known, name) for name in (":1.1", ":1.2", ":1.3")]
    assert count_admitted(known, first, int(BURST) + 5) == BURST
    assert count_admitted(known, second, 5) == 0
    assert count_admitted(known, other, 5) == 5
    clock.now_s += 1.0 + 10 / RATE_PER_S  # ten were answered late
    assert count_admitted(known, second, 2 * int(RATE_PER_S)) == RATE_PER_S
    clock.now_s += 1e6
    assert count_admitted(known, first, 2 * int(BURST)) == pytest.approx(BURST, abs=1)


async def test_roots_connections_have_a_rate_each(known: Callers, clock: Clock) -> None:
    first, second = [await identify(known, name) for name in (":1.4", ":1.5")]
    assert [count_admitted(known, one, int(BURST) + 1) for one in (first, second)] == [BURST, BURST]


async def test_calls_above_the_rate_are_answered_late_and_then_not_at_all(known: Callers, clock: Clock) -> None:
    user = (await identify(known, ":1.1")).user
    user.until_s = clock.now_s
    waits_s = [known.admit(user, callers.LONG_COST) for _ in range(3)]
    assert waits_s == [0.5, 1.0, None]
    assert client.ANSWER_S > callers.LATE_MOST_S == 1.0, "a client would believe that the service is hung"
    assert known.admit(user, 1.0) is None
    clock.now_s += 0.5
    assert known.admit(user, callers.LONG_COST) == 1.0


async def test_a_user_has_few_long_calls_under_way(known: Callers) -> None:
    first, second, other = [await identify(known, name) for name in (":1.1", ":1.2", ":1.3")]
    places = [one.user.count_long_call() for one in [first, second] * (callers.AT_ONCE // 2)]
    for place in places:
        await place.acquire()
    with pytest.raises(CallError, match=f"{callers.AT_ONCE} calls are under way"):
        first.user.count_long_call()
    async with other.user.count_long_call():
        pass
    places[0].release()
    async with second.user.count_long_call():
        pass


# Unread bytes


async def check(known: Callers, caller: Caller, clock: Clock) -> None:
    """Let a call begin a check of the bus, which then ends."""
    clock.now_s += 1.0
    known.admit(caller.user, 1.0)
    await settle()


async def test_the_bus_is_asked_when_a_call_comes_after_a_rest(bus: Bus, known: Callers, clock: Clock) -> None:
    caller = await identify(known, ":1.1")
    with patch.object(callers, "CHECK_S", 0.0):
        for _ in range(5):
            await check(known, caller, clock)
    for _ in range(5):
        await check(known, caller, clock)
    assert bus.asked[1:] == [("GetConnectionStats", OURS)] * 6


@pytest.mark.parametrize(
    ("kept", "silenced"),
    [
        (None, False),  # a dbus-broker does not count
        ((UNREAD_MOST, UNREAD_MOST + 1, 0), False),  # others' messages, not ours
        ((UNREAD_MOST + 1, UNREAD_MOST, 0), False),
        ((UNREAD_MOST + 1, UNREAD_MOST + 1, 0), True),
        ((UNREAD_MOST + 1, UNREAD_MOST, 1), True),  # of both connections
    ],
)
async def test_a_user_who_does_not_read_gets_no_answer_until_all_is_read(
    bus: Bus, known: Callers, clock: Clock, no_rest: None, kept: tuple[int, ...] | None, *, silenced: bool
) -> None:
    reading, one, _ = [await identify(known, name) for name in (":1.3", ":1.1", ":1.2")]
    bus.kept = None if kept is None else dict(zip((OURS, ":1.1", ":1.2"), kept, strict=True))
    await check(known, one, clock)
    assert (known.admit(one.user, 1.0) is None) == silenced
    assert known.admit(reading.user, 1.0) == 0
    bus.kept = {}
    await check(known, one, clock)
    assert known.admit(one.user, 1.0) == 0


async def test_only_so_many_callers_are_remembered_and_those_that_do_not_read_first(
    bus: Bus, known: Callers, clock: Clock, no_rest: None
) -> None:
    reading, one = [await identify(known, name) for name in (":1.3", ":1.1")]
    bus.kept = {OURS: UNREAD_MOST + 1, ":1.1": UNREAD_MOST + 1}
    await check(known, one, clock)
    bus.uids |= {f":2.{number}": 1001 for number in range(2 * callers.CALLERS_MOST)}
    for number in range(2 * callers.CALLERS_MOST):
        await identify(known, f":2.{number}")
    assert len(known._known) == callers.CALLERS_MOST
    assert (accept(known, ":1.3") is reading, accept(known, ":1.1") is one) == (False, True)
    assert known.admit(one.user, 1.0) is None


async def test_few_calls_wait_until_the_bus_has_named_their_callers() -> None:
    """A bus hands over a flood of calls before its answer to the first question about their callers."""
    bus = Mock(call=lambda _: asyncio.Event().wait(), count_kept=AsyncMock(return_value=0))
    server = Server(Mock(snapshot=lambda: Snapshot(("/j",)), jobs=Mock(queue=[])), bus)

    def handle(name: str, length: int) -> bool:
        before = len(server._tasks)
        server.handle(Mock(sender=name, length=length))
        return len(server._tasks) > before

    accept(server._callers, ":1.4").uid = 0
    server._callers._known[":1.4"].early_bytes.clear()
    long = EARLY_BYTES // EARLY_SHARE // 2
    assert [handle(":9.0", 100) for _ in range(callers.EARLY_MOST + 1)] == [True] * callers.EARLY_MOST + [False]
    assert sum(handle(f":8.{number}", long) for number in range(256)) == EARLY_SHARE
    assert [handle(f":8.{number}", EARLY_BYTES // EARLY_SHARE + 1) for number in range(2)] == [False, False]
    assert [handle(name, 100) for name in (":9.99", ":1.4")] == [True, True]
    tasks = list(server._tasks)
    await asyncio.sleep(0)
    server.close()
    await asyncio.wait(tasks)
