# SPDX-License-Identifier: LGPL-2.1-or-later
"""The volume as btrfs(8) and mount(8) tell it, and as nobody sees it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.btrfs.volume import read_volume, require_btrfs
from journalkeeper.journald.opening import open_directory
from journalkeeper.model import MIB, Volume
from journalkeeper.model.errors import NotBtrfsError
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.nobody import as_nobody
from tests.patience import eventually

pytestmark = pytest.mark.root

MakeVolume = Callable[..., ScratchVolume]


def seen(path: Path) -> Volume:
    with open_directory(str(path)) as fd:
        return read_volume(fd)


def usage(path: Path, what: str) -> int:
    found = re.search(what + r":?\s+(\d+)", run("btrfs", "filesystem", "usage", "-b", path))
    assert found
    return int(found[1])


def test_the_numbers_are_those_of_btrfs_filesystem_usage(place: Path, shared_volume: ScratchVolume) -> None:
    (place / "file").write_bytes(os.urandom(5 * MIB))
    run("btrfs", "filesystem", "sync", place)
    found = seen(place)
    table = run("btrfs", "filesystem", "df", "-b", place)
    kinds = {
        kind: (int(total), int(used)) for kind, total, used in re.findall(r"(\w+), \w+: total=(\d+), used=(\d+)", table)
    }
    assert found.unallocated_bytes == usage(place, "Device unallocated")
    assert found.free_bytes == kinds["Data"][0] - kinds["Data"][1]
    assert found.metadata_free_bytes == kinds["Metadata"][0] - kinds["Metadata"][1]
    assert found.uuid == run("blkid", "-p", "-s", "UUID", "-o", "value", shared_volume.device).strip()
    assert found.device == place.stat().st_dev


@pytest.mark.parametrize("missing", [False, True])
def test_a_missing_device_has_nothing_unallocated(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, missing: bool
) -> None:
    device = tmp_path / seen(place).uuid / "devinfo/1"
    device.mkdir(parents=True)
    (device / "missing").write_text(f"{missing:d}\n")
    monkeypatch.setattr("journalkeeper.btrfs.volume.SYSFS", f"{tmp_path}")
    assert (seen(place).unallocated_bytes == 0) is missing


@pytest.mark.parametrize(("profile", "redundant"), [("single", False), ("dup", True), ("raid1", True)])
def test_a_profile_with_copies_is_redundant(make_volume: MakeVolume, profile: str, redundant: bool) -> None:
    scratch = make_volume("256M", profile=profile)
    (scratch.mountpoint / "file").write_bytes(b"x" * MIB)
    found = seen(scratch.mountpoint)
    assert (found.data_profile, found.redundant) == (profile, redundant)


def test_a_subvolume_has_its_own_number_device_and_mount(volume: ScratchVolume) -> None:
    sub, again = volume.mountpoint / "sub", volume.base / "again"
    run("btrfs", "subvolume", "create", sub)
    (sub / "machine/deeper").mkdir(parents=True)
    again.mkdir()
    run("mount", "--bind", "-o", "ro", sub, again)
    try:
        top, below, bound = map(seen, (volume.mountpoint, sub, again))
    finally:
        run("umount", again)
    assert top.subvolume == 5
    assert below.subvolume == bound.subvolume == int(run("btrfs", "inspect-internal", "rootid", sub))
    assert below.device == sub.stat().st_dev != top.device
    assert below.uuid == top.uuid
    assert [("ro" in one.options, "rw" in one.options) for one in (top, below, bound)] == [
        *[(False, True)] * 2,
        (True, False),
    ]
    places = (volume.mountpoint, sub, sub / "machine", sub / "machine/deeper")
    assert [seen(place).own_subvolume for place in places] == [True, True, True, False]


def test_another_filesystem_is_named() -> None:
    with open_directory("/proc") as fd, pytest.raises(NotBtrfsError, match=r"^/proc: not on btrfs") as caught:
        require_btrfs(fd, "/proc")
    assert caught.value.path == "/proc"


def test_nobody_sees_the_same(place: Path) -> None:
    with open_directory(str(place)) as fd:
        assert eventually(lambda: as_nobody(lambda: read_volume(fd)) == read_volume(fd))  # free space can change
