# SPDX-License-Identifier: LGPL-2.1-or-later
"""A connection to a bus that strangers send to, and that may take nothing; no rights are needed."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from jeepney import DBusAddress, HeaderFields, Message, MessageFlag, message_bus, new_signal

from journalkeeper.bus import connection, server
from journalkeeper.bus.connection import CALL_MOST, FIELDS_MOST, Connection, Received, make_call
from journalkeeper.bus.names import BUS, INVALID_ARGS, CallError
from journalkeeper.service.log import Log
from tests.bus import raw_call

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
    words = ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile", "--print-address"]
    daemon = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert daemon.stdout is not None
        assert daemon.stdout.readline()  # printed once it listens; its socket is there before
        yield f"unix:path={place}"
    finally:
        daemon.terminate()
        daemon.communicate()


def signal_to_bus(text: str) -> Message:
    """A call that wants no answer: a bus keeps 128 questions of each caller."""
    call = make_call(BUS, "/", "a.b", "News", "s", text)
    call.header.flags |= MessageFlag.no_reply_expected
    return call


@asynccontextmanager
async def stopped_bus(ours: Connection) -> AsyncIterator[None]:
    """The process of the bus takes nothing meanwhile."""
    (pid,) = await ours.call(message_bus.GetConnectionUnixProcessID(BUS))
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# What is read


def make_long_header(length: int) -> bytes:
    """Return a call whose fields have so many bytes, because its sender's name is long."""
    call = make_call("a.b", "/", "a.b", "C")
    call.header.fields[HeaderFields.sender] = ""
    call.header.fields[HeaderFields.sender] = "x" * (length - connection.measure_message(call.serialise(2))[0])
    return bytes(call.serialise(2))


PLAIN = ("org.journalkeeper1", "/org/journalkeeper1", "org.journalkeeper1.Manager", "Plan")
SMALL = raw_call(*PLAIN, "s", "hello")
EMPTY = raw_call(*PLAIN)
ROOM = CALL_MOST - len(raw_call(*PLAIN, "s", ""))
FITS = raw_call(*PLAIN, "s", "x" * ROOM)
LONG = raw_call(*PLAIN, "s", "x" * (ROOM + 1))
FULL_HEADER, LONG_HEADER = (make_long_header(FIELDS_MOST + more) for more in (0, 1))
BARE = b"l\1\0\1" + bytes(4) + (7).to_bytes(4, "little") + bytes(4)
EMPTY_STRUCTS = raw_call(*PLAIN, "asu", [], 1).replace(b"asu", b"a()")
UNKNOWN_TYPE = SMALL[:1] + b"\x09" + SMALL[2:]


async def receive(parts: list[bytes]) -> list[bytes]:
    """Return the messages that a connection passes on."""
    reader = asyncio.StreamReader()
    ours = Connection(reader, Mock(), CALL_MOST)
    heard: list[bytes] = []
    ours.handle = lambda message: heard.append(message._data)
    for part in parts:
        reader.feed_data(part)
        await asyncio.sleep(0)
    reader.feed_eof()
    assert isinstance(await ours.ended, ConnectionResetError)
    return heard


@pytest.mark.parametrize("seed", range(5))
async def test_messages_pass_however_they_are_cut_and_bad_ones_are_dropped(seed: int) -> None:
    luck = random.Random(seed)  # noqa: S311 - the same cuts each time
    bad = [LONG, LONG_HEADER, EMPTY_STRUCTS, UNKNOWN_TYPE]
    data = b"".join([SMALL, *bad, EMPTY, FITS, LONG, FULL_HEADER, BARE, LONG, LONG, SMALL])
    parts = []
    while data:
        length = luck.choice([luck.randint(1, 20), luck.randint(1, 9000), luck.randint(1, 90_000)])
        parts.append(data[:length])
        data = data[length:]
    assert await receive(parts) == [SMALL, EMPTY, FITS, FULL_HEADER, BARE, SMALL]


async def test_a_number_with_the_bytes_of_an_empty_struct_drops_no_message() -> None:
    calls = [bytes(make_call("a.b", "/", "a.b", "C").serialise(number)) for number in (0x2927, 0x2928, 0x292800)]
    long = raw_call(*PLAIN, "s", "x" * (0x2928 - 5))
    assert await receive([*calls, long]) == [*calls, long]


@pytest.mark.parametrize(("order", "first"), [("little", b"l"), ("big", b"B")])
def test_a_message_of_either_byte_order_is_measured(order: str, first: bytes) -> None:
    body, fields = (number.to_bytes(4, order) for number in (7, 9))  # type: ignore[arg-type]
    assert connection.measure_message(first + b"\1\0\1" + body + bytes(4) + fields) == (9, 16 + 16 + 7)


