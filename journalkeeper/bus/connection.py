# SPDX-License-Identifier: LGPL-2.1-or-later
"""dbus-fast's connection, hardened for a service that any user may call.

Whatever a stranger sends or leaves unread, the connection stays, messages go
out in their order, and each turn of the event loop is a short one.

Writing and the end of the connection are our own, because of what releases of dbus-fast do:
- a socket that takes no more (EAGAIN) ends the connection, as in dbus-next #153, up to 5.2 at least;
- disconnect() closes the descriptor under the event loop, and wait_for_disconnect() never returns: 2.44.

Reading is mended where it is:
- objects are made of whatever anybody sends (size_guard.py);
- it goes on until what was read ends where a message does (size_guard.py), and up to 4.0 at least a tree is kept
  for every signature that was ever sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from dbus_fast import Message, signature
from dbus_fast.aio import MessageBus

from journalkeeper.bus.callers import CallError
from journalkeeper.bus.names import LIMITS_EXCEEDED
from journalkeeper.bus.size_guard import SizeGuard

SIGNATURES_MOST: Final = 1000
MESSAGE_MOST: Final = 16 << 20
"""Bytes of one message. A bus ends a connection that sends more than 32 MiB (max_message_size)."""

QUEUE_MOST: Final = 64 << 20
STALLED_S: Final = 30.0
"""Bytes that the bus does not take, and for how long it takes none at all; after that the connection is made anew."""

DESCRIPTORS: Final = False
"""Whether messages carry any: ours do not."""


class Connection(MessageBus):
    """A MessageBus at `address`; `on_sent` is called with the name and the bytes of each message to one connection."""

    def __init__(self, address: str) -> None:
        super().__init__(bus_address=address)
        self._queue: deque[memoryview] = deque()
        self._queue_bytes = 0
        self._writing = False
        self._stall: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._cached: Any = signature.get_signature_tree
        self.on_sent: Callable[[str, int], None] | None = None

    @property
    def _own(self) -> Any:
        """The library's private parts, whose types differ from release to release."""
        return self

    async def _authenticate(self) -> None:
        """Introduce ourselves; what is read from then on are messages."""
        await super()._authenticate()
        self._own._sock = self._own._stream = SizeGuard(self._own._sock, self._loop)

    def close(self, error: Exception | None = None) -> None:
        """End the connection, in whatever state it is, because of `error`; the bus gives the name to the next."""
        self._stop_writing()
        self._queue.clear()
        self._queue_bytes = 0
        self._empty.set()
        sock = self._own._sock
        if sock is None or sock.fileno() < 0:
            return
        self._own._finalize(error)
        sock.close()

    def add_careful_handler(self, handle: Callable[[Message], bool]) -> None:
        """Call `handle` with each message; True if that was all there is to do about it."""

        def handler(message: Message) -> bool:
            if self._cached.cache_info().currsize > SIGNATURES_MOST:
                self._cached.cache_clear()
            return handle(message)

        self.add_message_handler(handler)

    def send(self, msg: Message, elements: bytes | bytearray = b"") -> asyncio.Future[None]:  # type: ignore[override]  # its own two differ, too
        """Send a message after those that wait; `elements` are put into the empty array that is its body.

        What it returns says nothing: whoever waits, waits for a reply.

        Raises: CallError if it is too long; what the library raises if its values do not fit their signature.
        """
        if not msg.serial:
            msg.serial = self.next_serial()
        data = _announcing(marshalled(msg), len(elements)) if elements else marshalled(msg)
        size = len(data) + len(elements)
        if size > MESSAGE_MOST:
            raise CallError(LIMITS_EXCEEDED, f"the answer would have more than {MESSAGE_MOST >> 20} MiB; ask for less")
        taken: asyncio.Future[None] = self._loop.create_future()
        taken.set_result(None)
        if self._disconnected:
            return taken
        self._queue += [memoryview(part) for part in (data, elements) if part]
        self._queue_bytes += size
        self._empty.clear()
        if self.on_sent is not None and (msg.destination or "").startswith(":"):
            self.on_sent(msg.destination or "", size)
        if self._queue_bytes > QUEUE_MOST:
            self._loop.call_soon(self.close, ConnectionResetError("the bus does not take what is sent"))
        elif not self._writing:
            self._write()
        return taken

    async def drained(self) -> None:
        """Wait a turn of the event loop, and until the bus has taken what there is."""
        await asyncio.sleep(0)
        await self._empty.wait()

    def _write(self) -> None:
        """Have the socket take what it takes, and go on when it takes more."""
        taken = 0
        try:
            while self._queue:
                sent = self._own._sock.send(self._queue[0])
                taken += sent
                if sent < len(self._queue[0]):
                    self._queue[0] = self._queue[0][sent:]
                else:
                    self._queue.popleft()
        except BlockingIOError:
            pass  # the event loop tells when it takes more
        except OSError as error:
            self._stop_writing()
            self._loop.call_soon(self.close, error)
            return
        self._queue_bytes -= taken
        if not self._queue:
            self._stop_writing()
            self._empty.set()
        elif taken or not self._writing:
            self._stop_writing()
            self._writing = True
            self._loop.add_writer(self._own._fd, self._write)
            stalled = ConnectionResetError(f"the bus has taken nothing for {STALLED_S:g} s")
            self._stall = self._loop.call_later(STALLED_S, self.close, stalled)

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._own._fd)
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def marshalled(message: Message) -> bytes:
    """A message as it goes over the wire."""
    private: Any = message
    return bytes(private._marshall(DESCRIPTORS))


def element(signature_: str, value: Any) -> bytes:
    """`value`, an array with one element of 8-byte alignment (a structure or dictionary entry), without its length."""
    data = marshalled(Message(path="/", interface="a.b", member="c", signature=signature_, body=[value], serial=1))
    return data[len(data) - int.from_bytes(data[4:8], "little") + 8 :]


def _announcing(data: bytes, size: int) -> bytes:
    """A marshalled message whose body is an empty array of such elements, up to the elements, of `size` bytes.

    Source: D-Bus specification, "Message Format": a body begins at a multiple of 8 bytes.
    """
    header = len(data) - int.from_bytes(data[4:8], "little")
    return data[:4] + (8 + size).to_bytes(4, "little") + data[8:header] + size.to_bytes(4, "little") + bytes(4)
