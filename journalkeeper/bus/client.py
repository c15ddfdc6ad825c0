# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service as its clients see it: org.journalkeeper1 on the system bus.

Every call ends, in an answer or in one of our errors, and never starts a
service: what is not running is not asked. The contract is org.journalkeeper1(5).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, NamedTuple, Self, TypeVar

from dbus_fast import Message, MessageFlag, MessageType

from journalkeeper.bus import names, options
from journalkeeper.bus.connection import SENT_MOST, Connection, bus_call, wrap
from journalkeeper.bus.names import BUS, CallError
from journalkeeper.health.evidence import Hung
from journalkeeper.model import Request
from journalkeeper.model.errors import BusyError, KeeperError, NeedsRootError, NoSuchJobError, UsageError
from journalkeeper.model.manager import Manager
from journalkeeper.model.progress import NONE_YET, Progress
from journalkeeper.model.record import from_properties
from journalkeeper.model.run import Report, job_report, skips

CONNECT_S: Final = 5.0
"""A bus whose socket is there and which says nothing is none."""

ANSWER_S: Final = 1.5
"""A service that does not show its state within this time is hung: its loop never blocks."""

CALL_S: Final = 25.0
"""How long an answer may take, as for every client of D-Bus; a password takes longer."""

POLL_S: Final = 0.1
"""How soon a wish to stop is heard."""

QUEUED: Final = "queued; the service ends other work first"

T = TypeVar("T")


class Answer(NamedTuple):
    """The result of a job: `document` is that of `defrag -j`; `canceled` is True if it was canceled."""

    report: Report
    document: dict[str, Any]
    canceled: bool


class Service:
    """A connection to the running service, made by `find`. `found` is the service's state at that time.

    Only one thread may use it.
    """

    def __init__(self, runner: asyncio.Runner, bus: Connection, owner: str, found: Manager) -> None:
        self._runner = runner
        self._bus = bus
        self._owner = owner
        self.found = found
        self._received: asyncio.Queue[Message | None] = asyncio.Queue()
        self._listens = False

    @classmethod
    def find(cls) -> Self | None:
        """Return the service if its name is on the bus; None if it is not, or if there is no bus.

        Raises: HungError if it does not answer within ANSWER_S; KeeperError if it refuses.
        """
        with ExitStack() as undo:
            runner = asyncio.Runner()
            undo.callback(runner.close)
            bus = runner.run(_connect())
            if bus is None:
                return None
            undo.callback(bus.close)
            owner = runner.run(_owner(bus))
            if owner is None:
                return None
            found = runner.run(_read_manager(bus, owner))
            undo.pop_all()
            return cls(runner, bus, owner, found)

    def close(self) -> None:
        """Close the connection. A job of the service continues."""
        self._bus.close()
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def manager(self) -> Manager:
        """Read the present properties of the service from the bus, and return them.

        Raises: HungError if the service does not answer; KeeperError.
        """
        return self._run(_read_manager(self._bus, self._owner))

    def plan(self, request: Request) -> dict[str, Any]:
        """Return the document of `plan -j`. Raises: UsageError, BusyError; KeeperError for all other errors."""
        return self._run(self._plan(request))

    def defragment(
        self, request: Request, *, on_progress: Callable[[Progress], None], stop: Callable[[], bool]
    ) -> Answer:
        """Have the service carry out `request` as a job, wait for the end of the job, and return its result.

        `on_progress` receives the job's progress. When `stop` returns True, the job is canceled and ends at a chunk
        border.

        Raises: NeedsRootError if polkit refuses; UsageError, BusyError; KeeperError for all other errors.
        """
        return self._run(self._defragment(request, on_progress, stop))

    def pause(self, span_us: int) -> None:
        """Make the service stop its own work for `span_us` microseconds; 0 means until `resume`.

        Raises: NeedsRootError if polkit refuses; KeeperError for all other errors.
        """
        self._run(self._manager("Pause", "t", [span_us], asks=True))

    def resume(self) -> None:
        """End a pause of the service. Raises: as `pause`."""
        self._run(self._manager("Resume", "", [], asks=True))

    def wait(self) -> None:
        """Wait until the service reports a change. The first call returns at once.

        Raises: KeeperError when the service or the connection to the bus ends.
        """
        self._run(self._wait_for_change())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except (EOFError, OSError) as error:
            raise KeeperError(f"the connection to the bus was lost: {error}; a job goes on without it") from error

    async def _plan(self, request: Request) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            (await self._manager("Plan", "a{sv}", [wrap("a{sv}", options.options(request))]))[0]
        )
        with _same_version("the"):
            skips(document)
        return document

    async def _defragment(
        self, request: Request, on_progress: Callable[[Progress], None], stop: Callable[[], bool]
    ) -> Answer:
        await self._listen()
        job = (await self._manager("Defragment", "a{sv}", [wrap("a{sv}", options.options(request))], asks=True))[0]
        await self._tell(job, on_progress)
        canceling = False
        result = ""
        while not result:
            if stop() and not canceling:
                canceling = True
                await self._cancel(job)
            message = await self._next(POLL_S)
            if message is None:
                continue
            if message.member == "JobRemoved" and message.body[1] == job:
                result = message.body[2]
            elif message.path == job and message.member == "PropertiesChanged":
                await self._tell(job, on_progress)
        answer = json.loads((await self._manager("Result", "o", [job]))[0])
        document = {name: answer[name] for name in ("outcomes", "totals", "omitted") if name in answer}
        with _same_version("the work is done (see journalkeeper history), but the"):
            report = job_report(answer)
        if "omitted" in answer:
            notice = f"{answer['omitted']:,} rows are too many for one answer of the service: see journalkeeper history"
            report = report._replace(notices=(*report.notices, notice))
        return Answer(report, document, result == "canceled")

    async def _cancel(self, job: str) -> None:
        with suppress(NoSuchJobError):  # it has just ended
            await self._manager("Cancel", "o", [job], asks=True)

    async def _tell(self, job: str, on_progress: Callable[[Progress], None]) -> None:
        """Read the progress of the job at the object path `job`, and pass it to `on_progress`.

        Do nothing if the job has just ended.
        """
        try:
            now = await _read_properties(self._bus, self._owner, job, names.JOB)
        except KeeperError:
            return  # it has just ended, and JobRemoved is next
        if now.get("State") == "queued":
            on_progress(Progress(0, 0, QUEUED, 0, 0))
        elif now.get("FileTotal"):
            on_progress(from_properties(NONE_YET, now))

    async def _wait_for_change(self) -> None:
        if await self._listen():
            return
        await self._next(None)
        while not self._received.empty():  # what came together is shown together
            self._received.get_nowait()

    async def _listen(self) -> bool:
        """Subscribe to the service's signals and to changes of its owner. Return False if that was done before."""
        if self._listens:
            return False
        self._listens = True
        self._bus.handle = self._hear
        self._bus.ended.add_done_callback(lambda _: self._received.put_nowait(None))
        for rule in (
            f"type='signal',sender='{names.BUS_NAME}',path_namespace='{names.MANAGER_PATH}'",
            f"type='signal',sender='{BUS}',member='NameOwnerChanged',arg0='{names.BUS_NAME}'",
        ):
            await _call(self._bus, bus_call("AddMatch", "s", rule))
        return True

    def _hear(self, message: Message) -> None:
        """Queue a signal from the service or the bus.

        Signals of other programs are ignored, because any program can send a signal with the same name.
        """
        if message.message_type is MessageType.SIGNAL and message.sender in {BUS, self._owner}:
            self._received.put_nowait(message)

    async def _next(self, patience_s: float | None) -> Message | None:
        """Wait at most `patience_s` for the next signal, and return it; None if none arrives.

        Raises: KeeperError if the service has ended or the bus is gone.
        """
        try:
            message = await asyncio.wait_for(self._received.get(), patience_s)
        except TimeoutError:
            return None
        if message is None:
            raise KeeperError("the connection to the bus was lost; the service goes on without it")
        if message.member == "NameOwnerChanged" and message.body[2] != self._owner:
            raise KeeperError("the service has ended; `journalkeeper history` shows what it did")
        return message

    async def _manager(self, member: str, signature: str, body: list[Any], *, asks: bool = False) -> list[Any]:
        """Call a method of the manager object and return its answer.

        With `asks`, polkit may ask the user for a password.
        """
        where = (self._owner, names.MANAGER_PATH, names.MANAGER, member)
        flags = MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION if asks else MessageFlag.NONE
        return await _call(self._bus, Message(*where, flags=flags, signature=signature, body=body), asks=asks)


