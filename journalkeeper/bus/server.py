# SPDX-License-Identifier: LGPL-2.1-or-later
"""The connection to the system bus: made, kept, and made again.

The service does not need it. Without a bus it works on; a bus that comes back
finds it with its work, its jobs and its pause as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Final

from dbus_fast import Message, NameFlag, RequestNameReply

from journalkeeper.bus import names
from journalkeeper.bus.callers import BUS, Callers
from journalkeeper.bus.connection import Connection
from journalkeeper.bus.dispatch import Dispatcher, Service
from journalkeeper.bus.objects import Objects
from journalkeeper.bus.polkit import Authority
from journalkeeper.bus.signals import Signals

FIRST_S: Final = 0.5
"""After this time a lost bus is tried again, ..."""

MOST_S: Final = 60.0
"""... each time after twice as long, up to this, until a connection has lasted longer than that."""

CONNECT_S: Final = 30.0


class Server:
    """Keeps `service` on the bus at `address`, and connects again when the connection ends.

    `trouble` is called with the reason why there is no bus, maybe repeatedly. `well` is called when it is back, and
    `complain` to log an unexpected exception.
    """

    def __init__(
        self,
        service: Service,
        address: str,
        trouble: Callable[[str], None],
        well: Callable[[], None],
        complain: Callable[[str, Exception], None],
    ) -> None:
        self._service = service
        self._address = address
        self._trouble = trouble
        self._well = well
        self._complain = complain
        self._bus: Connection | None = None
        self._wait_s = FIRST_S

    async def run(self) -> None:
        """Serve the bus until this task is canceled. Connect again after each error, with a growing delay."""
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                await self._serve()
            except Exception as error:  # noqa: BLE001 - a library of many releases has many; all of them are logged
                self._trouble(f"no system bus{self._why(error)}; the service works without it")
            if clock() - began_s > self._wait_s:
                self._wait_s = FIRST_S
            await asyncio.sleep(self._wait_s)
            self._wait_s = min(2 * self._wait_s, MOST_S)

    def _why(self, error: Exception) -> str:
        """Return why there is no bus, as the end of a sentence: " (... is not there)" or ": ..."."""
        if isinstance(error, FileNotFoundError):
            return f" ({self._address.removeprefix('unix:path=')} is not there)"
        what = error.strerror if isinstance(error, OSError) else None
        return f": {what or str(error) or f'the connection ended ({type(error).__name__})'}"

    async def _serve(self) -> None:
        """Connect to the bus, and serve calls and send signals until the connection ends.

        Raises: the error that ended the connection.
        """
        bus = Connection(self._address)
        interfaces: Dispatcher | None = None
        following = ExitStack()
        try:
            await asyncio.wait_for(bus.connect(), CONNECT_S)
            self._bus = bus
            objects = Objects(self._service.snapshot, self._service.jobs)
            callers = Callers(self._ask, bus.unique_name or "")
            bus.on_sent = callers.count_sent
            authority = Authority(self._ask)
            send, complain = self._send, self._complain
            interfaces = Dispatcher(self._service, objects, callers, authority, send=send, complain=complain)
            bus.add_careful_handler(interfaces.handle)
            signals = Signals(objects, self._service.jobs, send=send, complain=complain)
            queue = following.enter_context(self._service.events.follow())
            following.callback(asyncio.ensure_future(signals.follow(queue)).cancel)
            following.callback(signals.close)
            bus.add_careful_handler(self._hear)
            reply = await bus.request_name(names.BUS_NAME, NameFlag.NONE)
            if reply is RequestNameReply.IN_QUEUE:
                self._trouble(
                    f"another process has the name {names.BUS_NAME} on the bus; it is ours when that one ends"
                )
            disconnected: Callable[[], Awaitable[None]] = bus.wait_for_disconnect
            await disconnected()
            raise ConnectionResetError("the bus has gone away")
        finally:
            following.close()
            if interfaces is not None:
                interfaces.close()
            self._bus = None
            bus.close()

    def _hear(self, message: Message) -> bool:
        """Note the bus's signal that this service owns its name."""
        if message.sender == BUS and message.member == "NameAcquired" and message.body == [names.BUS_NAME]:
            self._well()
        return False

    def _send(self, message: Message) -> None:
        """Send the message if the bus is connected; otherwise drop it."""
        if self._bus is not None and self._bus.connected:
            self._bus.send(message)

    async def _ask(self, message: Message) -> Message | None:
        """Call a method and return its answer; None if the bus goes away."""
        try:
            return None if self._bus is None else await self._bus.call(message)
        except (OSError, EOFError):
            return None
