# SPDX-License-Identifier: LGPL-2.1-or-later
"""The connection to the system bus: made, kept, and made again.

The service does not need it. Without a bus it works on; a bus that comes back
finds it with its work, its jobs and its pause as they were.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Final

from journalkeeper.bus import names
from journalkeeper.bus.connection import Connection, bus_call
from journalkeeper.bus.dispatch import Dispatcher
from journalkeeper.bus.objects import Objects
from journalkeeper.bus.signals import Signals
from journalkeeper.service.daemon import Daemon
from journalkeeper.service.log import WARNING

FIRST_S: Final = 0.5
"""After this time a lost bus is tried again, ..."""

MOST_S: Final = 60.0
"""... each time after twice as long, up to this, until a connection lasts."""

CONNECT_S: Final = 30.0

IN_QUEUE: Final = 2
"""RequestName's answer if another connection has the name. Source: D-Bus specification, "org.freedesktop.DBus"."""


async def serve_bus(service: Daemon, address: str) -> None:
    """Serve the bus at `address` until this task is canceled. After an error, log a warning and connect again."""
    wait_s = FIRST_S
    while True:
        began_s = time.monotonic()
        try:
            await _serve_connection(service, address)
        except Exception as error:  # noqa: BLE001 - a library of many releases has many; all of them are logged
            why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            sentence = f"no connection to the system bus ({address}): {why}; the service works without it"
            service.log.log("bus", WARNING, sentence)
        if time.monotonic() - began_s > MOST_S:
            wait_s = FIRST_S
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, MOST_S)


async def _serve_connection(service: Daemon, address: str) -> None:
    """Serve calls and send signals until the connection ends, also while the process waits for the bus name.

    Raises: the error that ended the connection; TimeoutError after CONNECT_S; the errors of `Connection.open`;
    CallError if the bus refuses the name.
    """
    async with asyncio.timeout(CONNECT_S):
        bus = await Connection.open(address)
    with ExitStack() as undo:
        undo.callback(bus.close)
        objects = Objects(service)
        dispatcher = Dispatcher(objects, bus, service.log.log_bug)
        undo.callback(dispatcher.close)
        signals = Signals(objects, bus.send, service.log.log_bug)
        undo.callback(signals.close)
        service.followers.append(signals.follow)
        undo.callback(service.followers.remove, signals.follow)
        bus.handle = dispatcher.handle
        if await bus.call(bus_call("RequestName", "su", names.BUS_NAME, 0)) == (IN_QUEUE,):
            words = f"another process has the name {names.BUS_NAME} on the bus; it is ours when that one ends"
            service.log.log("bus", WARNING, words)
        else:
            service.log.log_end("bus", "connected to the system bus again")
        raise await bus.ended
