# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lab without a lab: its traffic, and the one line it says where it cannot work."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from journalkeeper.model.errors import KeeperError
from journalkeeper.probe import bed
from journalkeeper.probe import scratch_volume as volume
from journalkeeper.probe.bed import messages


def test_some_fields_are_new_in_every_message_and_some_come_back() -> None:
    sample = list(itertools.islice(messages(), 5000))
    assert len({fields["LAB_REQUEST"] for fields in sample}) == 5000
    assert len({fields["LAB_USER"] for fields in sample}) <= 2000
    assert all(fields["MESSAGE"] for fields in sample)


MOUNTS = "1 0 0:1 / / rw shared:1 - ext4 /dev/sda rw\n"
CHROOT = "9 1 0:2 / /proc rw - proc proc rw\n"


@pytest.mark.parametrize(("mounts", "propagation"), [(MOUNTS, "private"), (CHROOT, "unchanged")])
def test_mounts_are_never_seen_outside(monkeypatch: pytest.MonkeyPatch, mounts: str, propagation: str) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: mounts)
    assert volume.own_mounts()[-1] == propagation


def test_a_chroot_that_shares_its_mounts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(Path, "read_text", lambda _: CHROOT + "8 1 0:3 / /sys rw shared:7 - sysfs sys rw\n")
    assert volume.missing() == "this chroot shares its mounts: `mount --bind ROOT ROOT` before entering it"


@pytest.mark.parametrize("missing", [volume.missing, bed.missing_for_journald])
def test_a_user_is_told_what_only_root_may(missing: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (missing() or "").endswith("root: run with sudo")


def test_what_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert volume.missing() == "mkfs.btrfs is not installed (package btrfs-progs)"
    monkeypatch.setattr(bed, "JOURNALD", (str(tmp_path / "systemd-journald"),))
    with pytest.raises(KeeperError, match=r"systemd-journald is not installed \(package systemd\)"):
        bed.PrivateJournald(tmp_path)


@pytest.mark.parametrize("text", ["", "uninitialized"])
def test_a_machine_without_an_id_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(bed, "find_program", lambda: "/lib/systemd/systemd-journald")
    monkeypatch.setattr(bed, "read_machine_id", lambda: text)
    assert "systemd-machine-id-setup" in (bed.missing_for_journald() or "")


def test_a_command_that_fails_is_quoted_with_its_own_words() -> None:
    with pytest.raises(KeeperError, match=r"ls /nowhere/at/all: exit 2: .*No such file"):
        volume.run("ls", "/nowhere/at/all")
