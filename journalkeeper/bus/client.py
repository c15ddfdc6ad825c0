# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service as its clients see it: org.journalkeeper1 on the system bus.

Every call ends, in an answer or in one of our errors, and never starts a service. Contract: org.journalkeeper1(5).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, Final, Self

from jeepney import MessageFlag, message_bus

from journalkeeper import __version__, keeper
from journalkeeper.bus import contract, names
from journalkeeper.bus.connection import SENT_MOST, Connection, make_call
from journalkeeper.health.evidence import Hung
from journalkeeper.health.service_rules import RESTART
from journalkeeper.model import Plan, Request
from journalkeeper.model.errors import BusyError, KeeperError, NeedsRootError, NoSuchJobError, UsageError
from journalkeeper.model.manager import Finding, HistorySpan, Manager
from journalkeeper.model.run import NONE_YET, Progress, Report, decode_report
from journalkeeper.model.schema import name_fields, parse_record

CONNECT_S: Final = 5.0
"""How long a bus may take until the client is connected and knows the service."""

BUSY_S: Final = 0.3
PROBE_BYTES: Final = 1 << 18
"""A bus that takes longer to read so many bytes is busy: a quiet one takes 2 ms.

A busy dbus-daemon reads 2 KiB of each connection in a round, which takes 0.7 s with a user's flood on 150 connections,
and 10 ms with one on 15. The service's answer takes up to 4.4 rounds, but 500 if it stands behind 1 MiB for a user.
"""

KEPT_MOST: Final = 1 << 16
"""Bytes for the service that the bus keeps when it is not busy: the kernel takes more before for a service that hangs.
"""

ANSWER_S: Final = 1.5
"""A service that does not show its state within this time is hung: its loop never blocks."""

CALL_S: Final = 25.0
"""How long an answer may take, as for every client of D-Bus; a password takes longer."""

POLL_S: Final = 0.25
"""How often the progress of a job is shown, and a wish to stop is heard."""

LOST: Final = "the connection to the bus was lost; the service and its jobs go on without it"
ENDED: Final = "the service has ended; `journalkeeper history` shows what it did"
QUEUED: Final = "queued; the service ends other work first"