def test_a_body_that_does_not_fit_its_signature_is_an_error() -> None:
    """A dbus-broker passes such bodies on."""
    with pytest.raises(CallError, match="signature") as caught:
        Received(SMALL[:-1] + b"x").read()
    assert caught.value.name == INVALID_ARGS


async def test_a_flood_of_messages_leaves_other_tasks_their_turns() -> None:
    reader = asyncio.StreamReader()
    ours = Connection(reader, Mock(), CALL_MOST)
    heard: list[Received] = []
    ours.handle = heard.append
    reader.feed_data(SMALL * 1000)
    for _ in range(100):
        await asyncio.sleep(0)
    assert 0 < len(heard) <= 100
    reader.feed_eof()


async def test_a_signal_with_the_number_of_a_call_does_not_answer_it() -> None:
    reader = asyncio.StreamReader()
    ours = Connection(reader, Mock(), CALL_MOST)
    asking = asyncio.create_task(ours.call(message_bus.GetId()))
    news = new_signal(DBusAddress("/", interface="a.b"), "News")
    news.header.fields[HeaderFields.reply_serial] = 1
    await asyncio.sleep(0)
    reader.feed_data(news.serialise(7))
    reader.feed_eof()
    with pytest.raises(ConnectionResetError):
        await asking


@pytest.mark.parametrize("address", ["", "nonsense", "tcp:host=localhost,port=1", "unix:runtime=yes"])
async def test_an_address_without_a_socket_is_refused(address: str) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        await Connection.open(address)


async def test_a_bus_that_refuses_the_user_is_an_error(tmp_path: Path) -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"REJECTED EXTERNAL\r\n")
        writer.close()  # in Python 3.12.1 the server waits for that

    async with await asyncio.start_unix_server(refuse, tmp_path / "bus"):
        with pytest.raises(ConnectionRefusedError, match="REJECTED"):
            await Connection.open(f"unix:path={tmp_path}/bus")


async def test_the_waits_for_a_lost_bus_grow_until_a_connection_lasts_and_each_loss_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short, long = (AsyncMock(ended=asyncio.Future(), close=Mock(), call=AsyncMock(return_value=(1,))) for _ in range(2))
    short.ended.set_result(OSError())
    asyncio.get_running_loop().call_later(0.1, long.ended.set_result, OSError())
    monkeypatch.setattr(asyncio, "wait", AsyncMock())
    monkeypatch.setattr(Connection, "open", AsyncMock(side_effect=[short, short, long, *[OSError()] * 6]))
    pauses = AsyncMock(side_effect=[None] * 8)
    monkeypatch.setattr(asyncio, "sleep", pauses)
    with pytest.raises(StopAsyncIteration):
        await server.serve_bus(Mock(followers=[], log=Log(None)), "unix:path=/bus")
    assert [pause.args[0] for pause in pauses.await_args_list] == [5, 10, 5, 10, 20, 40, 60, 60, 60]
    assert re.findall("no connection|again", capsys.readouterr().err) == ["no connection", "again", "no connection"]


# What is sent


async def test_an_answer_that_is_an_error_is_raised_and_one_that_will_not_come_too(address: str) -> None:
    ours = await Connection.open(address)
    with pytest.raises(CallError) as caught:
        await ours.call(make_call(BUS, "/", BUS, "Nothing"))
    assert caught.value.name == f"{BUS}.Error.UnknownMethod"
    async with stopped_bus(ours):
        asking = asyncio.ensure_future(ours.call(message_bus.GetId()))
        await asyncio.sleep(0.1)
        ours.close()
        with pytest.raises(ConnectionResetError):
            await asking
    with pytest.raises(ConnectionResetError):
        await ours.call(message_bus.GetId())


async def test_a_bus_that_takes_nothing_any_more_is_left(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "QUEUE_MOST", 1 << 20)
    ours = await Connection.open(address)
    async with stopped_bus(ours):
        for _ in range(40):
            ours.send(signal_to_bus(WORDS))
        async with asyncio.timeout(60):
            assert "does not take" in str(await ours.ended)
        ours.send(signal_to_bus(WORDS))


async def test_a_message_that_the_bus_would_not_take_is_an_error(address: str) -> None:
    ours = await Connection.open(address)
    with pytest.raises(CallError, match="1 MiB"):
        ours.send(signal_to_bus("x" * connection.SENT_MOST))
    assert await ours.call(message_bus.NameHasOwner(BUS)) == (True,)
    ours.close()


async def test_waiting_for_the_bus_to_take_all_ends_with_the_connection() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    writer.transport.set_write_buffer_limits(0)
    made = Connection(reader, writer, CALL_MOST)
    for _ in range(20):
        made.send(signal_to_bus(WORDS))
    draining = asyncio.create_task(made.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    theirs.close()
    await asyncio.wait_for(draining, 10)
    assert isinstance(await made.ended, ConnectionError)
