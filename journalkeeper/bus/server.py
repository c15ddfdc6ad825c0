# SPDX-License-Identifier: LGPL-2.1-or-later
"""The connection to the system bus: made, kept, and made again.

The service does not need it. Without a bus it works on; a bus that comes back
finds it with its work, its jobs and its pause as they were.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Final

from dbus_fast import Message

from journalkeeper.bus import names
from journalkeeper.bus.connection import Connection, bus_call
from journalkeeper.bus.dispatch import Dispatcher
from journalkeeper.bus.objects import Objects
from journalkeeper.bus.signals import Signals
from journalkeeper.service.daemon import Daemon
from journalkeeper.service.jobs import Event
from journalkeeper.service.log import WARNING

FIRST_S: Final = 0.5
"""After this time a lost bus is tried again, ..."""

MOST_S: Final = 60.0
"""... each time after twice as long, up to this, until the service has its name again."""

CONNECT_S: Final = 30.0

IN_QUEUE: Final = 2
"""RequestName's answer if another connection has the name. Source: D-Bus specification, "org.freedesktop.DBus"."""


class Server:
    """Keeps `service` on the bus at `address`, and connects again when the connection ends."""

    def __init__(self, service: Daemon, address: str) -> None:
        self._service = service
        self._log = service.log
        self._address = address
        self._wait_s = FIRST_S

    async def run(self) -> None:
        """Serve the bus until this task is canceled. Connect again after each error, with a growing delay."""
        while True:
            try:
                await self._serve()
            except Exception as error:  # noqa: BLE001 - a library of many releases has many; all of them are logged
                why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
                self._log.log(
                    "bus",
                    WARNING,
                    f"cannot connect to the system bus ({self._address}): {why}; the service works without it",
                )
            await asyncio.sleep(self._wait_s)
            self._wait_s = min(2 * self._wait_s, MOST_S)

    async def _serve(self) -> None:
        """Connect to the bus, and serve calls and send signals until the connection ends.

        Raises: the error that ended the connection.
        """
        async with asyncio.timeout(CONNECT_S):
            bus = await Connection.open(self._address)
        with ExitStack() as undo:
            undo.callback(bus.close)
            objects = Objects(self._service)
            dispatcher = Dispatcher(objects, bus, self._log.log_bug)
            undo.callback(dispatcher.close)
            signals = Signals(objects, bus.send, self._log.log_bug)
            undo.callback(signals.close)
            queue: asyncio.Queue[Event] = asyncio.Queue()
            self._service.events.followers.append(queue)
            undo.callback(self._service.events.followers.remove, queue)
            undo.callback(asyncio.ensure_future(signals.follow(queue)).cancel)

            def handle(message: Message) -> None:
                if (
                    message.sender == names.BUS
                    and message.body == [names.BUS_NAME]
                    and message.member == "NameAcquired"
                ):
                    self._wait_s = FIRST_S
                    self._log.log_end("bus", "connected to the system bus again")
                else:
                    dispatcher.handle(message)

            bus.handle = handle
            if await bus.call(bus_call("RequestName", "su", names.BUS_NAME, 0)) == [IN_QUEUE]:
                words = f"another process has the name {names.BUS_NAME} on the bus; it is ours when that one ends"
                self._log.log("bus", WARNING, words)
            raise await bus.ended
