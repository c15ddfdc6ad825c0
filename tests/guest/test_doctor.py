# SPDX-License-Identifier: LGPL-2.1-or-later
"""doctor -D reads the disk of a booted host: a healthy one, and one that lost messages and its journald.

journalkeeper is not installed there. test_host.py runs doctor on a host where it is.
"""

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

TALKS = "for i in $(seq 200); do echo line $i; done; while sleep 2; do echo again; done"
"""journald reports what it dropped with the next message that it lets through."""

LIMITED = ("--property=LogRateLimitIntervalSec=1s", "--property=LogRateLimitBurst=10")


def doctor(guest: Guest, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the findings by their rules."""
    guest.run("journalctl", "--sync", check=False)  # journald may just be coming back
    assert program.run(["doctor", "-j", "-D", str(guest.journal.parent)]) == 0
    return {one["rule"]: one for one in json.loads(capsys.readouterr().out)["findings"]}


def test_a_host_as_debian_ships_it_has_no_problem(guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    problems = {rule for rule, one in doctor(guest, capsys).items() if one["severity"] == "problem"}
    assert problems <= {"waits"}  # on a busy machine three of the first 200 messages may wait for a flush


def test_a_boot_takes_as_long_as_systemd_reports(guest: Guest) -> None:
    guest.run("journalctl", "--sync")
    found = read_journal(str(guest.journal.parent), 10_000, ())
    assert isinstance(found, Journal)
    boot = found.boots[-1]
    assert boot.userspace_us is not None
    assert boot.flush_us is not None
    assert boot.userspace_us / 1e6 == pytest.approx(guest.boot_seconds(), rel=0.01)
    assert 0 < boot.flush_us / 1e6 < guest.flush_seconds()  # the unit also starts journalctl


def test_lost_messages_and_a_killed_journald_are_found(guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    guest.run("systemd-run", "--quiet", "--unit=talker", *LIMITED, "bash", "-c", TALKS)
    assert eventually(lambda: "dropped" in doctor(guest, capsys))
    guest.run("systemctl", "stop", "talker.service")
    guest.run("systemctl", "kill", "--signal=ABRT", "systemd-journald.service")
    assert eventually(lambda: "journald-ended" in doctor(guest, capsys))
    found = doctor(guest, capsys)
    assert found["dropped"]["facts"]["units"] == ["talker.service"]
    assert 100 < found["dropped"]["facts"]["messages"] <= 190  # the fuller the disk, the fewer are let through
    assert (found["journald-ended"]["severity"], found["journald-ended"]["facts"]["ended"]) == ("advice", 1)
    assert found["journald-ended"]["facts"]["results"] in (["signal"], ["core-dump"], ["watchdog"])
