# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the system says about its volumes and its service manager, and what it leaves out."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from journalkeeper.btrfs.maintenance import SCRUB_FRESH_S, find_maintenance, list_disks
from journalkeeper.observe import load
from journalkeeper.service.log import Notify

UUID = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    place = tmp_path / "sysfs" / UUID
    (place / "devices" / "sdb").mkdir(parents=True)
    (place / "devices" / "sda").mkdir()
    (place / "exclusive_operation").write_text("none\n")
    (tmp_path / "scrubs").mkdir()
    return tmp_path


def going_on(base: Path) -> str:
    return find_maintenance(UUID, sysfs=f"{base / 'sysfs'}", scrubs=f"{base / 'scrubs'}")


@pytest.mark.parametrize(
    ("word", "expected"),
    [("none", ""), ("balance", "balance"), ("balance paused", ""), ("device replace", "device replace")],
)
def test_exclusive_operations_are_told_while_they_move(volume: Path, word: str, expected: str) -> None:
    (volume / "sysfs" / UUID / "exclusive_operation").write_text(f"{word}\n")
    assert going_on(volume) == expected


MOUSE = "hidpp_battery_0: Battery Device Discharging 1"
DRAINS = "BAT0: Battery - Discharging -"
MAINS = (
    *("", MOUSE, "ups: UPS - Discharging -", f"ACAD: Mains - - 1, {DRAINS}"),  # drains below a charger's power
    *(f"BAT0: Battery - {status} -" for status in ("Charging", "Full", "Not_charging", "Unknown", "-")),
)
BATTERY = (
    *(DRAINS, "BAT0: Battery System Discharging -", f"{MOUSE}, {DRAINS}", f"ACAD: Mains - - 0, {DRAINS}"),
    *(f"ADP1: Mains - - -, BAT1: Battery - Full -, {DRAINS}", f"ucsi: USB - - 1, {DRAINS}"),  # it may feed a phone
)


@pytest.mark.parametrize(
    ("supplies", "expected"), [*((one, False) for one in MAINS), *((one, True) for one in BATTERY)]
)
def test_a_host_is_on_battery_while_its_battery_discharges(tmp_path: Path, supplies: str, *, expected: bool) -> None:
    for supply in filter(None, supplies.split(", ")):
        name, *values = supply.replace(":", "").split()
        (tmp_path / name).mkdir()
        for key, value in zip(("type", "scope", "status", "online"), values, strict=True):
            if value != "-":
                (tmp_path / name / key).write_text(value.replace("_", " ") + "\n")
    assert load.is_on_battery(str(tmp_path)) is expected


def test_without_a_readable_file_nothing_is_going_on(volume: Path) -> None:
    file = volume / "sysfs" / UUID / "exclusive_operation"
    file.unlink()
    assert going_on(volume) == ""
    file.mkdir()
    assert going_on(volume) == ""


@pytest.mark.parametrize(
    ("listens", "age_s", "expected"),
    [(True, 0, "scrub"), (True, SCRUB_FRESH_S - 1, "scrub"), (True, SCRUB_FRESH_S + 1, ""), (False, 0, "")],
    ids=["runs", "between two statuses", "killed", "over"],
)
def test_a_scrub_listens_and_writes_its_status(
    volume: Path, monkeypatch: pytest.MonkeyPatch, listens: bool, age_s: float, expected: str
) -> None:
    status = volume / "scrubs" / f"scrub.status.{UUID}"
    status.touch()
    written_s = status.stat().st_mtime
    monkeypatch.setattr("time.time", lambda: written_s + age_s)
    if listens:
        (volume / "scrubs" / f"scrub.progress.{UUID}").touch()
    assert going_on(volume) == expected


def test_a_volume_has_its_disks_while_it_is_mounted(volume: Path) -> None:
    assert list_disks(UUID, sysfs=f"{volume / 'sysfs'}") == ["sda", "sdb"]
    assert list_disks("gone", sysfs=f"{volume / 'sysfs'}") == []


def test_below_partitions_and_logical_volumes_are_disks(volume: Path) -> None:
    """LUKS on the second partition of one disk, and a partition of another."""
    blocks = volume / "devices"
    for partition in ("vda/vda2", "vdb/vdb1"):
        (blocks / partition).mkdir(parents=True)
        (blocks / partition / "partition").touch()
    (blocks / "dm-0" / "slaves").mkdir(parents=True)
    (blocks / "dm-0" / "slaves" / "vda2").symlink_to("../../vda/vda2")
    (volume / "sysfs" / "other" / "devices").mkdir(parents=True)
    for name, target in {"dm-0": "dm-0", "vdb1": "vdb/vdb1"}.items():
        (volume / "sysfs" / "other" / "devices" / name).symlink_to(f"../../../devices/{target}")
    assert list_disks("other", sysfs=f"{volume / 'sysfs'}") == ["dm-0", "vda", "vda2", "vdb", "vdb1"]


def test_the_busiest_disk_of_a_volume_is_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """sda is busy for 40 ms of 100 ms, sdb for 10 ms; nothing is known of the disk of the third volume."""
    disks = {"u": ["sda", "sdb"], "v": ["sdb"], "w": ["sdc"]}
    monkeypatch.setattr(load, "list_disks", disks.get)
    monkeypatch.setattr(load, "_read_busy_ms", Mock(side_effect=[{"sda": 7, "sdb": 5}, {"sda": 47, "sdb": 15}]))
    monkeypatch.setattr(load, "time", Mock(monotonic=Mock(side_effect=[3.0, 3.1])))
    assert load.measure_busy_percent(disks, 0.1) == {"u": 40, "v": 10}


# The service manager


@pytest.fixture
def ear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as listener:
        listener.bind(f"{tmp_path / 'notify'}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path / 'notify'}")
        yield listener


def test_a_name_with_a_line_in_it_gives_the_manager_no_orders(ear: socket.socket) -> None:
    Notify().set_status("working on remote-a\nMAINPID=1\udcff.journal")
    assert ear.recv(1000) == rb"STATUS=working on remote-a\nMAINPID=1\udcff.journal"


def test_the_same_status_is_said_once(ear: socket.socket) -> None:
    notify = Notify()
    for sentence in ("idle", "idle", "working"):
        notify.set_status(sentence)
    assert [ear.recv(1000), ear.recv(1000)] == [b"STATUS=idle", b"STATUS=working"]
    with pytest.raises(BlockingIOError):
        ear.recv(1000)


@pytest.mark.parametrize(("usec", "expected"), [("3000000", 1.5), (None, 0)])
def test_the_watchdog_is_fed_twice_in_its_time(
    monkeypatch: pytest.MonkeyPatch, usec: str | None, expected: float
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    if usec is not None:
        monkeypatch.setenv("WATCHDOG_USEC", usec)
    assert Notify().watchdog_s == expected
