# SPDX-License-Identifier: LGPL-2.1-or-later
"""dbus-fast's connection, hardened for a service that any user may call.

Whatever a caller sends or leaves unread, the connection stays, messages go
out in their order, and each turn of the event loop is a short one.

Writing and the end of the connection are our own, because of what releases of dbus-fast do:
- a socket that takes no more (EAGAIN) ends the connection, as in dbus-next #153, up to 5.2 at least;
- disconnect() closes the descriptor under the event loop, and wait_for_disconnect() never returns: 2.44.

Reading is the library's own, less what size_guard.py drops. Up to 4.0 at least the library keeps a tree for every
signature that was ever sent, so the tree cache is cleared when it is long.
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
MESSAGE_MOST: Final = 1 << 20
"""Bytes of one message."""

QUEUE_MOST: Final = 64 << 20
STALLED_S: Final = 30.0
"""Bytes that wait for the bus, and how long it takes none at all; above either the connection is made anew."""

DESCRIPTORS: Final = False
"""Whether messages carry any: ours do not."""


class Connection(MessageBus):
    """A MessageBus at `address`; `on_sent` is called with the bytes of each message to one connection."""

    def __init__(self, address: str) -> None:
        super().__init__(bus_address=address)
        self._queue: deque[memoryview] = deque()
        self._queue_bytes = 0
        self._writing = False
        self._stall: asyncio.TimerHandle | None = None
        self._cached: Any = signature.get_signature_tree
        self.on_sent: Callable[[int], None] | None = None

    @property
    def _own(self) -> Any:
        """This object as Any, because the types of the library's private parts differ from release to release."""
        return self

    async def _authenticate(self) -> None:
        """Authenticate; from then on only messages are read, and their size is guarded."""
        await super()._authenticate()
        self._own._sock = self._own._stream = SizeGuard(self._own._sock, self._loop)

    def close(self, error: Exception | None = None) -> None:
        """Close the connection because of `error`, in any state, so that the bus gives the name to the next owner."""
        self._stop_writing()
        self._queue.clear()
        self._queue_bytes = 0
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

    def send(self, msg: Message) -> asyncio.Future[None]:  # type: ignore[override]  # its own two differ, too
        """Send a message after those that wait. The future that is returned is done already.

        Raises: CallError if it is too long; what the library raises if its values do not fit their signature.
        """
        if not msg.serial:
            msg.serial = self.next_serial()
        data = marshal(msg)
        if len(data) > MESSAGE_MOST:
            raise CallError(LIMITS_EXCEEDED, f"the answer would have more than {MESSAGE_MOST >> 20} MiB; ask for less")
        taken: asyncio.Future[None] = self._loop.create_future()
        taken.set_result(None)
        if self._disconnected:
            return taken
        self._queue.append(memoryview(data))
        self._queue_bytes += len(data)
        if self.on_sent is not None and (msg.destination or "").startswith(":"):
            self.on_sent(len(data))
        if self._queue_bytes > QUEUE_MOST:
            self._loop.call_soon(self.close, ConnectionResetError("the bus does not take what is sent"))
        elif not self._writing:
            self._write()
        return taken

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


def marshal(message: Message) -> bytes:
    """Return a message as it goes over the wire."""
    private: Any = message
    return bytes(private._marshall(DESCRIPTORS))
