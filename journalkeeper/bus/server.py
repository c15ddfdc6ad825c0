# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service on the system bus: the connection, made again when it is lost, answers to calls, and signals.

The service does not need the bus. Without it the service works on; a bus that comes back finds it with its work, its
jobs and its pause as they were.

A caller gets an answer, an error of one sentence, or no answer above the rate of calls. Signals about events are sent
at once, those about changed properties a few times a second: of each property that differs from what was sent last.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Final

from jeepney import DBusAddress, Message, MessageFlag, message_bus, new_error, new_method_return, new_signal

from journalkeeper.bus import contract, names, objects
from journalkeeper.bus.callers import COST_BYTES, LONG_COST, Caller, Callers
from journalkeeper.bus.connection import Connection, Received
from journalkeeper.model import Result
from journalkeeper.model.errors import KeeperError
from journalkeeper.service.daemon import Daemon
from journalkeeper.service.jobs import Changed, JobAdded, JobRemoved, Notification
from journalkeeper.service.log import WARNING
from journalkeeper.service.snapshot import FileDone

RETRY_S: Final = 5.0
RETRY_MOST_S: Final = 60.0
"""The first and the longest wait before a lost bus is tried again: a host may have no bus. A connection that lasts for
RETRY_MOST_S is reported and begins the waits anew: a bus may end each one soon.
"""

CONNECT_S: Final = 30.0

NAME_TAKEN: Final = f"another process has the name {names.BUS_NAME} on the system bus and gets the calls until it ends"

ERROR_MOST: Final = 1 << 16
"""Characters of an error: a configuration may have many wrong lines."""

COALESCE_S: Final = 0.25


async def serve_bus(service: Daemon, address: str) -> None:
    """Serve the bus at `address` until canceled. Wait for a taken name. Log an error, try again, and log its end."""
    wait_s = RETRY_S
    while True:
        try:
            bus = await asyncio.wait_for(Connection.open(address), CONNECT_S)
            with closing(Server(service, bus)):
                (answer,) = await bus.call(message_bus.RequestName(names.BUS_NAME))
                if answer == 2:  # DBUS_REQUEST_NAME_REPLY_IN_QUEUE: the bus hands it over later
                    service.log.log("name", WARNING, NAME_TAKEN)
                service.bus_was_tried.set()
                await asyncio.wait((bus.ended,), timeout=RETRY_MOST_S)
                if not bus.ended.done():
                    service.log.log_end("bus", "connected to the system bus again")
                    wait_s = RETRY_S
                raise await bus.ended
        except Exception as error:  # noqa: BLE001 - a library of many releases has many; all of them are logged
            why = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            sentence = f"no connection to the system bus ({address}): {why}; the service works without it"
            # The bus's refusal of the name has the number of the connection.
            service.log.log("bus", WARNING, sentence, same=type(error).__name__)
            service.bus_was_tried.set()
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, RETRY_MOST_S)


