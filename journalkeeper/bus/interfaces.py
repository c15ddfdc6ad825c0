# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls, and what is answered: reading at once, the rest after polkit was asked.

The one rule: it only delegates, and a caller gets an answer or one sentence of an error.
Calls are looked up in the contract's tables. dbus-fast's own ServiceInterface is not used:
each object of it takes some KiB, and old releases answer with tracebacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from dbus_fast import Message, MessageFlag, MessageType

from journalkeeper.bus import contract, names, view
from journalkeeper.bus.polkit import Authority, CallError
from journalkeeper.errors import BusyError, KeeperError, NoSuchJobError
from journalkeeper.values import U64_MAX

if TYPE_CHECKING:
    from journalkeeper.bus.contract import Method
    from journalkeeper.bus.tree import Tree
    from journalkeeper.bus.view import Snapshot
    from journalkeeper.jobs import Jobs
    from journalkeeper.model import Request

PLANS_MOST: Final = 64
"""Callers that wait for a plan: it is for everybody, and takes a look at the files."""

LISTS_MOST: Final = 64
"""Callers that wait for a list of all files, which takes 30 us for each file."""

DBUS_ERROR: Final = "org.freedesktop.DBus.Error"
CALL: Final = MessageType.METHOD_CALL
SILENT: Final = MessageFlag.NO_REPLY_EXPECTED.value


class Service(Protocol):
    """What the daemon does for callers."""

    jobs: Jobs

    def snapshot(self) -> Snapshot: ...
    async def plan(self, request: Request) -> str: ...
    def pause(self, span_us: int) -> None: ...
    def resume(self) -> None: ...
    def rescan(self) -> None: ...
    async def reload(self) -> None: ...


