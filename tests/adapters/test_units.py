# SPDX-License-Identifier: LGPL-2.1-or-later
"""systemd's own tools accept the systemd units and their catalog. Nothing is started.

tests/guest/test_units.py runs the units on booted hosts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from journalkeeper.history import state
from journalkeeper.model.units import parse_span_us
from journalkeeper.service.log import Event
from tests.adapters.command import need, ran

UNITS = Path(__file__).parent.parent.parent / "units"
NOTIFY = UNITS / "journalkeeper-notify@.service"
SERVICES = sorted({*UNITS.glob("*.service")} - {NOTIFY})
"""All but the one that runs the administrator's command, which may need any right."""

EXPOSURE = 9
"""In tenths, as systemd-analyze counts: below 1.0."""

RIGHTS = "# -- Rights that it has, and why"


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    need("systemd-analyze")
    return ran("systemd-analyze", *words)


def copy_units(place: Path) -> list[Path]:
    """Copy the units to a directory, with a program in place of journalkeeper, because `verify` looks for it."""
    program = place / "journalkeeper"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = []
    for unit in (*SERVICES, NOTIFY, *UNITS.glob("*.timer"), *UNITS.glob("*.socket")):
        found.append(place / unit.name)
        found[-1].write_text(re.sub(r"(?m)^(Exec\w+=)journalkeeper ", rf"\1{program} ", unit.read_text()))
    return found


def directives(unit: Path, section: str = "Service") -> list[tuple[str, str]]:
    """Return a section's assignments in their order."""
    found, now = [], ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            now = line.strip("[]")
        elif now == section and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.append((name, value))
    return found


def test_systemd_accepts_every_unit(tmp_path: Path) -> None:
    units = copy_units(tmp_path)
    done = analyze("verify", "--man=no", *units)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert len(units) == 10


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_every_service_is_hardened(unit: Path) -> None:
    done = analyze("security", "--offline=yes", "--no-pager", f"--threshold={EXPOSURE}", unit)
    assert done.returncode == 0, done.stdout


def test_all_services_have_the_same_rights_and_no_more() -> None:
    """Only ReadWritePaths= differs: the journal may be created while the service runs."""
    rights = {}
    for unit in SERVICES:
        sandbox = unit.read_text().partition(RIGHTS)[2]
        assert sandbox, f"{unit.name} says nothing of its rights"
        found = [row for row in directives(unit) if "=".join(row) in sandbox.splitlines()]
        rights[unit.name] = [row for row in found if row[0] != "ReadWritePaths"]
    assert rights["journalkeeper.service"] == rights["journalkeeper-defrag.service"]
    assert rights["journalkeeper.service"] == rights["journalkeeper-shutdown.service"]
    assert len(rights["journalkeeper.service"]) > 20


def test_the_rights_for_remote_are_a_drop_in_that_the_admin_takes(tmp_path: Path) -> None:
    given = dict(directives(UNITS / "remote.conf"))
    assert given == {"CapabilityBoundingSet": "CAP_DAC_OVERRIDE CAP_FOWNER CAP_LEASE"}
    for unit in SERVICES:
        assert ("CapabilityBoundingSet", "") in directives(unit) or "measure" in unit.name
    with_it = tmp_path / "journalkeeper.service"
    with_it.write_text((UNITS / with_it.name).read_text() + (UNITS / "remote.conf").read_text())
    done = analyze("security", "--offline=yes", "--no-pager", f"--threshold={EXPOSURE}", with_it)
    assert done.returncode == 0, done.stdout


def test_the_timers_service_is_skipped_while_the_service_runs(tmp_path: Path) -> None:
    """Its condition is the lock that the service holds from its start to its end."""
    condition = dict(directives(UNITS / "journalkeeper-defrag.service"))["ExecCondition"]
    words = condition.replace("%S/journalkeeper", str(tmp_path)).split()
    assert ran(*words).returncode == 0
    with state.Lock(tmp_path, "daemon.lock"):
        assert ran(*words).returncode == 1
    with state.Lock(tmp_path):  # a run's own lock is no reason: it is waited out, or says who has it
        assert ran(*words).returncode == 0


def test_no_run_of_failures_leaves_a_host_without_the_service() -> None:
    """A start limit would end it for good; RestartSteps= is of systemd 254, and 252 warns of it."""
    unit = UNITS / "journalkeeper.service"
    words = dict([*directives(unit, "Unit"), *directives(unit)])
    assert (words["StartLimitIntervalSec"], words["Restart"]) == ("0", "on-failure")
    assert 10_000_000 <= parse_span_us(words["RestartSec"]) <= 30_000_000  # a replaced directory: within a minute
    assert "RestartSteps" not in words


def test_journalctl_takes_the_catalog_which_explains_every_event_and_no_other(tmp_path: Path) -> None:
    need("journalctl")
    place = tmp_path / "usr/lib/systemd/catalog"
    place.mkdir(parents=True)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    shutil.copy(UNITS / "journalkeeper.catalog", place)
    root = f"--root={tmp_path}"
    ran("journalctl", root, "--update-catalog", check=True)
    listed = ran("journalctl", root, "--list-catalog", check=True).stdout
    assert sorted(line.split()[0] for line in listed.splitlines()) == sorted(Event)
