# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is read from the bus: every message, none that is too long, and so much in a turn."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import pytest

from journalkeeper.bus.size_guard import BODY_MOST, HEADER_MOST, PATH_KEPT, READ_BYTES, SizeGuard, lengths, without_body
from tests.bus import raw_call

PLAIN = ("org.journalkeeper1", "/org/journalkeeper1", "org.journalkeeper1.Manager", "Plan")
SMALL = raw_call(*PLAIN, "s", "hello")
EMPTY = raw_call(*PLAIN)
FITS = raw_call(*PLAIN, "s", "x" * (BODY_MOST - 5))
LONG = raw_call(*PLAIN, "s", "x" * (BODY_MOST - 4))
LONG_PATH = raw_call("a.b", "/" + "x" * HEADER_MOST, "a.b", "C", "s", "hello")
CUT_PATH = raw_call("a.b", "/" + "x" * (PATH_KEPT + 1 - 3) + "__", "a.b", "C", "s", "hello")


def through(data: bytes, pieces: list[int]) -> bytes:
    """What comes out of a guard that is given `data` in pieces."""
    guard = SizeGuard(socket.socket(), asyncio.new_event_loop())
    out, at = bytearray(), 0
    for length in [*pieces, len(data)]:
        out += guard._sorted(data[at : at + length])
        at += length
    guard._source.close()
    guard._loop.close()
    return bytes(out)


@pytest.mark.parametrize("seed", range(5))
def test_messages_pass_however_they_are_cut(seed: int) -> None:
    luck = random.Random(seed)  # noqa: S311 - the same cuts each time
    messages = [SMALL, EMPTY, LONG, SMALL, FITS, LONG_PATH, EMPTY, LONG, LONG, SMALL]
    wanted = [SMALL, EMPTY, without_body(head(LONG)), SMALL, FITS, CUT_PATH]
    wanted += [EMPTY, *[without_body(head(LONG))] * 2, SMALL]
    data = b"".join(messages)
    pieces = [luck.randint(1, 20) for _ in range(400)] + [luck.randint(1, 9000) for _ in range(100)]
    assert through(data, pieces) == b"".join(wanted)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("body", [b"", bytes(8)])
def test_a_message_without_fields_is_the_librarys_to_refuse(body: bytes) -> None:
    """No bus hands such a one on; what is read here must end all the same."""
    bare = b"l\1\0\1" + len(body).to_bytes(4, "little") + (7).to_bytes(4, "little") + bytes(4) + body
    for pieces in ([], [3], [16], [17]):
        assert through(bare + SMALL, pieces) == bare + SMALL


@pytest.mark.parametrize("more", [0, 1 << 20, (1 << 32) - 1 - HEADER_MOST - 9])
def test_a_path_that_is_longer_than_its_header_is_left_out(more: int) -> None:
    """No bus hands such a one on either; the next message is read as ever."""
    wrong = bytearray(LONG_PATH)
    wrong[20:24] = (HEADER_MOST + 9 + more).to_bytes(4, "little")
    fields = int.from_bytes(wrong[12:16], "little")
    wrong[12:16] = (HEADER_MOST + 16).to_bytes(4, "little")
    wrong = wrong[:16] + wrong[16 : 16 + HEADER_MOST + 16] + wrong[16 + (fields + 7) // 8 * 8 :]
    for pieces in ([], [3], [5000]):
        assert through(bytes(wrong) + SMALL, pieces) == SMALL


def head(message: bytes) -> bytes:
    return message[: lengths(message[:16])[0]]


def test_a_call_without_its_body_is_the_call_without_arguments() -> None:
    assert without_body(head(SMALL)) == EMPTY
    assert without_body(head(EMPTY)) == EMPTY
    assert lengths(without_body(head(LONG))) == (len(EMPTY), 0)


def test_the_other_byte_order_is_read_too() -> None:
    """The same header as a big-endian machine writes it."""
    turned = bytearray(EMPTY)
    turned[0] = ord("B")
    for at in (4, 8, 12):
        turned[at : at + 4] = turned[at : at + 4][::-1]
    at = 16
    while at < len(turned):
        turned[at + 4 : at + 8] = turned[at + 4 : at + 8][::-1]
        at += (8 + int.from_bytes(turned[at + 4 : at + 8], "big") + 1 + 7) // 8 * 8
    assert lengths(turned) == (len(turned), 0)
    assert without_body(bytes(turned)) == bytes(turned)


def test_a_header_of_an_unknown_kind_is_dropped() -> None:
    strange = bytearray(EMPTY)
    strange[18] = ord("v")
    assert without_body(bytes(strange)) == b""


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