class Interfaces:
    """Answers calls to `service`, whose objects are in `tree`, by `send`.

    `drained` waits until all is sent; `complain` is told of our own mistakes.
    """

    def __init__(
        self,
        service: Service,
        tree: Tree,
        authority: Authority,
        *,
        send: Callable[[Message], None],
        drained: Callable[[], Awaitable[None]],
        complain: Callable[[str], None],
    ) -> None:
        self._service = service
        self._tree = tree
        self._authority = authority
        self._send = send
        self._drained = drained
        self._complain = complain
        self._turn = asyncio.Lock()
        self._lists = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._plans = 0
        self._reads: dict[tuple[str, str], Callable[[Message], list[Any]]] = {
            (names.PROPERTIES, "Get"): self._get,
            (names.PROPERTIES, "GetAll"): self._get_all,
            (names.PROPERTIES, "Set"): self._set,
            (names.INTROSPECTABLE, "Introspect"): self._introspect,
            (names.OBJECT_MANAGER, "GetManagedObjects"): lambda _: [dict(self._tree.objects())],
            (names.MANAGER, "Result"): self._result,
        }
        self._works: dict[str, Callable[[Message], Awaitable[list[Any]]]] = {
            "Plan": self._plan,
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
        if call.message_type is not CALL or call.interface == names.PEER:
            return False
        try:
            method = self._method(call)
            read = self._reads.get((call.interface or "", method.name))
            if read is None:
                self._begin(self._work(call, method))
            elif method.name == "GetManagedObjects" or call.path == names.FILE_PATHS:
                self._begin(self._list(call, method, read))
            else:
                self._answer(call, method, read(call))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is answered and told
            self._refuse(call, error)
        return True

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Nobody is there any more to be answered."""
        for task in self._tasks:
            task.cancel()

    def _method(self, call: Message) -> Method:
        interfaces = self._tree.interfaces(call.path or "")
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

    async def _work(self, call: Message, method: Method) -> None:
        try:
            if method.action is not None:
                await self._authority.check(call, method.action)
            self._answer(call, method, await self._works[method.name](call))
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse(call, error)

    async def _list(self, call: Message, method: Method, read: Callable[[Message], list[Any]]) -> None:
        """Answer with a long answer: one at a time, with as long a rest after each for everybody else."""
        if self._lists >= LISTS_MOST:
            self._refuse(call, BusyError(f"{LISTS_MOST} callers wait for a list already; try again later"))
            return
        self._lists += 1
        clock = asyncio.get_running_loop().time
        try:
            async with self._turn:
                await self._drained()
                began = clock()
                self._answer(call, method, read(call))
                await asyncio.sleep(clock() - began)
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse(call, error)
        finally:
            self._lists -= 1

    def _answer(self, call: Message, method: Method, body: list[Any]) -> None:
        if not call.flags.value & SILENT:
            signature = "".join(one for _, one in method.gives)
            self._send(
                Message(
                    message_type=MessageType.METHOD_RETURN,
                    reply_serial=call.serial,
                    destination=call.sender,
                    signature=signature,
                    body=body,
                )
            )

    def _refuse(self, call: Message, error: Exception) -> None:
        """Say what was wrong. What we did not think of is said to the administrator, without a word to the caller."""
        if isinstance(error, CallError):
            name, text = error.name, str(error)
        elif isinstance(error, KeeperError | OSError):
            name, text = names.error_name(error), str(error)
        else:
            name, text = names.FAILED, "this is a mistake in journalkeeper; its log says more"
            self._complain(f"{call.interface}.{call.member} failed: {type(error).__name__}: {error}")
        if not call.flags.value & SILENT:
            self._send(
                Message(
                    message_type=MessageType.ERROR,
                    error_name=name,
                    reply_serial=call.serial,
                    destination=call.sender,
                    signature="s",
                    body=[names.shown(text)],
                )
            )

    # -- Reading ---------------------------------------------------------------------------

    def _values(self, call: Message) -> dict[str, Any]:
        """The properties that are asked for; of a standard interface there are none."""
        wanted = call.body[0]
        interfaces = self._tree.interfaces(call.path or "") or ()
        if wanted not in {one.name for one in interfaces}:
            raise CallError(f"{DBUS_ERROR}.UnknownInterface", f"{_short(call.path)} has no interface {_short(wanted)}")
        return self._tree.values(call.path or "", wanted)

    def _get(self, call: Message) -> list[Any]:
        values = self._values(call)
        if call.body[1] not in values:
            raise CallError(f"{DBUS_ERROR}.UnknownProperty", f"{call.body[0]} has no property {_short(call.body[1])}")
        return [values[call.body[1]]]

    def _get_all(self, call: Message) -> list[Any]:
        return [self._values(call)]

    def _set(self, call: Message) -> list[Any]:
        self._get(call)
        raise CallError(f"{DBUS_ERROR}.PropertyReadOnly", f"{call.body[1]} can only be read")

    def _introspect(self, call: Message) -> list[Any]:
        path = call.path or ""
        return [contract.introspection(self._tree.interfaces(path) or (), self._tree.children(path))]

    def _result(self, call: Message) -> list[Any]:
        ended = self._service.jobs.ended(_job(call.body[0]))
        if ended.error is not None:
            raise ended.error
        return [ended.document]

    # -- Work ------------------------------------------------------------------------------

    async def _plan(self, call: Message) -> list[Any]:
        request = view.request(call.body[0], self._service.snapshot().directories)
        if self._plans >= PLANS_MOST:
            raise BusyError(f"{PLANS_MOST} callers wait for a plan already; try again later")
        self._plans += 1
        try:
            return [await self._service.plan(request)]
        finally:
            self._plans -= 1

    async def _defragment(self, call: Message) -> list[Any]:
        *path, options = call.body
        request = view.request(options, self._service.snapshot().directories, *path)
        return [names.job_path(self._service.jobs.add(request).number)]

    async def _cancel(self, call: Message) -> list[Any]:
        self._service.jobs.cancel(_job(call.body[0]))
        return []

    async def _pause(self, call: Message) -> list[Any]:
        # systemd's way to write "for ever" is taken too
        self._service.pause(0 if call.body[0] == U64_MAX else call.body[0])
        return []

    async def _resume(self, _: Message) -> list[Any]:
        self._service.resume()
        return []

    async def _rescan(self, _: Message) -> list[Any]:
        self._service.rescan()
        return []

    async def _reload(self, _: Message) -> list[Any]:
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