ERRORS: Final[dict[str, type[KeeperError]]] = {
    **{name: kind for kind, name in names.ERRORS if kind in {UsageError, NeedsRootError, BusyError, NoSuchJobError}},
    names.ACCESS_DENIED: NeedsRootError,
}
"""The exception for each error on the bus; all others become a KeeperError with the sentence of the error."""


async def _connect() -> Connection | None:
    address = names.bus_address()
    if address is None:
        return None
    try:
        return await asyncio.wait_for(Connection.open(address, SENT_MOST), CONNECT_S)
    except (OSError, EOFError, TimeoutError, ValueError, CallError):
        return None


async def _owner(bus: Connection) -> str | None:
    """Return the unique bus name of the running service, or None if the service does not run.

    Calls go to the unique name, because a call to the well-known name could start a service.
    """
    try:
        (owner,) = await asyncio.wait_for(bus.call(bus_call("GetNameOwner", "s", names.BUS_NAME)), CALL_S)
    except CallError:
        return None
    return str(owner)


async def _read_manager(bus: Connection, owner: str) -> Manager:
    """Return the state of the service. Raises: HungError without an answer within ANSWER_S; KeeperError."""
    try:
        async with asyncio.timeout(ANSWER_S):
            values = await _read_properties(bus, owner, names.MANAGER_PATH, names.MANAGER)
    except TimeoutError:
        raise names.HungError(f"{Hung().why}; systemctl restart journalkeeper.service") from None
    return from_properties(Manager(), values)


async def _read_properties(bus: Connection, owner: str, path: str, interface: str) -> dict[str, Any]:
    body = await _call(bus, Message(owner, path, names.PROPERTIES, "GetAll", signature="s", body=[interface]))
    return {name: value.value for name, value in body[0].items()}


async def _call(bus: Connection, message: Message, *, asks: bool = False) -> list[Any]:
    """Send a call and return its answer. Raises: the errors of ERRORS; KeeperError after CALL_S unless it `asks`."""
    try:
        return await asyncio.wait_for(bus.call(message), None if asks else CALL_S)
    except TimeoutError:
        what = f"it has not answered {message.member} for {CALL_S:g} s"
        raise KeeperError(f"the service is busy: {what}; try later") from None
    except CallError as error:
        raise ERRORS.get(error.name, KeeperError)(str(error)) from None


@contextmanager
def _same_version(sentence: str) -> Iterator[None]:
    """Run the block, which reads a document of the service. Replace a parse error by a KeeperError.

    The error begins with `sentence` and states that the service is of another version.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        what = f"service is of another version ({error!r} is not known here)"
        raise KeeperError(f"{sentence} {what}; systemctl restart journalkeeper") from error
