# SPDX-License-Identifier: LGPL-2.1-or-later
"""Look up and answer method calls.

The dispatcher only delegates. A caller gets an answer, an error of one sentence, or no answer above the rate of calls.
`_refuse` handles every error of a call; unexpected exceptions go to `complain`. Calls are looked up in the contract's
tables. dbus-fast's own ServiceInterface is not used: old releases answer with tracebacks.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final, Protocol

from dbus_fast import Message, MessageFlag, MessageType

from journalkeeper.bus import contract, names, options
from journalkeeper.bus.callers import CALLS_MOST, LONG_COST, Caller, Callers
from journalkeeper.bus.contract import Method
from journalkeeper.bus.names import CallError
from journalkeeper.bus.objects import Objects, Values, list_files, write_document
from journalkeeper.bus.options import shorten
from journalkeeper.bus.polkit import Authority
from journalkeeper.model import Request
from journalkeeper.model.errors import BusyError, KeeperError, NoSuchJobError
from journalkeeper.model.units import U64_MAX
from journalkeeper.service.jobs import Events, Jobs
from journalkeeper.service.snapshot import Snapshot

ERROR_MOST: Final = 1 << 16
"""Characters of an error: a configuration may have many wrong lines."""

LONG: Final = frozenset({"ListFiles", "Plan", "Result"})
"""Methods with long answers."""

DBUS_ERROR: Final = f"{names.BUS}.Error"
SILENT: Final = MessageFlag.NO_REPLY_EXPECTED.value


class Service(Protocol):
    """The methods of the daemon that callers can use over the bus."""

    jobs: Jobs
    events: Events

    def snapshot(self) -> Snapshot: ...
    async def refresh(self) -> None: ...
    async def plan(self, request: Request) -> dict[str, Any]: ...
    def pause(self, span_us: int) -> None: ...
    def resume(self) -> None: ...
    def rescan(self) -> None: ...
    async def reload(self) -> None: ...


class Dispatcher:
    """Answers method calls with the methods of `service` and the objects in `objects`.

    `callers` has the users and their limits, `authority` asks polkit. `send` sends an answer, and `complain` logs an
    unexpected exception.
    """

    def __init__(
        self,
        service: Service,
        objects: Objects,
        callers: Callers,
        authority: Authority,
        *,
        send: Callable[[Message], object],
        complain: Callable[[str, Exception], None],
    ) -> None:
        self._service = service
        self._objects = objects
        self._callers = callers
        self._authority = authority
        self._send = send
        self._complain = complain
        self._tasks: set[asyncio.Task[None]] = set()
        self._methods: dict[tuple[str, str], Callable[[Message, Caller], Any]] = {
            (names.PROPERTIES, "Get"): self._get,
            (names.PROPERTIES, "GetAll"): lambda call, _: self._values(call),
            (names.INTROSPECTABLE, "Introspect"): self._introspect,
            (names.PEER, "Ping"): lambda *_: None,
            (names.MANAGER, "ListFiles"): self._list_files,
            (names.MANAGER, "Plan"): self._plan,
            (names.MANAGER, "Result"): self._result,
            (names.MANAGER, "Defragment"): self._defragment,
            (names.MANAGER, "Cancel"): lambda call, _: service.jobs.cancel(_job(call.body[0])),
            (names.MANAGER, "Pause"): lambda call, _: service.pause(call.body[0] % U64_MAX),  # "for ever" is 0
            (names.MANAGER, "Resume"): lambda *_: service.resume(),
            (names.MANAGER, "Rescan"): lambda *_: service.rescan(),
            (names.MANAGER, "Reload"): lambda *_: service.reload(),
        }

    def handle(self, call: Message) -> None:
        """Begin to serve a message if it is a method call. Ignore any other message.

        Calls above CALLS_MOST of one connection are dropped.
        """
        caller = self._callers.find(call.sender or "") if call.message_type is MessageType.METHOD_CALL else None
        if caller is not None and caller.calls < CALLS_MOST:
            caller.calls += 1
            task = asyncio.get_running_loop().create_task(self._serve(call, caller))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel all calls that are being served. They get no answer, because the connection is gone."""
        for task in self._tasks:
            task.cancel()

    async def _serve(self, call: Message, caller: Caller) -> None:
        """Answer a call, unless its caller is not known to the bus or calls too often."""
        try:
            if await caller.identified:
                wait_s = self._callers.admit(caller.user, LONG_COST if call.member in LONG else 1.0)
                if wait_s is not None:
                    await asyncio.sleep(wait_s)
                    await self._answer(call, caller)
        finally:
            caller.calls -= 1

    async def _answer(self, call: Message, caller: Caller) -> None:
        try:
            method = self._find_method(call)
            run = self._methods[call.interface or "", method.name]
            if method.action is not None:
                with caller.user.place():
                    await self._authority.check(caller, call, method.action)
                    found = await _finish(run(call, caller))
            elif call.flags.value & SILENT:
                return  # it only reads
            else:
                found = await _finish(run(call, caller))
            signature = "".join(one for _, one in method.gives)
            self._reply(call, Message.new_method_return(call, signature, [found] if method.gives else []))
        except Exception as error:  # noqa: BLE001 - every error is answered, and logged if it is unexpected
            self._refuse(call, error)

    def _find_method(self, call: Message) -> Method:
        path, interfaces = call.path or "", self._objects.interfaces(call.path or "")
        if not interfaces and call.interface != names.PEER:
            raise CallError(f"{DBUS_ERROR}.UnknownObject", f"there is no object {shorten(path)}")
        for interface in (contract.PEER, *interfaces):
            for method in interface.methods:
                if (interface.name, method.name) == (call.interface, call.member):
                    if method.signature != call.signature:
                        words = f"{method.name} takes ({method.signature}), not ({call.signature})"
                        raise CallError(f"{DBUS_ERROR}.InvalidArgs", words)
                    return method
        words = f"{shorten(path)} has no method {call.interface}.{call.member}"
        raise CallError(f"{DBUS_ERROR}.UnknownMethod", words)

    def _reply(self, call: Message, answer: Message) -> None:
        if not call.flags.value & SILENT:
            self._send(answer)

    def _refuse(self, call: Message, error: Exception) -> None:
        """Answer with an error. An unexpected exception is logged, and its text is kept from the caller."""
        if isinstance(error, CallError):
            name, text = error.name, str(error)
        elif isinstance(error, KeeperError):
            name, text = names.error_name(error), str(error)
        else:
            said = error.strerror if isinstance(error, OSError) else None
            name, text = names.FAILED, f"{said or 'bug in journalkeeper'}; its log has the traceback"
            self._complain(f"{call.interface}.{call.member} failed", error)
        self._reply(call, Message.new_error(call, name, names.to_ascii(text)[:ERROR_MOST]))

    # -- Reading ---------------------------------------------------------------------------

    async def _values(self, call: Message) -> dict[str, Any]:
        """Return the present properties of the requested interface; {} for an interface of the D-Bus standard.

        Raises: CallError if the object does not have this interface.
        """
        path, wanted = call.path or "", call.body[0]
        if wanted not in {one.name for one in self._objects.interfaces(path)}:
            raise CallError(f"{DBUS_ERROR}.UnknownInterface", f"{shorten(path)} has no interface {shorten(wanted)}")
        if wanted == names.MANAGER:
            await self._service.refresh()
        return self._objects.values(path, wanted)

    async def _get(self, call: Message, _: Caller) -> object:
        values = await self._values(call)
        if call.body[1] not in values:
            raise CallError(f"{DBUS_ERROR}.UnknownProperty", f"{call.body[0]} has no property {shorten(call.body[1])}")
        return values[call.body[1]]

    def _introspect(self, call: Message, _: Caller) -> str:
        path = call.path or ""
        return contract.introspection(self._objects.interfaces(path), self._objects.children(path))

    def _list_files(self, call: Message, caller: Caller) -> list[Values]:
        after = options.list_after(call.body[0])
        found = self._service.snapshot().findings
        if found is None:
            raise BusyError("the first look at the files is not over; try again later")
        return list_files(found, after, caller.reads)

    async def _plan(self, call: Message, caller: Caller) -> str:
        request = options.request(call.body[0], self._service.snapshot().directories)
        with caller.user.place():
            async with caller.user.turn:
                return write_document(await self._service.plan(request), caller.reads)

    def _result(self, call: Message, caller: Caller) -> str:
        ended = self._service.jobs.find_result(_job(call.body[0]))
        if ended.error is not None:
            raise ended.error
        return write_document(ended.document, caller.reads)

    # -- Work ------------------------------------------------------------------------------

    async def _defragment(self, call: Message, _: Caller) -> str:
        request = options.request(call.body[0], self._service.snapshot().directories)
        job = self._service.jobs.add(request)
        await asyncio.sleep(0)  # JobNew goes out before the answer
        return names.job_path(job.number)


async def _finish(found: Any) -> Any:
    """Return `found`, or the result of awaiting it: a method may be a coroutine function or not."""
    return await found if inspect.isawaitable(found) else found


def _job(path: str) -> int:
    number = names.job_number(path)
    if number is None:
        raise NoSuchJobError(f"{shorten(path)} is no job")
    return number
