# SPDX-License-Identifier: LGPL-2.1-or-later
"""The connection to the system bus: made, kept, and made again.

The service does not need it. Without a bus it works on; a bus that comes back
finds it with its work, its jobs and its pause as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from dbus_fast import Message

from journalkeeper.bus import names
from journalkeeper.bus.callers import Callers
from journalkeeper.bus.connection import Connection, bus_call
from journalkeeper.bus.dispatch import Dispatcher
from journalkeeper.bus.objects import Objects, Service
from journalkeeper.bus.polkit import Authority
from journalkeeper.bus.signals import Signals

FIRST_S: Final = 0.5
"""After this time a lost bus is tried again, ..."""

MOST_S: Final = 60.0
"""... each time after twice as long, up to this, until a connection has lasted longer than that."""

CONNECT_S: Final = 30.0

IN_QUEUE: Final = 2
"""RequestName's answer if another connection has the name. Source: D-Bus specification, "org.freedesktop.DBus"."""


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
        async with asyncio.timeout(CONNECT_S):
            bus = await Connection.open(self._address)
        with ExitStack() as undo:
            undo.callback(bus.close)
            objects = Objects(self._service)
            callers, authority = Callers(bus.call, bus.name), Authority(bus.call)
            both: Any = {"send": bus.send, "complain": self._complain}
            dispatcher = Dispatcher(objects, callers, authority, **both)
            undo.callback(dispatcher.close)
            signals = Signals(objects, **both)
            undo.callback(signals.close)
            queue = undo.enter_context(self._service.events.follow())
            undo.callback(asyncio.ensure_future(signals.follow(queue)).cancel)

            def handle(message: Message) -> None:
                if (
                    message.sender == names.BUS
                    and message.body == [names.BUS_NAME]
                    and message.member == "NameAcquired"
                ):
                    self._well()
                else:
                    dispatcher.handle(message)

            bus.handle = handle
            if await bus.call(bus_call("RequestName", "su", names.BUS_NAME, 0)) == [IN_QUEUE]:
                self._trouble(
                    f"another process has the name {names.BUS_NAME} on the bus; it is ours when that one ends"
                )
            raise await bus.ended
