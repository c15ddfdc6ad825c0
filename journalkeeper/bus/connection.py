# SPDX-License-Identifier: LGPL-2.1-or-later
"""dbus-fast's connection, made fit for a service that strangers may talk to.

The one rule: whatever a stranger sends or leaves unread, the connection stays, messages go
out in their order, and each turn of the event loop is a short one.

What is mended here of dbus-fast, up to 5.2 at least unless said otherwise:
- a socket that takes no more (EAGAIN) ends the connection, as in dbus-next #153;
- objects are made of whatever anybody sends (inlet.py);
- 1.84 sends what waits in the opposite order, and reads as long as there is something to read (inlet.py);
- 1.84 keeps a tree for every signature that it was ever sent;
- 1.84 ends the connection when a message has two flags, as busctl's may, and keeps the socket.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable
from socket import socket
from typing import Any, Final

from dbus_fast import Message, MessageFlag, constants, signature
from dbus_fast.aio import MessageBus

from journalkeeper.bus.inlet import Inlet

SIGNATURES_MOST: Final = 1000
WAITING_MOST: Final = 10_000
STALLED_S: Final = 30.0
"""Messages that the bus does not take, and for how long; after that the connection is made anew.

A bus stops reading from us while 127 MiB of ours wait for callers who do not read (max_incoming_bytes).
"""

DRAIN_S: Final = 0.01

_KNOWN_FLAGS: Final[dict[int, MessageFlag]] = getattr(constants, "MESSAGE_FLAG_MAP", {})
for _flags in range(1 << 8):
    _KNOWN_FLAGS.setdefault(_flags, MessageFlag(_flags))


class Connection(MessageBus):
    """A MessageBus at `address`."""

    def __init__(self, address: str) -> None:
        super().__init__(bus_address=address)
        self._waiting: deque[Message] = deque()
        self._sending = False
        self._blocked_s = 0.0
        self._cached: Any = signature.get_signature_tree

    @property
    def _own(self) -> Any:
        """The library's private parts, whose types differ from release to release."""
        return self

    async def _authenticate(self) -> None:
        """Introduce ourselves; what is read from then on are messages."""
        await super()._authenticate()
        self._own._sock = self._own._stream = Inlet(self._own._sock, self._loop)

    def close(self) -> None:
        """End the connection, in whatever state it is; the bus then gives the name to the next."""
        sock = self._own._sock
        if sock is None or sock.fileno() < 0:
            return
        self._loop.remove_reader(sock)
        self._loop.remove_writer(sock)
        if self.connected:
            self.disconnect()
        sock.close()

    def add_careful_handler(self, handle: Callable[[Message], bool]) -> None:
        """Call `handle` with each message; True if that was all there is to do about it."""

        def handler(message: Message) -> bool:
            if self._cached.cache_info().currsize > SIGNATURES_MOST:
                self._cached.cache_clear()
            return handle(message)

        self.add_message_handler(handler)

    def send(self, msg: Message) -> asyncio.Future[None]:  # type: ignore[override]  # its own two differ, too
        """Send a message after those that wait. What it returns says nothing: whoever waits, waits for a reply."""
        if not msg.serial:
            msg.serial = self.next_serial()
        self._waiting.append(msg)
        if not self._sending:
            self._send_on()
        stalled = self._sending and self._loop.time() - self._blocked_s > STALLED_S
        if (stalled or len(self._waiting) > WAITING_MOST) and self.connected:
            self.disconnect()
        taken: asyncio.Future[None] = self._loop.create_future()
        taken.set_result(None)
        return taken

    async def drained(self) -> None:
        """Wait a turn of the event loop, and until the bus has taken what there is."""
        await asyncio.sleep(0)
        while self._waiting or self._sending:
            await asyncio.sleep(DRAIN_S)

    def _send_on(self) -> None:
        """Hand the library one message after the other, each only when the socket takes some of it."""
        self._sending = False
        while self._waiting and not self._disconnected:
            if not _writable(self._own._sock):
                self._sending, self._blocked_s = True, self._loop.time()
                self._loop.add_writer(self._own._fd, self._writable_again)
                return
            sent = super().send(self._waiting.popleft())
            if not sent.done():
                self._sending, self._blocked_s = True, self._loop.time()
                sent.add_done_callback(self._sent)
                return
            _failure(sent)

    def _writable_again(self) -> None:
        self._loop.remove_writer(self._own._fd)
        self._send_on()

    def _sent(self, sent: asyncio.Future[Any]) -> None:
        _failure(sent)
        self._send_on()


def _writable(one: socket) -> bool:
    """Whether the socket takes at least a part of a message now. Source: unix_writable() in net/unix/af_unix.c."""
    poll = select.poll()
    poll.register(one, select.POLLOUT)
    return bool(poll.poll(0))


def _failure(sent: asyncio.Future[Any]) -> None:
    """What was not sent is lost with the connection, whose end is told elsewhere."""
    if not sent.cancelled():
        sent.exception()