class Service(AbstractContextManager["Service"]):
    """A connection to the running service. `find` makes it, and reads `found`, the service's state then.

    Only one thread may use it.
    """

    def __init__(self, runner: asyncio.Runner, bus: Connection, owner: str) -> None:
        self._runner = runner
        self._bus = bus
        self._owner = owner
        self.found = Manager()

    @classmethod
    def find(cls) -> Self | None:
        """Connect to the system bus, and return the service, or None if there is no bus or no service.

        Raises: BusyBusError if the bus does not answer within CONNECT_S; as `_read_manager`.
        """
        with ExitStack() as undo:
            runner = undo.enter_context(asyncio.Runner())
            try:
                bus, owner = runner.run(asyncio.wait_for(_connect_to_service(), CONNECT_S))
            except TimeoutError:
                raise keeper.BusyBusError from None
            except (OSError, ValueError, RuntimeError, names.CallError):
                return None
            service = cls(runner, bus, owner)
            service.found = service._read_manager()
            undo.pop_all()
            return service

    def close(self) -> None:
        """Close the connection. A job of the service continues."""
        self._runner.close()  # ends the task that reads, which closes the socket

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_manager(self) -> Manager:
        """Return the service's properties: None for one that it lacks, or for Findings or History of another form.

        Raises: HungError after ANSWER_S, or BusyBusError if the bus is slow, too; KeeperError for all other errors.
        """
        found = self._read_properties(names.MANAGER_PATH, names.MANAGER, ANSWER_S)
        for name, kind in (("Findings", Finding), ("History", HistorySpan)):
            with suppress(KeyError, ValueError):  # of another version
                found[name] = tuple(parse_record(kind, name_fields(kind, one)) for one in found.pop(name))
        return Manager(**name_fields(Manager, found))

    def plan(self, request: Request) -> Plan:
        """Return the plan that the service makes for `request`, with a notice if rows are missing.

        Raises: UsageError, BusyError; HungError after CALL_S; KeeperError for another version and all other errors.
        """
        self._require_same_version()
        (text,) = self._call("Plan", "asst", *contract.list_arguments(request), patience_s=CALL_S)
        plan = parse_record(Plan, json.loads(text))
        return plan._replace(notices=_describe_omitted_rows(plan, "name a PATH to see its row"))

    def defragment(
        self, request: Request, *, on_progress: Callable[[Progress], None], stop: Callable[[], bool]
    ) -> Report:
        """Have the service carry out `request` as a job, and return its report, with a notice if rows are missing.

        Wait without a limit: polkit may ask the user for a password. Each POLL_S, read the progress for `on_progress`,
        and ask `stop`: if that is True, the job ends at a chunk border.
        Raises: NeedsRootError if polkit refuses; UsageError, BusyError; KeeperError for a service of another version
        and all other errors; the error of a job that failed as a whole or was canceled in the queue.
        """
        self._require_same_version()
        (job,) = self._call("Defragment", "asst", *contract.list_arguments(request._replace(asked=False)))
        call = make_call(self._owner, names.MANAGER_PATH, names.MANAGER, "Result", "o", job)
        result = self._runner.get_loop().create_task(self._bus.call(call))
        canceling = False
        while not result.done() and self._show_progress(job, on_progress):
            if stop() and not canceling:
                canceling = True
                with suppress(NoSuchJobError):  # it has just ended
                    self._call("Cancel", "o", job)
            self._runner.run(asyncio.wait({result}, timeout=POLL_S))
        (text,) = self._ask("Result", result, CALL_S)
        report = decode_report(json.loads(text))
        omitted = _describe_omitted_rows(report.plan, "`journalkeeper history` shows them")
        return report._replace(notices=(*report.notices, *omitted))

    def pause(self, span_us: int) -> None:
        """Make the service stop its own work for `span_us` microseconds; 0 means until `resume`.

        Wait without a limit: polkit may ask the user for a password. The service may be of another version.
        Raises: NeedsRootError if polkit refuses; KeeperError for all other errors.
        """
        self._call("Pause", "t", span_us)

    def resume(self) -> None:
        """End a pause, and let the service look at all files. Without a pause, do nothing. Wait, raise as `pause`."""
        self._call("Resume")

    def _require_same_version(self) -> None:
        """Raise KeeperError if the service is of another version, because its documents may differ."""
        if self.found.version != __version__:
            what = f"the service is still version {self.found.version}, and {__version__} is installed"
            raise KeeperError(f"{what}; {RESTART}")

    def _show_progress(self, job: str, on_progress: Callable[[Progress], None]) -> bool:
        """Pass QUEUED or the progress of `job`, if known, to `on_progress`.

        Return False if the job, the service or the bus is gone, and True also if an answer is late.
        """
        try:
            now = self._read_properties(job, names.JOB, CALL_S)
        except (keeper.HungError, keeper.BusyBusError):
            return True
        except KeeperError:
            return False
        if now.get("State") == "queued":
            on_progress(Progress(0, 0, QUEUED, 0, 0))
        elif now.get("FileTotal"):
            on_progress(NONE_YET._replace(**name_fields(Progress, now)))
        return True

    def _read_properties(self, path: str, interface: str, patience_s: float) -> dict[str, Any]:
        """Return the plain values of an object's properties by name. Raises: as `_ask`."""
        call = make_call(self._owner, path, names.PROPERTIES, "GetAll", "s", interface)
        (values,) = self._ask("GetAll", self._bus.call(call), patience_s)
        return dict(_drop_signatures(values))

    def _call(self, member: str, signature: str = "", *values: Any, patience_s: float | None = None) -> tuple[Any, ...]:
        """Call a method of the manager and let polkit ask the user, by default without a limit. Raises: as `_ask`."""
        call = make_call(self._owner, names.MANAGER_PATH, names.MANAGER, member, signature, *values)
        call.header.flags |= MessageFlag.allow_interactive_authorization
        return self._ask(member, self._bus.call(call), patience_s)

    def _ask(self, member: str, answer: Awaitable[tuple[Any, ...]], patience_s: float | None) -> tuple[Any, ...]:
        """Return the values of the `answer` to a call of `member`.

        Raises: the exception in ERRORS, or KeeperError; after `patience_s` (None: never) HungError. If the bus is busy,
        BusyBusError replaces HungError and LIMITS_EXCEEDED.
        """
        asking = asyncio.ensure_future(answer, loop=self._runner.get_loop())
        try:
            self._runner.run(asyncio.wait({asking}, timeout=patience_s))
            is_bus_busy = not asking.done() and self._runner.run(self._is_bus_busy())
            return self._runner.run(asyncio.wait_for(asking, 0))  # it may have come before the answers of the bus
        except names.CallError as error:
            if error.name == names.LIMITS_EXCEEDED and self._runner.run(self._is_bus_busy()):
                raise keeper.BusyBusError from None
            text = ENDED if error.name in GONE else str(error)
            raise ERRORS.get(error.name, KeeperError)(text) from None
        except TimeoutError:
            if is_bus_busy:
                raise keeper.BusyBusError from None
            raise keeper.HungError(f"{Hung().why} {member} within {patience_s:g} s; try later, or {RESTART}") from None
        except ConnectionError:
            raise KeeperError(LOST) from None

    async def _is_bus_busy(self) -> bool:
        """Return whether the bus takes over BUSY_S to read PROBE_BYTES, or keeps over KEPT_MOST for the service."""
        try:
            async with asyncio.timeout(BUSY_S):
                await self._bus.count_kept("x" * PROBE_BYTES, "")  # of no connection: the bus answers with an error
                return await self._bus.count_kept(self._owner, "OutgoingBytes") > KEPT_MOST
        except TimeoutError:
            return True


def _describe_omitted_rows(plan: Plan, remedy: str) -> tuple[str, ...]:
    return () if plan.omitted is None else (f"{plan.omitted:,} rows do not fit the service's answer; {remedy}",)


def _drop_signatures(value: Any) -> Any:
    """Return `value` with plain values for pairs (signature, value) in its dicts, also in those in lists or dicts."""
    if isinstance(value, dict):
        return {name: _drop_signatures(one) for name, (_, one) in value.items()}
    return [_drop_signatures(one) for one in value] if isinstance(value, list) else value


async def _connect_to_service() -> tuple[Connection, str]:
    """Return a connection, and the unique name of the service: a call to the well-known name could start a service.

    Raises: as `Connection.open`; CallError if no service runs. The connection lasts as long as the event loop.
    """
    bus = await Connection.open(names.find_address(), SENT_MOST, PROBE_BYTES)
    (owner,) = await bus.call(message_bus.GetNameOwner(names.BUS_NAME))
    return bus, owner


GONE: Final = frozenset({f"{names.BUS}.Error.NoReply", f"{names.BUS}.Error.ServiceUnknown"})
"""The bus's errors for a service that has left it: before the answer, or before the call."""

ERRORS: Final[dict[str, type[KeeperError]]] = {
    **{name: kind for kind, name in names.ERRORS if kind in {UsageError, NeedsRootError, BusyError, NoSuchJobError}},
    names.ACCESS_DENIED: NeedsRootError,
}
"""The exception for each error on the bus; all others become a KeeperError with the sentence of the error."""
