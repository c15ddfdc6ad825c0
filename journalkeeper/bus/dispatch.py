# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls, and what is answered: what is short and for everybody at once, the rest in its turn.

It only delegates, and a caller gets an answer or one sentence of an error. `_refuse`
is where whatever a call meets ends; unexpected exceptions go to `complain`.
Calls are looked up in the contract's tables. dbus-fast's own ServiceInterface is not used:
each object of it takes some KiB, and old releases answer with tracebacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Protocol

from dbus_fast import Message, MessageFlag, MessageType

from journalkeeper.bus import contract, names, options, properties
from journalkeeper.bus.callers import Caller, CallError, Callers
from journalkeeper.bus.connection import MESSAGE_MOST, element
from journalkeeper.bus.contract import Method
from journalkeeper.bus.objects import Objects
from journalkeeper.bus.polkit import Authority
from journalkeeper.model import Request
from journalkeeper.model.errors import KeeperError, NoSuchJobError
from journalkeeper.model.units import U64_MAX
from journalkeeper.service.events import Events
from journalkeeper.service.jobs import Jobs
from journalkeeper.service.snapshot import Snapshot

IN_A_TURN: Final = 100
"""Files that one turn of the event loop writes to a list, 50 us each."""

ERROR_MOST: Final = 1 << 16
"""Characters of an error: a configuration may have many wrong lines."""

TASKS_MOST: Final = 1024
"""Calls under way, of everybody."""

MACHINE_ID: Final = Path("/etc/machine-id")
DBUS_ERROR: Final = "org.freedesktop.DBus.Error"
CALL: Final = MessageType.METHOD_CALL
SILENT: Final = MessageFlag.NO_REPLY_EXPECTED.value


class Service(Protocol):
    """What the daemon does for callers."""

    jobs: Jobs
    events: Events

    def snapshot(self) -> Snapshot: ...
    async def plan(self, request: Request) -> str: ...
    def pause(self, span_us: int) -> None: ...
    def resume(self) -> None: ...
    def rescan(self) -> None: ...
    async def reload(self) -> None: ...


class Send(Protocol):
    """Connection.send, or what stands in for it."""

    def __call__(self, message: Message, elements: bytes | bytearray = b"") -> None: ...


