# SPDX-License-Identifier: LGPL-2.1-or-later
"""A connection to a message bus, for a service that any user may call.

asyncio's streams read and write the socket, and jeepney converts messages to and from bytes.

Whatever a caller sends or leaves unread, the connection stays. A message that is too long is dropped before it is
parsed, and so is one whose header jeepney cannot parse. The body stays in bytes until `Received.read`.

Source: D-Bus specification, "Message Format", "Authentication Protocol" and "Server Addresses".
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Final, Literal, Self

from jeepney import DBusAddress, Header, HeaderFields, Message, MessageType, Stats, message_bus, new_method_call
from jeepney.bus import get_connectable_addresses

from journalkeeper.bus.names import INVALID_ARGS, LIMITS_EXCEEDED, CallError

CALL_MOST: Final = 1 << 17
"""Bytes of a message that the service reads: more than a call with the most paths has."""

FIELDS_MOST: Final = 1 << 12
"""Bytes of a header's fields that the service reads, because they are parsed before the caller is known."""

SENT_MOST: Final = 1 << 20
"""Bytes of a message that is sent."""

QUEUE_MOST: Final = 64 << 20
"""Bytes that wait for the bus; above that the connection ends."""

KERNEL_BYTES: Final = 1 << 12
"""Half of the bytes that the kernel queues for the bus. A busy dbus-daemon reads 2 KiB of them in a round of 0.7 s."""

FIXED: Final = 16
"""Bytes of a message that contain its length."""

EMPTY_STRUCTS: Final = re.compile(rb"[a(]\(\)")
"""The signature of an array of empty structs. A serial of these bytes is beyond 2^21."""

TEXTS: Final = ("sender", "path", "interface", "member", "signature", "error_name")


