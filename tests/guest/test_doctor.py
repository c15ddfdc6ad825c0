# SPDX-License-Identifier: LGPL-2.1-or-later
"""What doctor tells of a booted host from its disk: a healthy one, and one that lost messages and its journald.

journalkeeper is not installed there: the host's journal is read from here by -D. What only the host itself can tell is
in test_host.py, where it is installed.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.cli import program
from journalkeeper.health.evidence import Journal
from journalkeeper.observe.journal import read_journal
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.guest.conftest import require_guest
from tests.guest.host import Guest
from tests.guest.steps import eventually
from tests.volumes import make_images

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]

TALKS = "for i in $(seq 200); do echo line $i; done; sleep 2; echo again"
LIMITED = ("--property=LogRateLimitIntervalSec=1s", "--property=LogRateLimitBurst=10")


def doctor(guest: Guest, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The findings by their rules."""
    guest.run("journalctl", "--sync", check=False)  # journald may just be coming back
    assert program.run(["doctor", "-j", "-D", str(guest.journal.parent)]) == 0
    return {one["rule"]: one for one in json.loads(capsys.readouterr().out)["findings"]}


def problems(findings: dict[str, Any]) -> list[Any]:
    return [one for one in findings.values() if one["severity"] == "problem"]


def test_a_host_as_debian_ships_it_has_no_problem(guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(doctor(guest, capsys)) == []


def test_a_host_on_two_mirrored_disks_has_no_problem_and_is_advised(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    require_guest()
    with ExitStack() as stack:
        volume = stack.enter_context(ScratchVolume(images=make_images(tmp_path, "4G", "raid1")))
        guest = stack.enter_context(Guest("bookworm", volume=volume, nocow=True))
        guest.boot()
        found = doctor(guest, capsys)
    assert problems(found) == []
    assert found["nocow-redundant"]["facts"]["data_profiles"] == ["raid1"]


def test_a_boot_takes_as_long_as_systemd_says(guest: Guest) -> None:
    guest.run("journalctl", "--sync")
    found = read_journal(str(guest.journal.parent), 10_000, ())
    assert isinstance(found, Journal)
    boot = found.boots[-1]
    assert boot.userspace_us is not None
    assert boot.flush_us is not None
    assert boot.userspace_us / 1e6 == pytest.approx(guest.boot_seconds(), rel=0.01)
    assert boot.flush_us / 1e6 == pytest.approx(guest.flush_seconds(), rel=0.1)


def test_lost_messages_and_a_journald_that_was_shot(guest: Guest, capsys: pytest.CaptureFixture[str]) -> None:
    guest.run("systemd-run", "--quiet", "--wait", "--unit=talker", *LIMITED, "bash", "-c", TALKS)
    guest.run("systemctl", "kill", "--signal=ABRT", "systemd-journald.service")
    assert eventually(lambda: {"dropped", "journald-ended"} <= doctor(guest, capsys).keys())
    found = doctor(guest, capsys)
    assert found["dropped"]["facts"]["units"] == ["talker.service"]
    assert 100 < found["dropped"]["facts"]["messages"] <= 190  # the fuller the disk, the fewer are let through
    assert (found["journald-ended"]["severity"], found["journald-ended"]["facts"]["ended"]) == ("problem", 1)
    assert found["journald-ended"]["facts"]["results"] in (["signal"], ["core-dump"], ["watchdog"])
