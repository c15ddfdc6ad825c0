# SPDX-License-Identifier: LGPL-2.1-or-later
"""The states of units, from a PID 1 on a bus of its own that says what a test has it say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dbus_fast import Message, Variant

from journalkeeper.bus.unit_states import units
from journalkeeper.health.evidence import Unit, Unknown
from tests.bus import FakePeer, PrivateBus, reply

pytestmark = pytest.mark.root
PATH = "/org/freedesktop/systemd1/unit/"


class FakeManager(FakePeer):
    """PID 1 on a bus: `loaded` has its units, `files` the states of unit files."""

    name = "org.freedesktop.systemd1"

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.loaded: dict[str, dict[str, tuple[str, Any]]] = {}
        self.files: dict[str, str] = {}
        self.silent = False
        self.asked: list[Any] = []

    def answer(self, message: Message) -> Message | bool:
        if self.silent:
            return True
        self.asked.append(message.body)
        if message.member == "ListUnitsByPatterns":
            return reply(message, "a(ssssssouso)", [self._row(*unit) for unit in enumerate(self.loaded)])
        if message.member == "GetUnitFileState":
            if state := self.files.get(message.body[0]):
                return reply(message, "s", state)
            return Message.new_error(message, "org.freedesktop.DBus.Error.FileNotFound", "No such file")
        unit = list(self.loaded.values())[int((message.path or "").removeprefix(f"{PATH}_"))]
        return reply(message, "a{sv}", {name: Variant(*value) for name, value in unit.items() if name[0].isupper()})

    def _row(self, number: int, name: str) -> list[Any]:
        active, sub = self.loaded[name]["state"]
        return [name, name, "loaded", active, sub, "", f"{PATH}_{number}", 0, "", "/"]


@pytest.fixture
def manager(bus: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeManager]:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
    with FakeManager(bus.address) as fake:
        yield fake


def test_loaded_units_have_their_states_and_others_those_of_their_files(manager: FakeManager) -> None:
    manager.loaded = {
        "systemd-journald.service": {
            "state": ("active", "running"),
            "UnitFileState": ("s", "static"),
            "Result": ("s", "success"),
            "NRestarts": ("u", 2),
            "CanReload": ("b", True),
        },
        "btrfs-defrag.timer": {
            "state": ("active", "waiting"),
            "UnitFileState": ("s", "enabled"),
            "Result": ("s", "success"),
        },
    }
    manager.files = {"journalkeeper.service": "disabled"}
    assert units(("shop",)) == (
        Unit("systemd-journald.service", "active", "running", "static", "success", 2, can_reload=True),
        Unit("btrfs-defrag.timer", "active", "waiting", "enabled", "success"),
        Unit("journalkeeper.service", "inactive", "dead", "disabled"),
        Unit("journalkeeper.timer", "inactive", "dead"),
        Unit("journalkeeper-defrag.timer", "inactive", "dead"),
        Unit("journalkeeper-shutdown.service", "inactive", "dead"),
    )
    assert "systemd-journald@shop.service" in manager.asked[0][1]


def test_a_manager_that_does_not_answer_is_unknown_in_time(
    manager: FakeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journalkeeper.bus.unit_states.ANSWER_S", 0.2)
    manager.silent = True
    found = units()
    assert isinstance(found, Unknown)
    assert "Timeout" in found.why


def test_without_a_manager_or_a_bus_the_states_are_unknown(bus: PrivateBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
    assert isinstance(units(), Unknown)
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/socket")
    assert isinstance(units(), Unknown)
    monkeypatch.setattr("journalkeeper.bus.unit_states.bus_address", lambda: None)
    assert units() == Unknown("there is no system bus, so the states of units are unknown")