class Received:
    """A message from the bus, of `length` bytes. A field that the header lacks is "".

    Raises: any exception for a header that is not in D-Bus's format, or has an array of empty structs.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length = len(data)
        if EMPTY_STRUCTS.search(data, FIXED, FIXED + measure_message(data)[0]):
            raise ValueError("jeepney parses an array of empty structs for ever")
        self.header = Header.from_buffer(data)[0]
        fields = (self.header.fields.get(HeaderFields[name], "") for name in TEXTS)
        self.sender, self.path, self.interface, self.member, self.signature, self.error_name = fields

    def read(self) -> tuple[Any, ...]:
        """Return the values of the body: a tuple for a struct, a pair (signature, value) for a variant.

        Raises: CallError (INVALID_ARGS) if the body is too short for its signature, or invalid. More bytes are ignored.
        """
        try:
            return tuple(Message.from_buffer(self._data).body)
        except Exception as error:  # jeepney raises many, AssertionError among them
            raise CallError(INVALID_ARGS, "the values do not fit their signature") from error


class Connection:
    """A connection to a bus, made by `open`. `name` is its unique name.

    `handle` is called with each method call that arrives. `ended` is a task that returns the error at the end, or
    raises an exception of `handle`.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, read_most: int) -> None:
        self.name = ""
        self.handle: Callable[[Received], object] = lambda _: None
        self._reader, self._writer = reader, writer
        self._serial = 0
        self._answers: dict[int, asyncio.Future[Received]] = {}
        self.ended = asyncio.get_running_loop().create_task(self._read_until_end(read_most))

    @classmethod
    async def open(cls, address: str, read_most: int = CALL_MOST, kernel_bytes: int = KERNEL_BYTES) -> Self:
        """Connect to the bus at `address`, without a limit of time. Messages longer than `read_most` bytes are dropped.
        The kernel queues up to twice `kernel_bytes`.

        Raises: ValueError or RuntimeError for an address without a socket; OSError if there is no bus, or if the bus
        refuses the user or ends the connection; CallError if the bus answers Hello with an error.
        """
        reader, writer = await asyncio.open_unix_connection(next(get_connectable_addresses(address)))
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, kernel_bytes)
        writer.transport.set_write_buffer_limits(0)
        with ExitStack() as undo:
            undo.callback(writer.transport.abort)
            writer.write(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
            said = await reader.readline()
            if not said.startswith(b"OK "):
                raise ConnectionRefusedError(f"the bus refuses this user: {said.decode(errors='replace').strip()}")
            writer.write(b"BEGIN\r\n")
            made = cls(reader, writer, read_most)
            (made.name,) = await made.call(message_bus.Hello())
            undo.pop_all()
        return made

    def close(self, error: OSError | None = None) -> None:
        """Close the connection, discard unsent messages, and let `ended` return `error`, or a ConnectionResetError."""
        self._writer.transport.abort()
        self._reader.set_exception(error or ConnectionResetError("the connection was closed"))

    async def call(self, message: Message) -> tuple[Any, ...]:
        """Call a method, and return the values of its answer. Wait for the answer without a limit.

        Raises: CallError if the answer is an error or invalid; as `send`; OSError if the connection ends.
        """
        serial = self.send(message)
        waiting = self._answers[serial] = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((waiting, self.ended), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ConnectionResetError("the bus closed the connection")
        finally:
            del self._answers[serial]
        answer: Received = waiting.result()
        values = answer.read()
        if answer.header.message_type is MessageType.error:
            raise CallError(answer.error_name, str(values[0]) if values else answer.error_name)
        return values

    def send(self, message: Message) -> int:
        """Send a message after those that are not sent yet, and return its serial number. A closed connection drops it.
        If more than QUEUE_MOST bytes then wait, close the connection.

        Raises: CallError (LIMITS_EXCEEDED) above SENT_MOST bytes; jeepney's errors if values do not fit the signature.
        """
        self._serial += 1
        data: bytes = message.serialise(self._serial)
        if len(data) > SENT_MOST:
            raise CallError(LIMITS_EXCEEDED, f"the answer would have more than {SENT_MOST >> 20} MiB; ask for less")
        if not self._writer.is_closing():
            self._writer.write(data)
            if self._writer.transport.get_write_buffer_size() > QUEUE_MOST:
                self.close(ConnectionResetError("the bus does not take what is sent"))
        return self._serial

    async def drain(self) -> None:
        """Wait until the kernel has taken all that was sent, or until the connection ends."""
        with suppress(OSError):
            while self._writer.transport.get_write_buffer_size():
                await self._writer.drain()

    async def count_kept(self, name: str, counter: str) -> int:
        """Return how many bytes the bus keeps from (IncomingBytes) or for (OutgoingBytes) `name`, 0 after any error."""
        with suppress(CallError, OSError):
            (stats,) = await self.call(Stats().GetConnectionStats(name))
            return int(stats.get(counter, ("u", 0))[1])
        return 0

    async def _read_until_end(self, most: int) -> Exception:
        """Hand messages over; skip any above `most` or FIELDS_MOST. At the end, close, and return the error."""
        try:
            while True:
                head = await self._reader.readexactly(FIXED)
                fields, length = measure_message(head)
                if length <= most and fields <= FIELDS_MOST:
                    self._hand_over(head + await self._reader.readexactly(length - FIXED))
                    await asyncio.sleep(0)  # other tasks have their turns, however many messages there are
                    continue
                while length > FIXED:
                    length -= len(await self._reader.readexactly(min(length - FIXED, most)))
        except (OSError, EOFError) as error:
            return ConnectionResetError("the bus closed the connection") if isinstance(error, EOFError) else error
        finally:
            self._writer.transport.abort()

    def _hand_over(self, data: bytes) -> None:
        """Give a call to `handle`, an answer to its `call`; drop others, also malformed ones. Raises: as `handle`."""
        try:
            message = Received(data)
        except Exception:  # noqa: BLE001 - whatever a stranger sends, the next message is read
            return
        waiting = self._answers.get(message.header.fields.get(HeaderFields.reply_serial, 0))
        if message.header.message_type is MessageType.method_call:
            self.handle(message)
        elif message.header.message_type is not MessageType.signal and waiting is not None and not waiting.done():
            waiting.set_result(message)


def make_call(destination: str, path: str, interface: str, member: str, kinds: str = "", *values: object) -> Message:
    """Return a method call. `kinds` is the signature of `values`: a variant in them is (signature, value)."""
    return new_method_call(DBusAddress(path, destination, interface), member, kinds or None, values)


def measure_message(head: bytes) -> tuple[int, int]:
    """Return the lengths of the header's fields and of the whole message, which begins with the FIXED bytes `head`.

    The numbers are not checked and can exceed every limit. A first byte other than "l" means big-endian.
    """
    order: Literal["little", "big"] = "little" if head[0] == ord("l") else "big"
    body, fields = (int.from_bytes(head[at : at + 4], order) for at in (4, 12))
    return fields, FIXED + (fields + 7) // 8 * 8 + body
