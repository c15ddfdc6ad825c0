# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lab without a lab: its traffic, and the one line it says where it cannot work."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

from journalkeeper.probe import bed
from journalkeeper.probe import scratch_volume as volume
from journalkeeper.probe.bed import PrivateJournald, messages


def test_some_fields_are_new_in_every_message_and_some_come_back() -> None:
    sample = list(itertools.islice(messages(), 5000))
    assert len({fields["LAB_REQUEST"] for fields in sample}) == 5000
    assert len({fields["LAB_USER"] for fields in sample}) <= 2000
    assert all(fields["MESSAGE"] for fields in sample)


MOUNTS = "1 0 0:1 / / rw shared:1 - ext4 /dev/sda rw\n"
CHROOT = "9 1 0:2 / /proc rw - proc proc rw\n"


@pytest.mark.parametrize(
    ("mounts", "propagation"),
    [(MOUNTS, "private"), (CHROOT, "unchanged"), (CHROOT + "8 1 0:3 / /sys rw shared:7 - sysfs sys rw\n", None)],
    ids=["a root of its own", "a chroot", "a chroot that shares its mounts"],
)
def test_mounts_are_never_seen_outside(monkeypatch: pytest.MonkeyPatch, mounts: str, propagation: str | None) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: mounts)
    words = volume.own_mounts()
    assert (words[-1] if words else None) == propagation


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.parametrize("place", [volume, bed])
def test_a_user_is_told_what_only_root_may(place: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = volume.missing() if place is volume else bed.missing_for_journald()
    assert reason is not None
    assert reason.endswith("root: run with sudo")


@pytest.mark.usefixtures("as_root")
def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "mkfs.btrfs" else f"/sbin/{tool}")
    assert volume.missing() == "mkfs.btrfs is not installed (package btrfs-progs)"


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("refused", ["unshare", "losetup", "modprobe"])
def test_what_the_kernel_refuses_is_one_line_with_the_words_of_the_tool(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def run(*argv: str) -> str:
        if argv[0] == refused:
            raise RuntimeError(f"{refused}: exit 1: denied")
        return ""

    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(Path, "read_text", lambda path: MOUNTS if "mountinfo" in str(path) else "nodev\ttmpfs\n")
    monkeypatch.setattr(volume, "run", run)
    assert volume.missing() == f"{refused}: exit 1: denied"


@pytest.mark.usefixtures("as_root")
def test_without_systemd_journald_there_is_no_bed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bed, "JOURNALD", (str(tmp_path / "systemd-journald"),))
    assert bed.missing_for_journald() == "systemd-journald is not installed (package systemd)"
    with pytest.raises(RuntimeError, match="systemd-journald is not installed"):
        PrivateJournald(tmp_path)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("text", ["", "uninitialized\n", None])
def test_a_machine_without_an_id_is_told_how_to_get_one(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    def read(_: Path) -> str:
        if text is None:
            raise FileNotFoundError
        return text

    monkeypatch.setattr(bed, "program", lambda: "/lib/systemd/systemd-journald")
    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(Path, "read_text", read)
    assert "systemd-machine-id-setup" in (bed.missing_for_journald() or "")


def test_a_command_that_fails_is_quoted_with_its_own_words() -> None:
    with pytest.raises(RuntimeError, match=r"ls /nowhere/at/all: exit 2: .*No such file"):
        volume.run("ls", "/nowhere/at/all")
