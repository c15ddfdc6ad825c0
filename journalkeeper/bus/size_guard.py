# SPDX-License-Identifier: LGPL-2.1-or-later
"""A socket that drops long messages before the library makes objects of them.

A bus passes on up to 32 MiB of any caller, and dbus-fast made 520 MiB of lists of 28 MiB of empty
arrays. A message that is longer than every call of ours is dropped, and its sender gets no answer.

Source: D-Bus specification, "Message Format".
"""

from __future__ import annotations

import asyncio
import errno
from socket import socket
from typing import Any, Final, Literal

READ_BYTES: Final = 1 << 16
"""Bytes read in one turn of the event loop. dbus-fast reads until what it has ends where a message ends."""

MESSAGE_MOST: Final = 1 << 17
"""Bytes of a message that are read: more than a call with the most paths has."""

FIXED: Final = 16
"""Bytes of a message that contain its length."""


class SizeGuard:
    """A socket and stream that reads from `source` and drops messages that are too long.

    It holds back no byte that the library may read, because the event loop calls the library only when `source` has
    something to read.
    """

    def __init__(self, source: socket, loop: asyncio.AbstractEventLoop) -> None:
        self._source = source
        self._loop = loop
        self._head = bytearray()
        self._left = 0  # bytes of the present message, which is given if it `_passes`
        self._passes = True
        self._had_its_turn = False

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the guarded socket."""
        return getattr(self._source, name)

    def read(self, length: int) -> bytes | None:
        """Return what `recv` returns, or None if nothing can be read in this turn of the event loop; b"" at the end."""
        try:
            return self.recv(length)
        except BlockingIOError:
            return None

    def recv(self, _length: int, _flags: int = 0) -> bytes:
        """Read at most READ_BYTES, and return them without messages longer than MESSAGE_MOST; b"" at the end.

        Each turn of the event loop reads once, so that one connection does not delay the others. The requested length
        is ignored: the library appends the bytes to a buffer that grows.

        Raises: BlockingIOError if this turn has already read, or nothing is there to read.
        """
        ready = b""
        while not ready:
            if self._had_its_turn:
                raise BlockingIOError(errno.EAGAIN, "the next turn of the event loop reads on")
            data = self._source.recv(READ_BYTES)
            if not data:
                return data
            self._had_its_turn = True
            self._loop.call_soon(self._end_turn)
            ready = self._filter(data)
        return ready

    def write(self, data: bytes) -> int:
        """Send the first message of a connection, which an empty socket takes."""
        return self._source.send(data)

    def flush(self) -> None:
        """Do nothing: no byte is held back."""

    def _end_turn(self) -> None:
        self._had_its_turn = False

    def _filter(self, data: bytes) -> bytes:
        """Return `data` without the bytes of messages longer than MESSAGE_MOST.

        An incomplete header is kept for the next call.
        """
        ready = bytearray()
        at = 0
        while at < len(data):
            part = data[at : at + (self._left or FIXED - len(self._head))]
            at += len(part)
            if self._left:
                self._left -= len(part)
                ready += part if self._passes else b""
                continue
            self._head += part
            if len(self._head) == FIXED:
                length = measure_message(self._head)
                self._left, self._passes = length - FIXED, length <= MESSAGE_MOST
                ready += self._head if self._passes else b""
                self._head.clear()
        return bytes(ready)


def measure_message(head: bytes | bytearray) -> int:
    """Return the length of the message that begins with the FIXED bytes of `head`."""
    order: Literal["little", "big"] = "little" if head[0] == ord("l") else "big"
    body, fields = (int.from_bytes(head[at : at + 4], order) for at in (4, 12))
    return FIXED + (fields + 7) // 8 * 8 + body
