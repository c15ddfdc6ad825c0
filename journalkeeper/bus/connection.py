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
"""Bytes that wait for the bus, and how long one message may take; above either the connection is made anew."""

DESCRIPTORS: Final = False
"""Whether messages carry any: ours do not."""


class Connection(MessageBus):
    """A connection to the bus at `address`, with limits for the size of messages and queues.

    `on_sent` is called with the number of bytes of each message that is sent to one connection.
    """

    def __init__(self, address: str) -> None:
        super().__init__(bus_address=address)
        self._queue: deque[bytes] = deque()
        self._queue_bytes = 0
        self._writing: asyncio.Task[None] | None = None
        self._cached: Any = signature.get_signature_tree
        self.on_sent: Callable[[int], None] | None = None

    @property
    def _own(self) -> Any:
        """This object, typed as Any, for access to private attributes of the library.

        Their types differ between the library's releases.
        """
        return self

    async def _authenticate(self) -> None:
        """Authenticate as the library does, then put a SizeGuard in place of the socket.

        From then on, messages that are too long are dropped. Before, the bus sends lines of text, which have no length
        field.
        """
        await super()._authenticate()
        self._own._sock = self._own._stream = SizeGuard(self._own._sock, self._loop)

    def close(self, error: Exception | None = None) -> None:
        """Close the connection at once, in any state, and discard unsent messages.

        The library passes `error` on as the reason. The bus then gives the name to the next owner.
        """
        if self._writing is not None:
            self._writing.cancel()
        self._queue.clear()
        sock = self._own._sock
        if sock is not None and sock.fileno() >= 0:
            self._own._finalize(error)
            sock.close()

    def add_careful_handler(self, handle: Callable[[Message], bool]) -> None:
        """Have `handle` called with each message. It returns True if the library need not process the message.

        The library's cache of signatures is cleared when it becomes too large.
        """

        def handler(message: Message) -> bool:
            if self._cached.cache_info().currsize > SIGNATURES_MOST:
                self._cached.cache_clear()
            return handle(message)

        self.add_message_handler(handler)

    def send(self, msg: Message) -> asyncio.Future[None]:  # type: ignore[override]  # its own two differ, too
        """Queue a message behind those that are not sent yet. Return a future that is already done.

        If more than QUEUE_MOST bytes are queued, the connection is closed.

        Raises: CallError if the message is too long; the library's errors if its values do not fit their signature.
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
        self._queue.append(data)
        self._queue_bytes += len(data)
        if self.on_sent is not None and (msg.destination or "").startswith(":"):
            self.on_sent(len(data))
        if self._queue_bytes > QUEUE_MOST:
            self._loop.call_soon(self.close, ConnectionResetError("the bus does not take what is sent"))
        elif self._writing is None:
            self._writing = self._loop.create_task(self._write())
        return taken

    async def _write(self) -> None:
        """Send all queued messages. Close the connection if the bus does not take one within STALLED_S."""
        try:
            while self._queue:
                data = self._queue.popleft()
                await asyncio.wait_for(self._loop.sock_sendall(self._own._sock, data), STALLED_S)
                self._queue_bytes -= len(data)
        except TimeoutError:
            self._loop.call_soon(self.close, ConnectionResetError(f"the bus has taken nothing for {STALLED_S:g} s"))
        except OSError as error:
            self._loop.call_soon(self.close, error)
        finally:
            self._writing = None


def marshal(message: Message) -> bytes:
    """Return the bytes of a message in D-Bus's format, ready to be sent."""
    private: Any = message
    return bytes(private._marshall(DESCRIPTORS))
