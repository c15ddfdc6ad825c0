# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is read from the bus: every message that is not too long, and so much in a turn."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import pytest

from journalkeeper.bus.size_guard import FIXED, MESSAGE_MOST, READ_BYTES, SizeGuard, measure_message
from tests.bus import raw_call

PLAIN = ("org.journalkeeper1", "/org/journalkeeper1", "org.journalkeeper1.Manager", "Plan")
SMALL = raw_call(*PLAIN, "s", "hello")
EMPTY = raw_call(*PLAIN)
ROOM = MESSAGE_MOST - len(raw_call(*PLAIN, "s", ""))
FITS = raw_call(*PLAIN, "s", "x" * ROOM)
LONG = raw_call(*PLAIN, "s", "x" * (ROOM + 1))
LONG_PATH = raw_call("a.b", "/" + "x" * MESSAGE_MOST, "a.b", "C", "s", "hello")


def through(data: bytes, pieces: list[int]) -> bytes:
    """What comes out of a guard that is given `data` in pieces."""
    guard = SizeGuard(socket.socket(), asyncio.new_event_loop())
    out, at = bytearray(), 0
    for length in [*pieces, len(data)]:
        out += guard._filter(data[at : at + length])
        at += length
    guard._source.close()
    guard._loop.close()
    return bytes(out)


@pytest.mark.parametrize("seed", range(5))
def test_messages_pass_however_they_are_cut_and_long_ones_are_dropped(seed: int) -> None:
    luck = random.Random(seed)  # noqa: S311 - the same cuts each time
    messages = [SMALL, EMPTY, LONG, SMALL, FITS, LONG_PATH, EMPTY, LONG, LONG, SMALL]
    pieces = [luck.randint(1, 20) for _ in range(400)] + [luck.randint(1, 9000) for _ in range(100)]
    assert through(b"".join(messages), pieces) == b"".join([SMALL, EMPTY, SMALL, FITS, EMPTY, SMALL])


@pytest.mark.timeout(10)
@pytest.mark.parametrize("body", [b"", bytes(8)])
def test_a_message_without_fields_is_the_librarys_to_refuse(body: bytes) -> None:
    """No bus hands such a one on; what is read here must end all the same."""
    bare = b"l\1\0\1" + len(body).to_bytes(4, "little") + (7).to_bytes(4, "little") + bytes(4) + body
    for pieces in ([], [3], [16], [17]):
        assert through(bare + SMALL, pieces) == bare + SMALL


@pytest.mark.parametrize(("order", "first"), [("little", b"l"), ("big", b"B")])
def test_a_message_of_either_byte_order_is_measured(order: str, first: bytes) -> None:
    body, fields = (number.to_bytes(4, order) for number in (7, 9))  # type: ignore[arg-type]
    assert measure_message(first + b"\1\0\1" + body + bytes(4) + fields) == FIXED + 16 + 7


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Our end, which does not block, and theirs."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


async def test_one_turn_of_the_loop_reads_what_one_read_gives(pair: tuple[socket.socket, socket.socket]) -> None:
    """Releases before 5.0 read until there is nothing more: a flood would never end."""
    ours, theirs = pair
    theirs.send(SMALL * 10)
    guard = SizeGuard(ours, asyncio.get_running_loop())
    for _ in range(3):
        read = 0
        while (part := guard.read(100)) is not None:
            read += len(part)
            theirs.send(SMALL * (len(part) // len(SMALL) + 1))  # faster than it is read
        assert 0 < read <= READ_BYTES
        await asyncio.sleep(0)


async def test_nothing_is_kept_back_of_what_was_read(pair: tuple[socket.socket, socket.socket]) -> None:
    """Nobody would be told to fetch it: the socket is empty."""
    ours, theirs = pair
    theirs.send(SMALL * 10)
    assert SizeGuard(ours, asyncio.get_running_loop()).recv(len(SMALL)) == SMALL * 10


async def test_nothing_now_is_none_and_the_end_is_the_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    guard = SizeGuard(ours, asyncio.get_running_loop())
    assert guard.read(5) is None
    theirs.send(SMALL)
    assert (guard.read(1000), guard.read(1)) == (SMALL, None)
    with pytest.raises(BlockingIOError):
        guard.recv(1)
    theirs.close()
    await asyncio.sleep(0)
    assert guard.read(5) == b""
