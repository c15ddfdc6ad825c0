# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scratch volumes and private journalds are private, cold after a remount, and removed afterwards."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.bed import PrivateJournald
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.patience import eventually

pytestmark = pytest.mark.root


def holds(device: str, image: Path) -> bool:
    try:
        path = Path(f"/sys/block/{Path(device).name}/loop/backing_file").read_text().strip()
    except OSError:
        return False  # attached to nothing
    return path.endswith(str(image))  # attached in another namespace, it may begin further up


def test_a_volume_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeeperError, match="mount: "):
        ScratchVolume(options="nonsense", parent=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_held_open_does_not_keep_the_volume_mounted() -> None:
    volume = ScratchVolume()
    with open(volume.mountpoint / "held", "w"):
        volume.close()
    assert str(volume.mountpoint) not in Path("/proc/self/mountinfo").read_text()
    assert not volume.base.exists()


def test_after_a_remount_neither_the_volume_nor_its_image_is_in_memory() -> None:
    with ScratchVolume() as volume:
        (volume.mountpoint / "file").write_bytes(os.urandom(16 << 20))
        volume.remount()
        assert int(run("fincore", "--bytes", "--noheadings", "--output=RES", volume.images[0])) < 4 << 20


def test_a_volume_that_is_mounted_elsewhere_too_is_not_taken_for_cold() -> None:
    with ScratchVolume() as volume:
        elsewhere = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"]
        with subprocess.Popen(elsewhere, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            volume.unmount()
            try:
                with pytest.raises(KeeperError, match="still mounted in another mount namespace"):
                    volume.await_release(timeout_s=0.1)
            finally:
                other.kill()


def test_a_throttle_is_a_limit_and_ends_with_the_volume() -> None:
    with ScratchVolume() as volume:
        try:
            volume.throttle(100)
        except KeeperError as error:
            assert "cannot limit IOPS" in str(error)  # noqa: PT017 - either it works or it says why
            return
        number = os.stat(volume.device).st_rdev
        words = f"{os.major(number)}:{os.minor(number)} "
        limits = [Path("/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device"), *Path("/sys/fs/cgroup").glob("io.max")]
        assert any(words in limit.read_text() for limit in limits if limit.exists())
    # another test can have this device by now, and a limit of its own
    assert eventually(lambda: not any(words in limit.read_text() for limit in limits if limit.exists()))


def test_a_command_that_fails_is_quoted_with_its_own_words() -> None:
    with pytest.raises(KeeperError, match=r"ls /nowhere/at/all: exit 2: .*No such file"):
        run("ls", "/nowhere/at/all")


def test_the_hosts_journal_contains_no_entry_of_a_private_journald() -> None:
    with ScratchVolume() as scratch, PrivateJournald(scratch.mountpoint) as journald:
        assert os.readlink(f"/proc/{journald.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
        journald.log("nobody else hears this", LAB_COLOUR="invisible")
        journald.sync()
        for directory in ("/run/log/journal", "/var/log/journal"):
            if any(Path(directory).rglob("*.journal")):
                assert "nobody else" not in run(
                    "journalctl", "-D", directory, "-q", "-o", "cat", "LAB_COLOUR=invisible"
                )


def test_one_journald_does_not_hold_anothers_volume() -> None:
    with ScratchVolume() as outer, PrivateJournald(outer.mountpoint):
        inner = ScratchVolume()
        with PrivateJournald(outer.mountpoint / "second"):
            device, image = inner.device, inner.images[0]
            inner.close()
            assert eventually(lambda: not holds(device, image))
