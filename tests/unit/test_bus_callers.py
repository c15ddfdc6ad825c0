# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who calls, how much of theirs is under way, and how much they may leave unread."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dbus_fast import Message, MessageType, Variant

from journalkeeper.bus import callers
from journalkeeper.bus.callers import (
    ASK_AGAIN_S,
    AT_ONCE,
    CALLERS_MOST,
    REFUSED_MOST,
    UNREAD_ALL,
    UNREAD_LEAST,
    UNREAD_MOST,
    CallError,
    Callers,
)

OURS = ":1.0"


class Bus:
    """Answers about connections: whose they are, and what is kept; `asked` is what was asked for."""

    def __init__(self) -> None:
        self.uids = {":1.1": 1000, ":1.2": 1000, ":1.3": 1001, ":1.4": 0, ":1.5": 0}
        self.groups: list[int] | None = None
        self.kept: dict[str, int] | None = {}
        self.asked: list[tuple[str, str]] = []

    async def ask(self, message: Message) -> Message | None:
        (name,) = message.body
        self.asked.append((message.member or "", name))
        await asyncio.sleep(0)
        if message.member == "GetConnectionCredentials" and name in self.uids:
            known = {"UnixUserID": Variant("u", self.uids[name])}
            groups = {} if self.groups is None else {"UnixGroupIDs": Variant("au", self.groups)}
            return self._reply({**known, **groups})
        if message.member == "GetConnectionStats" and self.kept is not None:
            kept = Variant("u", self.kept.get(name, 0))
            return self._reply({"IncomingBytes": kept, "OutgoingBytes": kept})
        return Message(message_type=MessageType.ERROR, error_name="a.b", reply_serial=1, signature="s", body=["no"])

    def _reply(self, body: dict[str, Any]) -> Message:
        return Message(message_type=MessageType.METHOD_RETURN, reply_serial=1, signature="a{sv}", body=[body])


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
def known(bus: Bus) -> Callers:
    return Callers(bus.ask, OURS)


async def test_a_user_is_known_after_the_bus_was_asked_once(bus: Bus, known: Callers) -> None:
    caller = known.find(":1.1")
    await asyncio.gather(*(known.identify(caller) for _ in range(3)))
    await known.identify(known.find(":1.1"))
    assert caller.uid == 1000
    assert bus.asked == [("GetConnectionCredentials", ":1.1")]
    assert [caller.reads(owner) for owner in ("system", "remote", "user:1000", "user:1001", "user:100")] == [
        *(True, True, True, False, False)
    ]
    with pytest.raises(CallError, match="who you are"):
        await known.identify(known.find(":1.99"))


@pytest.mark.parametrize(("groups", "reads"), [(None, False), ([5, 6], False), ([5, 4], True)])
async def test_who_is_in_a_group_of_readers_reads_all(
    bus: Bus, known: Callers, monkeypatch: pytest.MonkeyPatch, groups: list[int] | None, reads: bool
) -> None:
    monkeypatch.setattr(callers, "READERS", ("no such group", "adm"))

    class Group:
        gr_gid = 4

    monkeypatch.setattr("grp.getgrnam", {"adm": Group}.__getitem__)

    bus.groups = groups
    caller = known.find(":1.1")
    await known.identify(caller)
    assert caller.reads("user:1001") is reads


async def test_calls_of_one_user_under_way_are_bounded_and_do_not_count_for_others(known: Callers) -> None:
    first, same, other, root, roots = [known.find(f":1.{number}") for number in range(1, 6)]
    for one in (first, same, other, root, roots):
        await known.identify(one)
    places = [known.place([first, same][number % 2]) for number in range(AT_ONCE)]
    for place in places:
        place.__enter__()
    with pytest.raises(CallError), known.place(first):
        pass
    with known.place(other), known.place(root), known.place(roots):
        pass
    places[0].__exit__(None, None, None)
    with known.place(same):
        pass
    assert known.turn(first) is known.turn(same)
    assert known.turn(root) is not known.turn(roots)


