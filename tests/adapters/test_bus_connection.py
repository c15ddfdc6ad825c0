# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is mended of dbus-fast, with the release that is installed here; no rights are needed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import shutil
import signal
import subprocess
import termios
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from dbus_fast import Message, MessageFlag, signature

from journalkeeper.bus import connection
from journalkeeper.bus.callers import CallError
from journalkeeper.bus.connection import Connection
from tests.bus import RawClient
from tests.patience import eventually

BUS = "org.freedesktop.DBus"
WORDS = "x" * 50_000
Connect = Callable[[], Awaitable[Connection]]
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
    words = ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile", "--print-address"]
    daemon = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline()  # printed once it listens; its socket is there before
        yield f"unix:path={place}"
    finally:
        daemon.terminate()
        daemon.communicate()


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


@pytest.fixture
def connect(address: str) -> Connect:
    async def connected() -> Connection:
        made = Connection(address)
        await made.connect()
        return made

    return connected


async def until(true: Callable[[], object]) -> None:
    """Let the event loop work until it is true."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


def news(heard: list[Message], message: Message) -> bool:
    """Keep the messages of `signal_to`."""
    if message.member != "News":
        return False
    heard.append(message)
    return True


async def test_messages_arrive_in_their_order_however_many_there_are_at_once(connect: Connect) -> None:
    """Ten times of what a socket holds."""
    ours, theirs = await connect(), await connect()
    heard: list[Message] = []
    theirs.add_careful_handler(partial(news, heard))
    for number in range(300):
        ours.send(signal_to(theirs.unique_name, "us", number, "x" * (number % 7) * 3000))
    await until(lambda: len(heard) == 300)
    assert [message.body[0] for message in heard] == list(range(300))
    assert ours.connected
    ours.close()
    theirs.close()


async def test_a_burst_is_read_to_its_end_though_no_message_follows(connect: Connect, address: str) -> None:
    """Messages end where a read of the library ends: it reads 8 KiB (Python 3.14: 128), and no more if none is cut."""
    theirs = await connect()
    await answer(theirs, "GetNameOwner", BUS)  # after which the bus says nothing of its own accord
    heard: list[Message] = []
    theirs.add_careful_handler(partial(news, heard))

    def say(ours: RawClient, words: str) -> None:
        message = signal_to(theirs.unique_name, "s", words)
        message.serial = 3
        ours.send(connection.marshal(message))

    with RawClient(address.removeprefix("unix:path=")) as ours:
        say(ours, "x" * 1000)
        words = "x" * (1000 + 2048 - waiting_bytes(theirs, 1))
        await until(lambda: len(heard) == 1)
        for _ in range(24):
            say(ours, words)
        assert waiting_bytes(theirs, 24 * 2048) == 24 * 2048
        await until(lambda: len(heard) == 25)
    theirs.close()


def waiting_bytes(connection_: Connection, at_least: int) -> int:
    """The bytes that the bus has sent and nobody has read: the event loop stands still until there are so many."""
    length = array("i", [0])

    def are_there() -> bool:
        fcntl.ioctl(connection_._own._fd, termios.FIONREAD, length)
        return length[0] >= at_least

    assert eventually(are_there)
    return length[0]


async def test_a_closed_connection_is_gone_from_the_bus(connect: Connect) -> None:
    ours, theirs = await connect(), await connect()
    name = theirs.unique_name
    theirs.close()
    theirs.close()
    async with asyncio.timeout(60):
        while await answer(ours, "NameHasOwner", name) != [False]:
            await asyncio.sleep(0.01)
    ours.close()


async def test_signatures_of_strangers_are_not_kept_for_ever(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SIGNATURES_MOST", 50)
    ours, theirs = await connect(), await connect()
    heard: list[Message] = []
    theirs.add_careful_handler(partial(news, heard))
    for number in range(200):
        kinds = "".join("su"[number >> bit & 1] for bit in range(8))
        ours.send(signal_to(theirs.unique_name, kinds, *("x" if kind == "s" else 1 for kind in kinds)))
        await asyncio.sleep(0)
    await until(lambda: len(heard) == 200)
    ours.close()
    theirs.close()
    assert signature.get_signature_tree.cache_info().currsize < 60


async def ends(ours: Connection, match: str) -> None:
    ended: Awaitable[None] = ours.wait_for_disconnect()  # type: ignore[no-untyped-call]
    with pytest.raises(ConnectionResetError, match=match):
        await asyncio.wait_for(ended, 60)


async def test_a_bus_that_takes_nothing_any_more_is_left(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is stopped: what waits for it must not grow for ever, and whoever waits for the end hears of it."""
    monkeypatch.setattr(connection, "STALLED_S", 0.2)
    ours = await connect()
    async with stopped_bus(ours):
        for _ in range(20):
            ours.send(signal_to(BUS, "s", WORDS))
        assert ours.connected
        await ends(ours, "taken nothing")
        assert not ours.connected
        ours.send(signal_to(BUS, "s", WORDS))
    ours.close()


async def test_more_than_may_wait_ends_the_connection(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "QUEUE_MOST", 1 << 20)
    ours = await connect()
    async with stopped_bus(ours):
        for _ in range(40):
            ours.send(signal_to(BUS, "s", WORDS))
        await ends(ours, "does not take")
    ours.close()


async def test_a_message_that_the_bus_would_not_take_is_an_error(connect: Connect) -> None:
    ours = await connect()
    with pytest.raises(CallError, match="1 MiB"):
        ours.send(signal_to(BUS, "s", "x" * (1 << 20)))
    assert await answer(ours, "NameHasOwner", BUS) == [True]
    ours.close()


async def test_a_connection_that_is_closed_while_messages_wait_says_nothing_more(connect: Connect) -> None:
    """In the turn of the event loop in which the bus takes them again."""
    wrong: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: wrong.append(context["exception"]))
    ours = await connect()
    async with stopped_bus(ours):
        for _ in range(500):
            ours.send(Message.new_signal("/", "a.b", "News", "s", ["x" * 1000]))
        await asyncio.sleep(0.1)
        assert ours._writing is not None
    assert eventually(lambda: bool(select.select([], [ours._own._sock], [], 0)[1]))
    await asyncio.sleep(0)
    ours.close()
    await asyncio.sleep(0.1)
    assert wrong == []
