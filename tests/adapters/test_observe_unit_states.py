# SPDX-License-Identifier: LGPL-2.1-or-later
"""The states of units, from a systemctl that says what a test has it say; tests/guest asks the real one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.health.evidence import Silence, Unit, Unknown
from journalkeeper.journald import control, layout
from journalkeeper.observe import presence
from journalkeeper.observe.unit_states import read_units
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
    found = read_units()
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
    monkeypatch.setattr("journalkeeper.observe.unit_states.ANSWER_S", answer_s)
    systemctl(lines)
    found = read_units()
    assert isinstance(found, Unknown)
    assert words in found.why


@pytest.mark.parametrize(
    ("states", "answers", "silence"),
    [
        (("active", "active"), True, None),
        (("active", "active"), None, None),
        (("active", "active"), False, Silence.HUNG),
        (("reloading", "active"), False, Silence.HUNG),
        (("failed", "failed"), None, Silence.FAILED),
        (("inactive masked", "active"), None, Silence.MASKED),
        (("inactive masked-runtime", "inactive"), None, Silence.MASKED),
        (("inactive", "inactive"), None, Silence.STOPPED),
        (("inactive", "active"), None, None),  # the next message starts it
        (("activating", "active"), None, None),
    ],
)
def test_a_journald_that_takes_no_messages_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    states: tuple[str, str],
    answers: bool | None,
    silence: Silence | None,
) -> None:
    (tmp_path / MACHINE).mkdir()
    monkeypatch.setattr(presence, "BOOTED", f"{tmp_path}")
    monkeypatch.setattr(layout, "TOP", f"{tmp_path}")
    monkeypatch.setattr(layout, "read_machine_id", lambda: MACHINE)
    monkeypatch.setattr(control, "answers", lambda *_: answers)
    name = "systemd-journald.service"
    units = (
        Unit(name, states[0].split()[0], "", states[0].partition(" ")[2]),
        Unit("systemd-journald.socket", states[1], ""),
    )
    monkeypatch.setattr(presence, "read_units", lambda _: units)
    assert presence.find_silent((f"{tmp_path}",), 1) == (() if silence is None else ((name, silence),))