async def test_who_is_not_known_may_leave_little_unread_and_a_user_more_over_all_connections(known: Callers) -> None:
    first, same = known.find(":1.1"), known.find(":1.2")
    known.sent(":1.1", UNREAD_LEAST)
    assert not known.is_full(first)
    known.sent(":1.1", 1)
    assert known.is_full(first)
    await known.identify(first)
    assert not known.is_full(first)
    known.sent(":1.2", UNREAD_MOST - UNREAD_LEAST)
    await known.identify(same)
    assert known.is_full(first)
    assert known.is_full(same)


async def test_roots_programs_count_one_by_one(known: Callers) -> None:
    hangs, reads = known.find(":1.4"), known.find(":1.5")
    await known.identify(hangs)
    await known.identify(reads)
    known.sent(":1.4", UNREAD_MOST + 1)
    assert known.is_full(hangs)
    assert not known.is_full(reads)


async def test_who_has_read_goes_on_and_who_has_not_is_refused_until_they_have(
    bus: Bus, known: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "ASK_AGAIN_S", 0.0)

    caller = known.find(":1.1")
    known.sent(":1.1", UNREAD_MOST + 1)
    await known.settle(caller)
    assert not known.is_full(caller)
    known.sent(":1.1", UNREAD_MOST + 1)
    bus.kept = {OURS: UNREAD_MOST + 9, ":1.1": UNREAD_MOST + 5}
    with pytest.raises(CallError, match="read the answers"):
        await known.settle(caller)
    bus.kept = {OURS: UNREAD_MOST + 9, ":1.1": 7}
    await known.settle(caller)
    assert caller.unread_bytes == 7


async def test_the_bus_is_not_asked_again_at_once_about_who_did_not_read(bus: Bus, known: Callers) -> None:
    caller = known.find(":1.1")
    bus.kept = {OURS: 2 * UNREAD_MOST, ":1.1": 2 * UNREAD_MOST}
    known.sent(":1.1", UNREAD_MOST + 1)
    for _ in range(5):
        with pytest.raises(CallError):
            await known.settle(caller)
    assert [member for member, _ in bus.asked].count("GetConnectionStats") == 2
    assert ASK_AGAIN_S > 0


async def test_refusals_end_for_who_does_not_read_them_either(bus: Bus, known: Callers) -> None:
    caller = known.find(":1.1")
    await known.identify(caller)
    assert all(known.may_refuse(caller) for _ in range(2 * REFUSED_MOST))
    known.sent(":1.1", UNREAD_MOST + 1)
    heard = [known.may_refuse(caller) for _ in range(REFUSED_MOST + 1)]
    assert heard == [True] * REFUSED_MOST + [False]
    await known.settle(caller)
    assert known.may_refuse(caller)


async def test_all_users_together_are_bounded(bus: Bus, known: Callers) -> None:
    """What the bus keeps of ours counts, whoever's it is."""
    first, other = known.find(":1.1"), known.find(":1.3")
    await known.identify(first)
    await known.identify(other)
    bus.kept = {OURS: UNREAD_ALL + 1, ":1.1": UNREAD_MOST, ":1.3": UNREAD_LEAST + 1}
    known.sent(":1.1", UNREAD_MOST + 1)
    with pytest.raises(CallError):
        await known.settle(first)
    assert not known.is_full(other)
    known.sent(":1.3", UNREAD_LEAST + 1)
    with pytest.raises(CallError):
        await known.settle(other)


async def test_where_the_bus_does_not_say_what_is_unread_old_answers_count_as_read(
    bus: Bus, known: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(callers, "READ_AFTER_S", 0.1)

    bus.kept = None
    caller = known.find(":1.1")
    known.sent(":1.1", UNREAD_MOST + 1)
    await known.settle(caller)
    known.sent(":1.1", UNREAD_MOST + 1)
    with pytest.raises(CallError):
        await known.settle(caller)
    await asyncio.sleep(0.1)
    await known.settle(caller)


async def test_so_many_connections_are_remembered(known: Callers) -> None:
    for number in range(2 * CALLERS_MOST):
        known.sent(f":2.{number}", 10)
    assert len(known._known) == len(known._unread) == CALLERS_MOST
