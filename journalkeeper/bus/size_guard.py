# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is read from the bus, before the library makes objects of it.

What a stranger sends costs little. A bus takes 32 MiB of anybody, and 28 MiB
of empty arrays became 520 MiB of lists that stayed: so a body that nothing of ours needs is
not read. The call arrives without it, its signature is then a wrong one, and the answer says so.

Source: D-Bus specification, "Message Format".
"""

from __future__ import annotations

import asyncio
import errno
from socket import socket
from typing import Any, Final, Literal

READ_BYTES: Final = 1 << 16
"""Read in one turn of the event loop; dbus-fast reads on until what it has ends where a message does."""

BODY_MOST: Final = 1 << 17
"""More than a call with the most paths has."""

HEADER_MOST: Final = 1 << 14
"""A longer header has a path of that length, which no object of ours has; it is read without the path's end."""

LOOK: Final = 1 << 12
"""The fields before the path are shorter: the bus lets the others have 255 bytes each."""

PATH_KEPT: Final = 256
PATH: Final = 1
PATH_TYPE: Final = ord("o")

FIXED: Final = 16
SIGNATURE: Final = 8
SIGNATURE_TYPE: Final = ord("g")
NUMBER_TYPE: Final = ord("u")
TEXT_TYPES: Final = frozenset(b"so")


class SizeGuard:
    """A socket that gives what `source` gives, less bodies that are too long; as a socket and as a stream.

    It keeps back nothing that the library may read: the event loop calls the library when `source` has
    something, and knows nothing of what would be kept here.
    """

    def __init__(self, source: socket, loop: asyncio.AbstractEventLoop) -> None:
        self._source = source
        self._loop = loop
        self._head = bytearray()
        self._passes = 0
        self._skips = 0
        self._had_its_turn = False

    def __getattr__(self, name: str) -> Any:
        """All else is the socket's."""
        return getattr(self._source, name)

    def read(self, length: int) -> bytes | None:
        """What recv() gives; None if there is nothing now, b"" if there never will be."""
        try:
            return self.recv(length)
        except BlockingIOError:
            return None

    def recv(self, _length: int, _flags: int = 0) -> bytes:
        """All that this turn gives, at most READ_BYTES and a header, whatever length is asked for; b"" at the end.

        The library appends it to a buffer of any size.

        Raises: BlockingIOError if there is nothing in this turn.
        """
        ready = b""
        while not ready:
            if self._had_its_turn:
                raise BlockingIOError(errno.EAGAIN, "the next turn of the event loop reads on")
            data = self._source.recv(READ_BYTES)
            if not data:
                return data
            self._had_its_turn = True
            self._loop.call_soon(self._next_turn)
            ready = self._sorted(data)
        return ready

    def write(self, data: bytes) -> int:
        """The first message of a connection, which an empty socket takes."""
        return self._source.send(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def _next_turn(self) -> None:
        self._had_its_turn = False

    def _sorted(self, data: bytes) -> bytes:
        """What of `data` is for the library."""
        ready = bytearray()
        at = 0
        while at < len(data):
            if self._skips:
                step = min(self._skips, len(data) - at)
                self._skips -= step
            elif self._passes:
                step = min(self._passes, len(data) - at)
                ready += data[at : at + step]
                self._passes -= step
            else:
                header, body = lengths(self._head)
                wanted = LOOK if header > HEADER_MOST else header
                step = min(wanted - len(self._head), len(data) - at)
                self._head += data[at : at + step]
                header, body = lengths(self._head)
                if header > HEADER_MOST:
                    if len(self._head) >= LOOK:
                        nothing = b"", header - len(self._head) + body
                        self._head[:], self._skips = with_short_path(bytes(self._head)) or nothing
                elif len(self._head) == header:
                    fits = body <= BODY_MOST
                    ready += self._head if fits else without_body(bytes(self._head))
                    self._passes, self._skips = (body, 0) if fits else (0, body)
                    self._head.clear()
            at += step
        return bytes(ready)


def lengths(head: bytes | bytearray) -> tuple[int, int]:
    """The lengths of the header and of the body, as far as the first bytes of a message say; FIXED and 0 before."""
    if len(head) < FIXED:
        return FIXED, 0
    body, fields = (int.from_bytes(head[at : at + 4], order(head)) for at in (4, 12))
    return FIXED + _aligned(fields, 8), body


def without_body(head: bytes) -> bytes:
    """The header of a message that is the same but for its body; b"" of one that cannot be understood."""
    end = FIXED + int.from_bytes(head[12:16], order(head))
    fields = bytearray()
    at = FIXED
    while at < end:
        after = _field_end(head, at)
        if after is None:
            return b""
        if head[at] != SIGNATURE:
            fields += bytes(_aligned(len(fields), 8) - len(fields)) + head[at:after]
        at = _aligned(after, 8)
    length = len(fields).to_bytes(4, order(head))
    return head[:4] + bytes(4) + head[8:12] + length + fields + bytes(_aligned(len(fields), 8) - len(fields))


def with_short_path(head: bytes) -> tuple[bytes, int] | None:
    """The first bytes of a long header with its path cut, and how many of the bytes after `head` are left out.

    None if no long path begins there. What is cut is a multiple of 8 bytes, so that all else stays aligned.
    """
    at = FIXED
    while at + 8 <= len(head) and head[at + 2] != PATH_TYPE:
        after = _field_end(head, at)
        if after is None:
            return None
        at = _aligned(after, 8)
    if at + 8 + PATH_KEPT + 8 > len(head) or head[at] != PATH:
        return None
    words = order(head)
    fields, length = int.from_bytes(head[12:16], words), int.from_bytes(head[at + 4 : at + 8], words)
    kept = PATH_KEPT + length % 8
    left_out = length - kept - (len(head) - at - 8 - kept)
    if left_out <= 0 or at + 8 + length >= FIXED + fields:
        return None
    cut = length - kept
    path = head[at + 8 : at + 6 + kept] + NOWHERE
    short = head[:12] + (fields - cut).to_bytes(4, words) + head[16 : at + 4] + kept.to_bytes(4, words) + path
    return short, left_out


NOWHERE: Final = b"__"
"""The end of a path that was cut: of no object of ours (sd_bus_path_encode)."""


def _field_end(head: bytes, at: int) -> int | None:
    """Where the header field ends that begins at `at`: its code, its type, its value."""
    kind = head[at + 2]
    if kind == SIGNATURE_TYPE:
        return at + 4 + 1 + head[at + 4] + 1
    if kind == NUMBER_TYPE:
        return at + 8
    if kind in TEXT_TYPES:
        return at + 8 + int.from_bytes(head[at + 4 : at + 8], order(head)) + 1
    return None


def order(head: bytes | bytearray) -> Literal["little", "big"]:
    """The byte order that the first byte of a message says."""
    return "little" if head[0] == ord("l") else "big"


def _aligned(length: int, to: int) -> int:
    return (length + to - 1) // to * to
