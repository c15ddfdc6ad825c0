# SPDX-License-Identifier: LGPL-2.1-or-later
"""doctor -D reads the disk of a booted host, on which journalkeeper is not installed: a boot, and a killed journald."""

from __future__ import annotations

import json
from typing import Any

import pytest

from journalkeeper.cli import program
from journalkeeper.health.evidence import Journal
from journalkeeper.observe.journal import read_journal
from tests.guest.host import Guest
from tests.guest.steps import eventually

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]


def doctor(guest: Guest, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the findings by their rules."""
    guest.run("journalctl", "--sync", check=False)  # journald may just be coming back
    assert program.run(["doctor", "-j", "-D", str(guest.journal.parent)]) == 0
    return {one["rule"]: one for one in json.loads(capsys.readouterr().out)["findings"]}


def test_a_boot_takes_as_long_as_systemd_reports(guest: Guest) -> None:
    guest.run("journalctl", "--sync")
    found = read_journal(str(guest.journal.parent), 10_000, ())
    assert isinstance(found, Journal)
    boot = found.boots[-1]
    assert boot.userspace_us is not None
    assert boot.flush_us is not None
    assert boot.userspace_us / 1e6 == pytest.approx(guest.boot_seconds(), rel=0.01)
    assert 0 < boot.flush_us / 1e6 < guest.flush_seconds()  # the unit also starts journalctl


def test_a_killed_journald_is_found(guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    guest.run("systemctl", "kill", "--signal=ABRT", "systemd-journald.service")
    assert eventually(lambda: "journald-ended" in doctor(guest, capsys))
    found = doctor(guest, capsys)["journald-ended"]
    assert (found["severity"], found["facts"]["ended"]) == ("advice", 1)
    assert found["facts"]["results"] in (["signal"], ["core-dump"], ["watchdog"])
