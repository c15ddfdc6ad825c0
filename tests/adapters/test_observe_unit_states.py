# SPDX-License-Identifier: LGPL-2.1-or-later
"""The states of units, from a systemctl that says what a test has it say; tests/guest asks the real one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.health.evidence import Silence, Unit, Unknown
from journalkeeper.journald import control, layout
from journalkeeper.observe import machine, obstacles
from tests.hosts import MACHINE
from tests.patience import PATIENCE_S

SHOWN = """\
Result=success
Id=journalkeeper.service
ActiveState=active
SubState=running
UnitFileState=enabled
StateChangeTimestampMonotonic=1

Id=journalkeeper.timer
ActiveState=inactive
SubState=dead
UnitFileState=
"""


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a systemctl of these lines of sh."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/socket")

    def make(lines: str) -> None:
        (tmp_path / "systemctl").write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / "systemctl").chmod(0o755)

    return make


def test_units_have_the_states_that_systemctl_shows(systemctl: Callable[[str], None], tmp_path: Path) -> None:
    (tmp_path / "shown").write_text(SHOWN)
    systemctl(f'echo "$@" > {tmp_path}/asked; cat {tmp_path}/shown')
    found = machine.read_units()
    assert not isinstance(found, Unknown)
    assert found[0].age_us > 0
    assert tuple(one._replace(age_us=0) for one in found) == (
        Unit("journalkeeper.service", "active", "running", "enabled", "success"),
        Unit("journalkeeper.timer", "inactive", "dead"),
    )
    assert " journalkeeper-shutdown.service" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(
    ("lines", "answer_s", "words"),
    [
        ("echo Failed to connect to bus >&2; exit 1", PATIENCE_S, "Failed to connect to bus"),
        ("exec sleep 600", 0.5, "timed out"),
    ],
)
def test_a_manager_that_does_not_answer_is_unknown_in_time(
    systemctl: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, lines: str, answer_s: float, words: str
) -> None:
    monkeypatch.setattr("journalkeeper.observe.machine.ANSWER_S", answer_s)
    systemctl(lines)
    found = machine.read_units()
    assert isinstance(found, Unknown)
    assert words in found.why


@pytest.mark.parametrize(
    ("state", "answers", "silence"),
    [
        ("running", None, None),
        ("running", False, Silence.HUNG),
        ("masked", None, Silence.MASKED),
        ("stopped", None, Silence.STOPPED),
        ("listening", None, None),  # the next message starts it
        ("rolled back", True, Silence.ROLLED_BACK),
        ("rolled back", False, Silence.HUNG),
    ],
)
def test_a_journald_that_takes_no_messages_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str, answers: bool | None, silence: Silence | None
) -> None:
    unit, address = "systemd-journald.service", tmp_path / "socket"
    (tmp_path / MACHINE).mkdir()
    for name, value in (("BOOTED", f"{tmp_path}"), ("RUNNING", f"{tmp_path}/running:")):
        monkeypatch.setattr(obstacles, name, value)
    monkeypatch.setattr(obstacles, "MASKING", (f"{tmp_path}/masked",))
    monkeypatch.setattr(control, "RUNTIME", f"{tmp_path}")
    monkeypatch.setattr(layout, "TOP", f"{tmp_path}")
    monkeypatch.setattr(layout, "read_machine_id", lambda *_: MACHINE)
    monkeypatch.setattr(control, "is_responsive", lambda *_: answers)
    monkeypatch.setattr(obstacles, "is_left_by_rollback", lambda path: state == "rolled back" and path == layout.TOP)
    if state in {"running", "rolled back"}:
        (tmp_path / f"running:{unit}").symlink_to("0123456789abcdef")
    if state == "masked":
        (tmp_path / "masked").mkdir()
        (tmp_path / "masked" / unit).symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        if state == "listening":
            listener.bind(f"{address}")
        found = obstacles.find_silent(obstacles.list_places([f"{tmp_path}"]), 1)
    assert found == (() if silence is None else ((unit, silence),))
