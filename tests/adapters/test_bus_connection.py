# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is mended of dbus-fast, with the release that is installed here; no rights are needed."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dbus_fast import Message, MessageFlag, signature

from journalkeeper.bus import connection
from journalkeeper.bus.callers import CallError
from journalkeeper.bus.connection import Connection
from tests.patience import eventually

BUS = "org.freedesktop.DBus"
WORDS = "x" * 50_000
CONFIG = """<busconfig><listen>unix:path={}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A bus where everybody may everything."""
    if shutil.which("dbus-daemon") is None:
        pytest.skip("dbus-daemon is not installed (package dbus)")
    config, place = tmp_path / "bus.conf", tmp_path / "bus"
    config.write_text(CONFIG.format(place))
    daemon = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"], stderr=subprocess.DEVNULL
    )
    try:
        assert eventually(place.exists)
        yield f"unix:path={place}"
    finally:
        daemon.terminate()
        daemon.wait()


def signal_to(destination: str | None, signature_: str, *body: object) -> Message:
    """A call that wants no answer: a bus keeps 128 questions of each caller."""
    return Message(
        destination=destination,
        path="/",
        interface="a.b",
        member="News",
        flags=MessageFlag.NO_REPLY_EXPECTED,
        signature=signature_,
        body=list(body),
    )


async def answer(ours: Connection, member: str, name: str | None) -> list[object]:
    """What the bus itself answers to a question about a name."""
    reply = await ours.call(
        Message(destination=BUS, path="/", interface=BUS, member=member, signature="s", body=[name])
    )
    assert reply is not None
    return list(reply.body)


@asynccontextmanager
async def stopped_bus(ours: Connection) -> AsyncIterator[None]:
    """The process of the bus takes nothing meanwhile."""
    (pid,) = await answer(ours, "GetConnectionUnixProcessID", BUS)
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_messages_arrive_in_their_order_however_many_there_are_at_once(address: str) -> None:
    """Ten times of what a socket holds."""

    async def scenario() -> list[int]:
        ours, theirs = Connection(address), Connection(address)
        await ours.connect()
        await theirs.connect()
        heard: list[int] = []

        def hear(message: Message) -> bool:
            heard.extend(message.body[:1] if message.member == "News" else [])
            return message.member == "News"

        theirs.add_careful_handler(hear)
        for number in range(300):
            ours.send(signal_to(theirs.unique_name, "us", number, "x" * (number % 7) * 3000))
        deadline = asyncio.get_running_loop().time() + 20
        while len(heard) < 300 and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        assert ours.connected
        ours.close()
        theirs.close()
        return heard

    assert asyncio.run(scenario()) == list(range(300))


def test_a_closed_connection_is_gone_from_the_bus(address: str) -> None:
    async def scenario() -> bool:
        ours, theirs = Connection(address), Connection(address)
        await ours.connect()
        await theirs.connect()
        name = theirs.unique_name
        theirs.close()
        theirs.close()
        owned: list[object] = [True]
        for _ in range(200):
            owned = await answer(ours, "NameHasOwner", name)
            if owned == [False]:
                break
            await asyncio.sleep(0.01)
        ours.close()
        return owned == [False]

    assert asyncio.run(scenario())


def test_signatures_of_strangers_are_not_kept_for_ever(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SIGNATURES_MOST", 50)

    async def scenario() -> None:
        ours, theirs = Connection(address), Connection(address)
        await ours.connect()
        await theirs.connect()
        heard = 0

        def count(message: Message) -> bool:
            nonlocal heard
            heard += message.member == "News"
            return message.member == "News"

        theirs.add_careful_handler(count)
        for number in range(200):
            kinds = "".join("su"[number >> bit & 1] for bit in range(8))
            body = ["x" if kind == "s" else 1 for kind in kinds]
            ours.send(signal_to(theirs.unique_name, kinds, *body))
            await asyncio.sleep(0)
        while heard < 200:
            await asyncio.sleep(0.01)
        ours.close()
        theirs.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert signature.get_signature_tree.cache_info().currsize < 60


def test_a_bus_that_takes_nothing_any_more_is_left(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is stopped: what waits for it must not grow for ever, and whoever waits for the end hears of it."""
    monkeypatch.setattr(connection, "STALLED_S", 0.2)

    async def scenario() -> None:
        ours = Connection(address)
        await ours.connect()
        async with stopped_bus(ours):
            for _ in range(20):
                ours.send(signal_to(BUS, "s", WORDS))
            assert ours.connected
            ended: Awaitable[None] = ours.wait_for_disconnect()  # type: ignore[no-untyped-call]
            with pytest.raises(ConnectionResetError, match="taken nothing"):
                await asyncio.wait_for(ended, 5)
            assert not ours.connected
            ours.send(signal_to(BUS, "s", WORDS))
        ours.close()

    asyncio.run(scenario())


def test_more_than_may_wait_ends_the_connection(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "QUEUE_MOST", 1 << 20)

    async def scenario() -> None:
        ours = Connection(address)
        await ours.connect()
        async with stopped_bus(ours):
            for _ in range(40):
                ours.send(signal_to(BUS, "s", WORDS))
            ended: Awaitable[None] = ours.wait_for_disconnect()  # type: ignore[no-untyped-call]
            with pytest.raises(ConnectionResetError, match="does not take"):
                await asyncio.wait_for(ended, 5)
        ours.close()

    asyncio.run(scenario())


def test_a_message_that_the_bus_would_not_take_is_an_error(address: str) -> None:
    async def scenario() -> None:
        ours = Connection(address)
        await ours.connect()
        with pytest.raises(CallError, match="16 MiB"):
            ours.send(signal_to(BUS, "s", "x" * (16 << 20)))
        assert await answer(ours, "NameHasOwner", BUS) == [True]
        ours.close()

    asyncio.run(scenario())


def test_a_connection_that_is_closed_while_messages_wait_says_nothing_more(address: str) -> None:
    """In the turn of the event loop in which the bus takes them again."""

    async def scenario() -> list[object]:
        loop = asyncio.get_running_loop()
        wrong: list[object] = []
        loop.set_exception_handler(lambda _loop, context: wrong.append(context["exception"]))
        ours = Connection(address)
        await ours.connect()
        async with stopped_bus(ours):
            for _ in range(500):
                ours.send(Message.new_signal("/", "a.b", "News", "s", ["x" * 1000]))
            await asyncio.sleep(0.1)
            assert ours._writing
        assert eventually(lambda: bool(select.select([], [ours._own._sock], [], 0)[1]))
        await asyncio.sleep(0)
        ours.close()
        await asyncio.sleep(0.1)
        return wrong

    assert asyncio.run(scenario()) == []
