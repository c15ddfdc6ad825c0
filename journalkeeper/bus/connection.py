# SPDX-License-Identifier: LGPL-2.1-or-later
"""A connection to a message bus, for a service that any user may call.

asyncio's streams read and write the socket, and dbus-fast converts messages to and from bytes. dbus-fast's own
connection is not used: it makes 520 MiB of lists of 28 MiB of empty arrays, ends when the socket takes no more bytes,
and closes the descriptor under the event loop (2.44).

Whatever a caller sends or leaves unread, the connection stays. A message that is too long is dropped before it is
parsed, and so is one that dbus-fast cannot parse.

Source: D-Bus specification, "Message Format", "Authentication Protocol" and "Server Addresses".
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, Literal, Self
from urllib.parse import unquote

from dbus_fast import Message, MessageType, Variant, signature
from dbus_fast._private.unmarshaller import Unmarshaller

from journalkeeper.bus.names import BUS, BUS_PATH, LIMITS_EXCEEDED, CallError

CALL_MOST: Final = 1 << 17
"""Bytes of a message that the service reads: more than a call with the most paths has."""

SENT_MOST: Final = 1 << 20
"""Bytes of a message that is sent."""

QUEUE_MOST: Final = 64 << 20
"""Bytes that wait for the bus; above that the connection ends."""

KERNEL_BYTES: Final = 1 << 14
"""Bytes that the kernel queues for the bus. A busy dbus-daemon reads 2 KiB of each connection in a round of 0.3 s."""

SIGNATURES_MOST: Final = 1000
"""Signatures whose trees dbus-fast may cache. Up to 4.0 at least its cache has no limit."""

FIXED: Final = 16
"""Bytes of a message that contain its length."""

DESCRIPTORS: Final = False
"""Whether messages carry any: ours do not."""


class Connection:
    """A connection to a bus, made by `open`. `name` is its unique name.

    `handle` is called with each message that does not answer a call, and its length in bytes. `ended` is a task that
    returns the error that ended the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, read_most: int) -> None:
        self.name = ""
        self.handle: Callable[[Message, int], object] = lambda *_: None
        self._reader, self._writer = reader, writer
        self._serial = 0
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self.ended = asyncio.get_running_loop().create_task(self._read(read_most))

    @classmethod
    async def open(cls, address: str, read_most: int = CALL_MOST) -> Self:
        """Connect to the bus at `address`, without a limit of time. Messages longer than `read_most` bytes are dropped.

        Raises: ValueError for a bad address; OSError if there is no bus, or if the bus refuses the user or ends the
        connection; CallError if the bus answers Hello with an error.
        """
        reader, writer = await asyncio.open_unix_connection(_find_socket(address))
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        writer.transport.set_write_buffer_limits(0)
        try:
            writer.write(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
            said = await reader.readline()
            if not said.startswith(b"OK "):
                raise ConnectionRefusedError(f"the bus refuses this user: {said.decode(errors='replace').strip()}")
            writer.write(b"BEGIN\r\n")
            made = cls(reader, writer, read_most)
            (made.name,) = await made.call(bus_call("Hello"))
        except BaseException:
            writer.transport.abort()
            raise
        return made

    def close(self, error: Exception | None = None) -> None:
        """Close the connection, and discard messages that are not sent yet. `ended` returns `error`."""
        self._writer.transport.abort()
        self._reader.set_exception(error or ConnectionResetError("the connection was closed"))

    async def call(self, message: Message) -> list[Any]:
        """Call a method, and return the values of its answer. Wait for the answer without a limit.

        Raises: CallError if the answer is an error, or if the message is too long; OSError when the connection ends.
        """
        self.send(message)
        waiting = self._answers[message.serial] = asyncio.get_running_loop().create_future()
        try:
            either: set[asyncio.Future[Any]] = {waiting, self.ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ConnectionResetError("the bus closed the connection")
        finally:
            del self._answers[message.serial]
        answer = waiting.result()
        if answer.message_type is MessageType.ERROR:
            raise CallError(str(answer.error_name), str(answer.body[0] if answer.body else answer.error_name))
        return list(answer.body)

    def send(self, message: Message) -> None:
        """Send a message after those that are not sent yet. A closed connection, or one with a full queue, drops it.

        Raises: CallError if the message has more than SENT_MOST bytes; dbus-fast's errors if its values do not fit
        their signature.
        """
        if not message.serial:
            self._serial += 1
            message.serial = self._serial
        data = marshal(message)
        if len(data) > SENT_MOST:
            raise CallError(LIMITS_EXCEEDED, f"the answer would have more than {SENT_MOST >> 20} MiB; ask for less")
        if not self._writer.is_closing():
            self._writer.write(data)
            if self._writer.transport.get_write_buffer_size() > QUEUE_MOST:
                self.close(ConnectionResetError("the bus does not take what is sent"))

    async def drain(self) -> None:
        """Wait until the kernel has taken all that was sent, or until the connection ends."""
        while self._writer.transport.get_write_buffer_size():
            await self._writer.drain()

    async def _read(self, most: int) -> Exception:
        """Pass each message to `_receive` until the connection ends, close it, and return the error that ended it."""
        try:
            while True:
                head = await self._reader.readexactly(FIXED)
                left = measure_message(head) - FIXED
                if left + FIXED <= most:
                    self._receive(head + await self._reader.readexactly(left))
                    await asyncio.sleep(0)  # other tasks have their turns, however many messages there are
                    continue
                while left:
                    left -= len(await self._reader.readexactly(min(left, most)))
        except (OSError, EOFError) as error:
            return ConnectionResetError("the bus closed the connection") if isinstance(error, EOFError) else error
        finally:
            self._writer.transport.abort()

    def _receive(self, data: bytes) -> None:
        if signature.get_signature_tree.cache_info().currsize > SIGNATURES_MOST:
            signature.get_signature_tree.cache_clear()
        source: Any = BytesIO(data)
        try:
            message = Unmarshaller(source).unmarshall()
        except Exception:  # noqa: BLE001 - whatever a stranger sends, the next message is read
            return
        if message is None:
            return
        waiting = self._answers.get(message.reply_serial or 0)
        if waiting is None or message.message_type not in {MessageType.METHOD_RETURN, MessageType.ERROR}:
            self.handle(message, len(data))
        elif not waiting.done():
            waiting.set_result(message)


def bus_call(member: str, kinds: str = "", *values: object) -> Message:
    """Return a call of the method `member` of the bus itself. `kinds` is the signature of `values`."""
    return Message(BUS, BUS_PATH, BUS, member, signature=kinds, body=list(values))


def marshal(message: Message) -> bytes:
    """Return the bytes of a message in D-Bus's format, ready to be sent."""
    private: Any = message
    return bytes(private._marshall(DESCRIPTORS))


def wrap(signature: str, value: Any) -> Any:
    """Return a value of signature v, a{sv} or aa{sv} as dbus-fast takes it. Each variant in `value` is (signature,
    value).
    """
    if signature == "v":
        return Variant(value[0], wrap(*value))
    if signature == "a{sv}":
        return {name: Variant(kind, wrap(kind, one)) for name, (kind, one) in value.items()}
    return [wrap("a{sv}", one) for one in value] if signature == "aa{sv}" else value


def unwrap(value: Any) -> Any:
    """Return a value that dbus-fast has read. Each Variant of an a{sv} becomes a pair (signature, value)."""
    return {name: (one.signature, one.value) for name, one in value.items()} if isinstance(value, dict) else value


def measure_message(head: bytes) -> int:
    """Return the length in bytes of the message that begins with `head`, which is not checked and can exceed every
    limit.
    """
    order: Literal["little", "big"] = "little" if head[0] == ord("l") else "big"
    body, fields = (int.from_bytes(head[at : at + 4], order) for at in (4, 12))
    return FIXED + (fields + 7) // 8 * 8 + body


def _find_socket(address: str) -> str:
    """Return the path of the socket in a D-Bus address; that of an abstract socket begins with NUL.

    Raises: ValueError if the first address does not begin with unix:path= or unix:abstract=.
    """
    found = re.match("unix:(path|abstract)=([^,;]+)", address)
    if found is None:
        raise ValueError(f"{address!r} is no address of a bus at a socket")
    return ("\0" if found[1] == "abstract" else "") + unquote(found[2])
