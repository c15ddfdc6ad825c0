# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the states of the units that findings are about, from PID 1 over D-Bus.

Source: org.freedesktop.systemd1(5): ListUnitsByPatterns, GetUnitFileState, and the units' properties.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from dbus_fast import Message, MessageType
from dbus_fast.aio import MessageBus
from dbus_fast.errors import AuthError, InvalidAddressError

from journalkeeper.bus.names import PROPERTIES, bus_address
from journalkeeper.health.evidence import Unit, Unknown
from journalkeeper.model.errors import KeeperError

SYSTEMD: Final = "org.freedesktop.systemd1"
MANAGER_PATH: Final = "/org/freedesktop/systemd1"
MANAGER: Final = f"{SYSTEMD}.Manager"
ANSWER_S: Final = 10.0
"""PID 1 answers in milliseconds, unless it is stopped or its bus is."""

JOURNALD: Final = "systemd-journald.service"
OURS: Final = tuple(f"journalkeeper{name}" for name in (".service", ".timer", "-defrag.timer", "-shutdown.service"))
RIVALS: Final = ("btrfs-defrag.timer", "beesd@*.service")
PROPERTIES_OF: Final = {"Result": "result", "NRestarts": "restarts", "CanReload": "can_reload"}
"""Of a service and of PID 1's Unit interface."""


def units(namespaces: Sequence[str] = ()) -> tuple[Unit, ...] | Unknown:
    """Return the loaded units of this program, of journald and of rivals, and this program's other units."""
    address = bus_address()
    if address is None:
        return Unknown("there is no system bus, so the states of units are unknown")
    try:
        return asyncio.run(asyncio.wait_for(_read_units(address, namespaces), ANSWER_S))
    except (OSError, EOFError, TimeoutError, AuthError, InvalidAddressError, KeeperError) as error:
        return Unknown(f"PID 1 cannot be asked for the states of units: {str(error) or type(error).__name__}")


async def _read_units(address: str, namespaces: Sequence[str]) -> tuple[Unit, ...]:
    bus = await MessageBus(address).connect()
    try:
        names = [*OURS, JOURNALD, *(f"systemd-journald@{name}.service" for name in namespaces), *RIVALS]
        listed = (await _call(bus, MANAGER_PATH, f"{MANAGER}.ListUnitsByPatterns", "asas", [[], names]))[0]
        found = [await _unit(bus, row) for row in listed]
        there = {unit.name for unit in found}
        return (*found, *[await _read_unloaded(bus, name) for name in OURS if name not in there])
    finally:
        bus.disconnect()


async def _unit(bus: MessageBus, row: list[Any]) -> Unit:
    """Return a loaded unit; `row` is (name, description, load, active, sub, following, path, ...)."""
    name, _, _, active, sub, _, path, *_ = row
    kind = name.rpartition(".")[2].capitalize()
    unit = await _all(bus, path, f"{SYSTEMD}.Unit")
    own = {**await _all(bus, path, f"{SYSTEMD}.{kind}"), **unit}
    facts = {field: own[wanted] for wanted, field in PROPERTIES_OF.items() if wanted in own}
    return Unit(name, active, sub, enabled=str(unit.get("UnitFileState", "")), **facts)


async def _all(bus: MessageBus, path: str, interface: str) -> dict[str, Any]:
    body = await _call(bus, path, f"{PROPERTIES}.GetAll", "s", [interface])
    return {name: value.value for name, value in body[0].items()}


async def _read_unloaded(bus: MessageBus, name: str) -> Unit:
    """Return a unit that PID 1 has not loaded, with the enablement of its file."""
    try:
        (enabled,) = await _call(bus, MANAGER_PATH, f"{MANAGER}.GetUnitFileState", "s", [name])
    except KeeperError:
        enabled = ""  # there is no such file
    return Unit(name, "inactive", "dead", enabled=str(enabled))


async def _call(bus: MessageBus, path: str, method: str, signature: str, body: list[Any]) -> list[Any]:
    interface, _, member = method.rpartition(".")
    reply = await bus.call(Message(SYSTEMD, path, interface, member, signature=signature, body=body))
    if reply is None or reply.message_type is MessageType.ERROR:
        raise KeeperError(str(reply.body[0]) if reply is not None and reply.body else f"no answer to {member}")
    return list(reply.body)