class Dispatcher:
    """Answers calls of `callers` to `service`, whose objects are in `objects`, by `send`.

    `drained` waits until all is sent; `complain` logs unexpected exceptions.
    """

    def __init__(
        self,
        service: Service,
        objects: Objects,
        callers: Callers,
        authority: Authority,
        *,
        send: Send,
        drained: Callable[[], Awaitable[None]],
        complain: Callable[[str, Exception], None],
    ) -> None:
        self._service = service
        self._objects = objects
        self._callers = callers
        self._authority = authority
        self._send = send
        self._drained = drained
        self._complain = complain
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads: dict[tuple[str, str], Callable[[Message, Caller], list[Any]]] = {
            (names.PROPERTIES, "Get"): self._get,
            (names.PROPERTIES, "GetAll"): self._get_all,
            (names.PROPERTIES, "Set"): self._set,
            (names.INTROSPECTABLE, "Introspect"): self._introspect,
            (names.PEER, "Ping"): lambda _call, _caller: [],
            (names.PEER, "GetMachineId"): lambda _call, _caller: [MACHINE_ID.read_text().strip()],
            (names.MANAGER, "Result"): self._result,
        }
        self._works: dict[str, Callable[[Message, Caller], Awaitable[list[Any]]]] = {
            "Defragment": self._defragment,
            "DefragmentAll": self._defragment,
            "Cancel": self._cancel,
            "Pause": self._pause,
            "Resume": self._resume,
            "Rescan": self._rescan,
            "Reload": self._reload,
        }

    def handle(self, call: Message) -> bool:
        """Take a message from the bus; True if it needs no other's attention."""
        if call.message_type is not CALL:
            return False
        caller = self._callers.find(call.sender or "")
        try:
            method = self._method(call)
            if method.action is not None or not call.flags.value & SILENT:  # whoever reads wants an answer
                self._take(call, caller, method)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered and logged
            self._refuse(call, caller, error)
        return True

    def close(self) -> None:
        """Nobody is there any more to be answered."""
        for task in self._tasks:
            task.cancel()

    def _take(self, call: Message, caller: Caller, method: Method) -> None:
        """Answer at once what is short, to a caller who reads, if it is known what they may see."""
        read = self._reads.get((call.interface or "", method.name))
        if read is None or (method.name == "Introspect" and call.path == names.FILE_PATHS):
            self._begin(call, caller, self._serve_long(call, caller, method))
            return
        body = read(call, caller)
        known = caller.uid is not None or not (
            method.name == "Result" or (call.path or "").startswith(names.FILE_PATHS)
        )
        if known and not self._callers.is_full(caller):
            self._answer(call, method, body)
        else:
            self._begin(call, caller, self._serve_short(call, caller, method))

    def _begin(self, call: Message, caller: Caller, work: Coroutine[Any, Any, None]) -> None:
        async def serve() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - as above
                self._refuse(call, caller, error)

        if len(self._tasks) >= TASKS_MOST:
            work.close()
            raise CallError(names.LIMITS_EXCEEDED, "too many calls are under way; try again later")
        task = asyncio.get_running_loop().create_task(serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve_short(self, call: Message, caller: Caller, method: Method) -> None:
        await self._callers.identify(caller)
        await self._callers.settle(caller)
        self._answer(call, method, self._reads[call.interface or "", method.name](call, caller))

    async def _serve_long(self, call: Message, caller: Caller, method: Method) -> None:
        with self._callers.place(caller):
            await self._callers.identify(caller)
        with self._callers.place(caller):
            if method.action is not None:
                await self._authority.check(caller, call, method.action)
                self._answer(call, method, await self._works[method.name](call, caller))
                return
            async with self._callers.turn(caller):
                await self._callers.settle(caller)
                if method.name == "Plan":
                    body = await self._plan(call, caller)
                    await self._callers.settle(caller)
                    self._answer(call, method, body)
                else:
                    await self._serve_list(call, caller, method)

    async def _serve_list(self, call: Message, caller: Caller, method: Method) -> None:
        """Answer with something of every file: one call at a time, with as long a rest after it for everybody else."""
        clock = asyncio.get_running_loop().time
        async with self._turn:
            await self._drained()
            began = clock()
            if method.name == "Introspect":
                self._answer(call, method, self._introspect(call, caller))
            else:
                await self._list(call, caller, method)
            await asyncio.sleep(clock() - began)

    async def _list(self, call: Message, caller: Caller, method: Method) -> None:
        """Answer with all objects, which are made into bytes one by one."""
        (_, signature), *_ = method.gives
        listed = bytearray()
        for number, (path, interfaces) in enumerate(self._objects.objects(caller.reads), 1):
            listed += bytes(-len(listed) % 8) + element(signature, {path: interfaces})
            if len(listed) > MESSAGE_MOST:
                count = sum(1 for _ in self._objects.children(names.FILE_PATHS))
                text = f"{count} files are more than one answer carries; the manager's properties count them all"
                raise CallError(names.LIMITS_EXCEEDED, f"{text}, and each can be read by its path")
            if number % IN_A_TURN == 0:
                await asyncio.sleep(0)
        self._answer(call, method, [{}], listed)

    def _method(self, call: Message) -> Method:
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

    def _answer(self, call: Message, method: Method, body: list[Any], elements: bytes | bytearray = b"") -> None:
        if not call.flags.value & SILENT:
            message = Message(
                message_type=MessageType.METHOD_RETURN,
                reply_serial=call.serial,
                destination=call.sender,
                signature="".join(one for _, one in method.gives),
                body=body,
            )
            self._send(message, elements)

    def _refuse(self, call: Message, caller: Caller, error: Exception) -> None:
        """Say what was wrong. What we did not think of is said to the administrator, without a word to the caller."""
        if isinstance(error, CallError):
            name, text = error.name, str(error)
        elif isinstance(error, KeeperError):
            name, text = names.error_name(error), str(error)
        else:
            said = error.strerror if isinstance(error, OSError) else None
            name, text = names.FAILED, f"{said or 'this is a mistake in journalkeeper'}; its log says more"
            self._complain(f"{call.interface}.{call.member} failed", error)
        if not call.flags.value & SILENT and self._callers.may_refuse(caller):
            message = Message(
                message_type=MessageType.ERROR,
                error_name=name,
                reply_serial=call.serial,
                destination=call.sender,
                signature="s",
                body=[names.shown(text)[:ERROR_MOST]],
            )
            self._send(message)

    # -- Reading ---------------------------------------------------------------------------

    def _values(self, call: Message, caller: Caller) -> dict[str, Any]:
        """The properties that are asked for; of a standard interface there are none."""
        wanted = call.body[0]
        interfaces = self._objects.interfaces(call.path or "") or ()
        if wanted not in {one.name for one in interfaces}:
            raise CallError(f"{DBUS_ERROR}.UnknownInterface", f"{_short(call.path)} has no interface {_short(wanted)}")
        return self._objects.values(call.path or "", wanted, caller.reads)

    def _get(self, call: Message, caller: Caller) -> list[Any]:
        values = self._values(call, caller)
        if call.body[1] not in values:
            raise CallError(f"{DBUS_ERROR}.UnknownProperty", f"{call.body[0]} has no property {_short(call.body[1])}")
        return [values[call.body[1]]]

    def _get_all(self, call: Message, caller: Caller) -> list[Any]:
        return [self._values(call, caller)]

    def _set(self, call: Message, caller: Caller) -> list[Any]:
        self._get(call, caller)
        raise CallError(f"{DBUS_ERROR}.PropertyReadOnly", f"{call.body[1]} can only be read")

    def _introspect(self, call: Message, _: Caller) -> list[Any]:
        path, left = call.path or "", MESSAGE_MOST
        children: list[str] = []
        for child in self._objects.children(path):
            children.append(child)
            left -= len(child)
            if left < 0:
                raise CallError(names.LIMITS_EXCEEDED, "the files' names are more than one answer carries")
        return [contract.introspection(self._objects.interfaces(path) or (), children)]

    def _result(self, call: Message, caller: Caller) -> list[Any]:
        ended = self._service.jobs.ended(_job(call.body[0]))
        if ended.error is not None:
            raise ended.error
        return [ended.document if caller.reads_all else properties.for_reader(ended.document, caller.reads)]

    # -- Work ------------------------------------------------------------------------------

    async def _plan(self, call: Message, caller: Caller) -> list[Any]:
        request = options.request(call.body[0], self._service.snapshot().directories)
        document = await self._service.plan(request)
        return [document if caller.reads_all else properties.for_reader(document, caller.reads)]

    async def _defragment(self, call: Message, _: Caller) -> list[Any]:
        *path, given = call.body
        request = options.request(given, self._service.snapshot().directories, *path)
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
    """A caller's word, to be said back to it."""
    word = text or ""
    return word if len(word) <= 100 else f"{word[:100]}..."
