# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answer method calls: who may call, how often, and what an error is called.

A caller gets an answer, an error of one sentence, or no answer above the rate of calls. `_refuse` handles every error
of a call; unexpected exceptions go to `complain`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from jeepney import Message, MessageFlag, MessageType, new_error, new_method_return

from journalkeeper.bus import names
from journalkeeper.bus.callers import LONG_COST, Caller, Callers
from journalkeeper.bus.connection import Connection, Received
from journalkeeper.bus.contract import join_signatures
from journalkeeper.bus.names import INVALID_ARGS, CallError
from journalkeeper.bus.objects import Call, Objects
from journalkeeper.bus.polkit import authorize
from journalkeeper.model.errors import KeeperError

ERROR_MOST: Final = 1 << 16
"""Characters of an error: a configuration may have many wrong lines."""

INTERACTIVE: Final = MessageFlag.allow_interactive_authorization

LONG: Final = frozenset({"ListFiles", "Plan", "Result"})
"""Methods with long answers."""


class Dispatcher:
    """Answers the method calls over `bus` with the methods of `objects`. `complain` logs an unexpected exception."""

    def __init__(self, objects: Objects, bus: Connection, complain: Callable[[str, Exception], None]) -> None:
        self._objects = objects
        self._bus = bus
        self._callers = Callers(bus.call, bus.name)
        self._complain = complain
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, call: Received) -> None:
        """Start a task that serves a method call, if there is room. Ignore any other message."""
        caller = self._callers.find(call.sender) if call.kind is MessageType.method_call else None
        if caller is not None and self._callers.begin(caller, call.length):
            task = asyncio.get_running_loop().create_task(self._serve(call, caller))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel all calls that are being served. They get no answer, because the connection is gone."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, call: Received, caller: Caller) -> None:
        """Identify the caller, wait as long as the rate of its user demands, and answer the call. Raise only
        CancelledError.
        """
        try:
            async with caller.turn:
                if caller.uid is None:
                    await self._callers.identify(caller)
            cost = LONG_COST if call.member in LONG else 1.0
            wait_s = None if caller.uid is None else self._callers.admit(caller.user, cost)
            if wait_s is not None:
                await asyncio.sleep(wait_s)
                if caller.uid:
                    await self._bus.drain()  # the answers to a crowd do not stand before those to root
                await self._answer(call, caller)
        except Exception as error:  # noqa: BLE001 - every error is answered, and logged if it is unexpected
            self._refuse(call, error)
        finally:
            caller.calls -= 1

    async def _answer(self, call: Received, caller: Caller) -> None:
        method = self._objects.find_method(call.path, call.interface, call.member)
        takes, gives = map(join_signatures, (method.takes, method.gives))
        if takes != call.signature:
            raise CallError(INVALID_ARGS, f"{method.name} takes ({takes}), not ({call.signature})")
        values = call.read()
        if method.action is not None:
            with caller.user.count_long_call():
                await authorize(self._bus.call, caller, method, values, interactive=INTERACTIVE in call.header.flags)
        found = await method.run(self._objects, Call(call.path, caller), *values)
        self._reply(call, new_method_return(call, gives, (found,)) if gives else new_method_return(call))

    def _reply(self, call: Received, answer: Message) -> None:
        if MessageFlag.no_reply_expected not in call.header.flags:
            self._bus.send(answer)

    def _refuse(self, call: Received, error: Exception) -> None:
        """Answer with the error, unless the caller wants no answer. Log an unexpected exception in any case."""
        if isinstance(error, CallError):
            name, text = error.name, str(error)
        elif isinstance(error, KeeperError):
            name, text = names.error_name(error), str(error)
        else:
            said = error.strerror if isinstance(error, OSError) else None
            name, text = names.FAILED, f"{said or 'bug in journalkeeper'}; its log has the traceback"
            self._complain(f"{call.interface}.{call.member} failed", error)
        self._reply(call, new_error(call, name, "s", (names.to_ascii(text)[:ERROR_MOST],)))
