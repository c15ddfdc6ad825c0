# SPDX-License-Identifier: LGPL-2.1-or-later
"""The volume as btrfs(8) and mount(8) tell it, and as nobody sees it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.btrfs.volume import read_mount_options, read_volume, require_btrfs
from journalkeeper.journald.opening import open_directory
from journalkeeper.model import MIB, Volume
from journalkeeper.model.errors import NotBtrfsError
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.nobody import as_nobody
from tests.patience import eventually
from tests.volumes import make_images

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


@pytest.mark.parametrize(("profile", "redundant"), [("single", False), ("dup", True), ("raid1", True)])
def test_a_profile_with_copies_is_redundant(make_volume: MakeVolume, profile: str, redundant: bool) -> None:
    scratch = make_volume("256M", profile=profile)
    (scratch.mountpoint / "file").write_bytes(b"x" * MIB)
    found = seen(scratch.mountpoint)
    assert (found.data_profile, found.redundant) == (profile, redundant)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_missing_device_has_no_free_space(tmp_path: Path, is_known: bool) -> None:
    """The kernel names the path of a device that it has seen before, also if the device is missing now.

    And it claims whatever has this path now, so the loop device stays, with nothing on it.
    """
    images = make_images(tmp_path, "256M", "raid1")
    with ScratchVolume(images=images) as scratch:
        whole = seen(scratch.mountpoint)
        scratch.unmount()
        scratch.await_release()
        if not is_known:
            run("btrfs", "device", "scan", "--forget", scratch.devices[1])
        os.truncate(images[1], 0)
        os.truncate(images[1], images[0].stat().st_size)
        scratch.options = "degraded"
        scratch.mount()
        found = seen(scratch.mountpoint)
    assert found.uuid == whole.uuid
    assert found.unallocated_bytes == whole.unallocated_bytes / 2


def test_a_subvolume_has_its_own_number_and_device(volume: ScratchVolume) -> None:
    sub = volume.mountpoint / "sub"
    run("btrfs", "subvolume", "create", sub)
    top, below = seen(volume.mountpoint), seen(sub)
    assert top.subvolume == 5
    assert below.subvolume == int(run("btrfs", "inspect-internal", "rootid", sub))
    assert below.device == sub.stat().st_dev != top.device
    assert below.uuid == top.uuid
    assert below.options == top.options


def test_a_directory_is_on_its_own_if_it_or_its_parent_is_a_subvolume(volume: ScratchVolume) -> None:
    log = volume.mountpoint / "var/log"
    log.mkdir(parents=True)
    run("btrfs", "subvolume", "create", log / "journal")
    (log / "journal/machine/deeper").mkdir(parents=True)
    assert seen(log / "journal").own_subvolume
    assert seen(log / "journal/machine").own_subvolume
    assert not seen(log / "journal/machine/deeper").own_subvolume
    assert not seen(log).own_subvolume


def test_the_mount_that_the_descriptor_came_through_counts(volume: ScratchVolume) -> None:
    run("btrfs", "subvolume", "create", volume.mountpoint / "sub")
    again = volume.base / "again"
    again.mkdir()
    run("mount", "--bind", "-o", "ro", volume.mountpoint / "sub", again)
    try:
        assert "ro" in seen(again).options
        assert "rw" not in seen(again).options
        assert "rw" in seen(volume.mountpoint / "sub").options
    finally:
        run("umount", again)


def test_a_mount_that_is_gone_from_sight_has_no_options(volume: ScratchVolume) -> None:
    again = volume.base / "again"
    again.mkdir()
    run("mount", "--bind", volume.mountpoint, again)
    with open_directory(str(again)) as fd:
        run("umount", "--lazy", again)
        assert read_mount_options(fd) == ()


def test_another_filesystem_is_named() -> None:
    with open_directory("/proc") as fd, pytest.raises(NotBtrfsError, match=r"^/proc: not on btrfs") as caught:
        require_btrfs(fd, "/proc")
    assert caught.value.path == "/proc"


def test_nobody_sees_the_same(place: Path) -> None:
    with open_directory(str(place)) as fd:
        assert eventually(lambda: as_nobody(lambda: read_volume(fd)) == read_volume(fd))  # free space can change
