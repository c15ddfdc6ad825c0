# SPDX-License-Identifier: LGPL-2.1-or-later
"""Look up and answer method calls.

The dispatcher only delegates. A caller gets an answer, an error of one sentence, or no answer above the rate of calls.
`_refuse` handles every error of a call; unexpected exceptions go to `complain`. Calls are looked up in the contract's
tables. dbus-fast's own ServiceInterface is not used: old releases answer with tracebacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Protocol

from dbus_fast import Message, MessageFlag, MessageType

from journalkeeper.bus import contract, names, options
from journalkeeper.bus.callers import EARLY_MOST, LONG_COST, Caller, CallError, Callers
from journalkeeper.bus.contract import Method
from journalkeeper.bus.objects import Objects, list_files, write_document
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

MACHINE_ID: Final = Path("/etc/machine-id")
DBUS_ERROR: Final = "org.freedesktop.DBus.Error"
SILENT: Final = MessageFlag.NO_REPLY_EXPECTED.value


class Service(Protocol):
    """The daemon's interface for callers."""

    jobs: Jobs
    events: Events

    def snapshot(self) -> Snapshot: ...
    async def plan(self, request: Request) -> dict[str, Any]: ...
    def pause(self, span_us: int) -> None: ...
    def resume(self) -> None: ...
    def rescan(self) -> None: ...
    async def reload(self) -> None: ...


