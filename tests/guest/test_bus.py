# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bus on booted hosts: who asks for the name has systemd start the service, under all its confinement."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from journalkeeper.bus import names
from tests.guest import steps
from tests.guest.conftest import datacow_guest
from tests.guest.host import Guest
from tests.guest.steps import eventually, extents, property_of

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow]

WHERE = f"{names.BUS_NAME} {names.MANAGER_PATH} {names.MANAGER}"
UNIT = "journalkeeper.service"
AS_NOBODY = "runuser -u nobody -- "


@pytest.fixture(scope="module")
def guest(release: str) -> Iterator[Guest]:
    """A datacow host with journalkeeper, which only watches what it is not asked for."""
    with datacow_guest(release) as host:
        steps.install(host, "[Budget]\nBytesPerDay=0\n[Nocow]\nNocow=no\n", "--no-start")
        yield host


def test_a_call_starts_the_service_only_where_it_is_enabled(guest: Guest) -> None:
    read = f"{AS_NOBODY}busctl --json=short get-property {WHERE} Paused"
    assert "not found" in guest.shell(f"{read} 2>&1 || true")  # installed, and never enabled
    assert property_of(guest, UNIT, "ActiveState") == "inactive"
    guest.shell(f"systemctl enable {UNIT}")
    assert json.loads(guest.shell(read))["data"] is False
    assert property_of(guest, UNIT, "ActiveState") == "active"
    assert property_of(guest, UNIT, "BusName") == names.BUS_NAME
    guest.shell(f"systemctl disable --now {UNIT}")
    assert "not found" in guest.shell(f"{read} 2>&1 || true")
    assert property_of(guest, UNIT, "ActiveState") == "inactive"
    guest.shell(f"systemctl enable --now {UNIT}")


def test_nobody_reads_and_is_denied_the_rest_by_the_hosts_own_polkit(guest: Guest) -> None:
    assert guest.shell(f"{AS_NOBODY}busctl get-property {WHERE} Directories") == 'as 1 "/var/log/journal"\n'
    said = guest.shell(f"{AS_NOBODY}busctl call {WHERE} Pause t 0 2>&1 || true")
    assert "ccess denied" in said or "polkit" in said
    assert guest.shell(f"busctl get-property {WHERE} Paused") == "b false\n"


def test_a_job_rewrites_an_archive(guest: Guest) -> None:
    made = steps.archive(guest)
    before = extents(guest)[made]
    for _ in range(3):  # a job leaves the archive alone while journald still works on it
        job = guest.shell(f"busctl call {WHERE} Defragment 'a{{sv}}' 2 now b true archived b true").split('"')[1]
        if eventually(lambda: extents(guest)[made] < before / 10, 20):
            break
    assert extents(guest)[made] < before / 10
    document = f"busctl --json=short call {WHERE} Result o {job}"
    assert eventually(lambda: "outcomes" in guest.shell(f"{document} || true"))
    (text,) = json.loads(guest.shell(document))["data"]
    assert json.loads(text)["totals"]["failed"] == 0