class Server:
    """Answers the method calls over `bus` with the methods of the service's objects, and sends signals about their
    changes, until `close`. The first change sends all properties.
    """

    def __init__(self, service: Daemon, bus: Connection) -> None:
        self._service = service
        self._bus = bus
        self._callers = Callers(bus)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._sent: dict[str, contract.Values] = {}
        bus.handle = self.handle
        service.followers.append(self.follow)

    def close(self) -> None:
        """Stop following the service, cancel running calls and unsent signals, and close the connection: only once."""
        self._service.followers.remove(self.follow)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._bus.close()

    # -- Calls ---------------------------------------------------------------------------------

    def handle(self, call: Received) -> None:
        """Start a task that serves a method call. Drop, without an answer, a call that Callers.accept refuses."""
        caller = self._callers.accept(call.sender, call.length)
        if caller is not None:
            task = asyncio.get_running_loop().create_task(self._serve_call(call, caller))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve_call(self, call: Received, caller: Caller) -> None:
        """Answer the call, unless its caller is unknown or far above the rate. Raises only CancelledError.

        Wait before as long as the rate requires and, except for root, until earlier answers are sent.
        """
        try:
            async with caller.turn:
                if caller.uid is None:
                    await self._callers.identify(caller)
            cost = (LONG_COST if call.member in {"ListFiles", "Plan", "Result"} else 1.0) + call.length / COST_BYTES
            wait_s = None if caller.uid is None else self._callers.admit(caller.user, cost)
            if wait_s is not None:
                await asyncio.sleep(wait_s)
                if caller.uid:
                    await self._bus.drain()  # the answers to a crowd do not stand before those to root
                await self._run_and_reply(call, caller)
        except Exception as error:  # noqa: BLE001 - every error is answered, and logged if it is unexpected
            self._reply_error(call, error)

    async def _run_and_reply(self, call: Received, caller: Caller) -> None:
        """Authorize and run the method, and send its result. Raises: CallError if wrong or refused; as the method."""
        method = objects.find_method(self._service, call.path, call.interface, call.member)
        takes, gives = map(contract.join_signatures, (method.takes, method.gives))
        if takes != call.signature:
            raise names.CallError(names.INVALID_ARGS, f"{method.name} takes ({takes}), not ({call.signature})")
        values = call.read()
        if method.action is not None:
            interactive = MessageFlag.allow_interactive_authorization in call.header.flags
            await self._callers.authorize(caller, method.action, interactive=interactive)
        found = await method.run(self._service, call.path, caller, *values)
        self._reply(call, new_method_return(call, gives, (found,)) if gives else new_method_return(call))

    def _reply(self, call: Received, answer: Message) -> None:
        """Send the answer, unless the call wants none. Raises: as Connection.send."""
        if MessageFlag.no_reply_expected not in call.header.flags:
            self._bus.send(answer)

    def _reply_error(self, call: Received, error: Exception) -> None:
        """Answer with the error. Log any but CallError and KeeperError as a bug; its text is strerror or "bug ..."."""
        name, text = names.error_name(error), str(error)
        if not isinstance(error, names.CallError | KeeperError):
            said = error.strerror if isinstance(error, OSError) else None
            text = f"{said or 'bug in journalkeeper'}; its log has the traceback"
            self._service.log.log_bug(f"{call.interface}.{call.member} failed", error)
        self._reply(call, new_error(call, name, "s", (names.to_ascii(text)[:ERROR_MOST],)))

    # -- Signals -------------------------------------------------------------------------------

    def follow(self, notification: Notification) -> None:
        """Send the signal for a notification, of a file only if it was rewritten. Send changes after COALESCE_S."""
        match notification:
            case Changed() if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(COALESCE_S, self._send_changes)
            case JobAdded(job):
                self._send_signal(contract.JOB_NEW, job.number, names.job_path(job.number))
            case JobRemoved(job, result):
                self._send_signal(contract.JOB_REMOVED, job.number, names.job_path(job.number), result)
            case FileDone(outcome, _) if outcome.result is Result.DONE and outcome.bytes_written:
                facts = (outcome.extents_before, outcome.extents_after, outcome.bytes_written, outcome.reclaimed_bytes)
                self._send_signal(contract.FILE_DEFRAGMENTED, names.to_ascii(outcome.path), *facts)

    def _send_changes(self) -> None:
        """Send a signal for each object, with the properties that differ from those sent last: all of a new object."""
        self._timer = None
        tree = objects.make_tree(self._service)
        before, self._sent = self._sent, {path: read() for path, (_, read) in tree.items()}
        for path, values in self._sent.items():
            changed = {name: value for name, value in values.items() if value != before.get(path, {}).get(name)}
            if changed:
                self._send_signal(contract.PROPERTIES_CHANGED, tree[path][0].name, changed, [], path=path)

    def _send_signal(self, signal: contract.Signal, *values: object, path: str = names.MANAGER_PATH) -> None:
        address = DBusAddress(path, interface=signal.interface)
        self._bus.send(new_signal(address, signal.name, contract.join_signatures(signal.takes), values))