class Dispatcher:
    """Answers calls of `callers` with the methods of `service` and the objects in `objects`; `send` sends the answers.

    `complain` logs unexpected exceptions.
    """

    def __init__(
        self,
        service: Service,
        objects: Objects,
        callers: Callers,
        authority: Authority,
        *,
        send: Callable[[Message], None],
        complain: Callable[[str, Exception], None],
    ) -> None:
        self._service = service
        self._objects = objects
        self._callers = callers
        self._authority = authority
        self._send = send
        self._complain = complain
        self._tasks: set[asyncio.Task[None]] = set()
        self._methods: dict[tuple[str, str], Callable[[Message, Caller], Awaitable[list[Any]]]] = {
            (names.PROPERTIES, "Get"): self._get,
            (names.PROPERTIES, "GetAll"): self._get_all,
            (names.PROPERTIES, "Set"): self._set,
            (names.INTROSPECTABLE, "Introspect"): self._introspect,
            (names.PEER, "Ping"): self._ping,
            (names.PEER, "GetMachineId"): self._get_machine_id,
            (names.MANAGER, "ListFiles"): self._list_files,
            (names.MANAGER, "Plan"): self._plan,
            (names.MANAGER, "Result"): self._result,
            (names.MANAGER, "Defragment"): self._defragment,
            (names.MANAGER, "Cancel"): self._cancel,
            (names.MANAGER, "Pause"): self._pause,
            (names.MANAGER, "Resume"): self._resume,
            (names.MANAGER, "Rescan"): self._rescan,
            (names.MANAGER, "Reload"): self._reload,
        }

    def handle(self, call: Message) -> bool:
        """Take a message from the bus. Return True if it is a call, which needs no further attention."""
        if call.message_type is not MessageType.METHOD_CALL:
            return False
        caller = self._callers.find(call.sender or "")
        if caller.uid is not None:
            self._admit(call, caller)
        elif len(caller.early_calls) < EARLY_MOST:
            caller.early_calls.append(call)
            if len(caller.early_calls) == 1:
                self._begin(self._identify(caller))
        return True

    def close(self) -> None:
        """End all calls under way, because the connection is gone."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _admit(self, call: Message, caller: Caller) -> None:
        if self._callers.admit(caller, LONG_COST if call.member in LONG else 1.0):
            self._begin(self._serve(call, caller))

    async def _identify(self, caller: Caller) -> None:
        """Read the user of the connection, then serve the calls that arrived meanwhile."""
        is_known = await self._callers.identify(caller)
        calls, caller.early_calls = caller.early_calls, []
        for call in calls if is_known else ():
            self._admit(call, caller)

    async def _serve(self, call: Message, caller: Caller) -> None:
        try:
            method = self._find_method(call)
            answer = self._methods[call.interface or "", method.name]
            if method.action is not None:
                with self._callers.place(caller):
                    await self._authority.check(caller, call, method.action)
                    body = await answer(call, caller)
            elif not call.flags.value & SILENT:
                body = await answer(call, caller)
            self._answer(call, "".join(one for _, one in method.gives), body)
        except Exception as error:  # noqa: BLE001 - every error is answered, and logged if it is unexpected
            self._refuse(call, error)

    def _find_method(self, call: Message) -> Method:
        interfaces = (contract.PEER,) if call.interface == names.PEER else self._objects.interfaces(call.path or "")
        if interfaces is None:
            raise CallError(f"{DBUS_ERROR}.UnknownObject", f"there is no object {_short(call.path)}")
        for interface in interfaces:
            if interface.name == call.interface:
                for method in interface.methods:
                    if method.name == call.member:
                        if method.signature != call.signature:
                            words = f"{method.name} takes ({method.signature}), not ({call.signature})"
                            raise CallError(f"{DBUS_ERROR}.InvalidArgs", words)
                        return method
                raise CallError(f"{DBUS_ERROR}.UnknownMethod", f"{interface.name} has no method {call.member}")
        raise CallError(f"{DBUS_ERROR}.UnknownInterface", f"{_short(call.path)} has no interface {call.interface}")

    def _answer(self, call: Message, signature: str, body: list[Any], error_name: str | None = None) -> None:
        if not call.flags.value & SILENT:
            kind = MessageType.METHOD_RETURN if error_name is None else MessageType.ERROR
            self._send(
                Message(
                    message_type=kind,
                    error_name=error_name,
                    reply_serial=call.serial,
                    destination=call.sender,
                    signature=signature,
                    body=body,
                )
            )

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
        self._answer(call, "s", [names.shown(text)[:ERROR_MOST]], name)

    # -- Reading ---------------------------------------------------------------------------

    def _values(self, call: Message) -> dict[str, Any]:
        """Return the properties of the requested interface; a standard interface has none."""
        wanted = call.body[0]
        interfaces = self._objects.interfaces(call.path or "") or ()
        if wanted not in {one.name for one in interfaces}:
            raise CallError(f"{DBUS_ERROR}.UnknownInterface", f"{_short(call.path)} has no interface {_short(wanted)}")
        return self._objects.values(call.path or "", wanted)

    async def _get(self, call: Message, _: Caller) -> list[Any]:
        values = self._values(call)
        if call.body[1] not in values:
            raise CallError(f"{DBUS_ERROR}.UnknownProperty", f"{call.body[0]} has no property {_short(call.body[1])}")
        return [values[call.body[1]]]

    async def _get_all(self, call: Message, _: Caller) -> list[Any]:
        return [self._values(call)]

    async def _set(self, call: Message, caller: Caller) -> list[Any]:
        await self._get(call, caller)
        raise CallError(f"{DBUS_ERROR}.PropertyReadOnly", f"{call.body[1]} can only be read")

    async def _introspect(self, call: Message, _: Caller) -> list[Any]:
        path = call.path or ""
        return [contract.introspection(self._objects.interfaces(path) or (), self._objects.children(path))]

    async def _ping(self, _call: Message, _: Caller) -> list[Any]:
        return []

    async def _get_machine_id(self, _call: Message, _: Caller) -> list[Any]:
        return [MACHINE_ID.read_text().strip()]

    async def _list_files(self, call: Message, caller: Caller) -> list[Any]:
        after = options.list_after(call.body[0])
        found = self._service.snapshot().findings
        if found is None:
            raise BusyError("the first look at the files is not over; try again later")
        return [list_files(found, after, caller.reads)]

    async def _plan(self, call: Message, caller: Caller) -> list[Any]:
        request = options.request(call.body[0], self._service.snapshot().directories)
        with self._callers.place(caller):
            async with self._callers.turn(caller):
                return [write_document(await self._service.plan(request), caller.reads)]

    async def _result(self, call: Message, caller: Caller) -> list[Any]:
        ended = self._service.jobs.find_result(_job(call.body[0]))
        if ended.error is not None:
            raise ended.error
        return [write_document(ended.document, caller.reads)]

    # -- Work ------------------------------------------------------------------------------

    async def _defragment(self, call: Message, _: Caller) -> list[Any]:
        request = options.request(call.body[0], self._service.snapshot().directories)
        job = self._service.jobs.add(request)
        await asyncio.sleep(0)  # JobNew goes out before the answer
        return [names.job_path(job.number)]

    async def _cancel(self, call: Message, _: Caller) -> list[Any]:
        self._service.jobs.cancel(_job(call.body[0]))
        return []

    async def _pause(self, call: Message, _: Caller) -> list[Any]:
        # systemd's way to write "for ever" is taken too
        self._service.pause(0 if call.body[0] == U64_MAX else call.body[0])
        return []

    async def _resume(self, _call: Message, _: Caller) -> list[Any]:
        self._service.resume()
        return []

    async def _rescan(self, _call: Message, _: Caller) -> list[Any]:
        self._service.rescan()
        return []

    async def _reload(self, _call: Message, _: Caller) -> list[Any]:
        await self._service.reload()
        return []


def _job(path: str) -> int:
    number = names.job_number(path)
    if number is None:
        raise NoSuchJobError(f"{_short(path)} is no job")
    return number


def _short(text: str | None) -> str:
    """Return a caller's word such that it can be part of a sentence."""
    word = text or ""
    return word if len(word) <= 100 else f"{word[:100]}..."
