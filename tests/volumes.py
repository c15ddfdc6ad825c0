# SPDX-License-Identifier: LGPL-2.1-or-later
"""Images of btrfs volumes, and the disk usage, extents and caches of files on them."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.bed import JOURNALD, PrivateJournald
from journalkeeper.probe.scratch_volume import OWN_MOUNTS, ScratchVolume, run

DISKS = {"single": 1, "dup": 1, "raid1": 2, "raid10": 4}


def why_no_bed() -> str | None:
    """Return one line that states why no scratch volume with a journald can be made here; None if it can."""
    if os.geteuid() != 0:
        return "loop devices and mounts need root: run with sudo"
    if not os.access(JOURNALD, os.X_OK):
        return "systemd-journald is not installed (package systemd)"
    if shutil.which("mkfs.btrfs") is None:
        return "mkfs.btrfs is not installed (package btrfs-progs)"
    try:
        run(*OWN_MOUNTS, "losetup", "--find")
    except KeeperError as error:
        return str(error)
    return None


def make_images(directory: Path, size: str, profile: str = "single") -> list[Path]:
    """Return new images of a btrfs with this data profile, one for each disk that it needs."""
    images = [directory / f"disk{number}.img" for number in range(DISKS[profile])]
    run("truncate", "-s", size, *images)
    run("mkfs.btrfs", "-q", "-d", profile, *images)
    return images


def limit(volume: ScratchVolume, iops: int) -> None:
    """Limit the requests a second of a volume's disks. Skip the test if this kernel cannot."""
    try:
        volume.throttle(iops)
    except KeeperError as error:
        pytest.skip(str(error))


def kill(journald: PrivateJournald) -> None:
    """Kill journald. Unsynced files stay ONLINE, as after a power cut."""
    os.kill(journald.pid, signal.SIGKILL)
    journald.stop()


def drop_caches() -> None:
    """Write dirty pages back and empty the page cache, so that the next read is cold."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def disk_bytes(*paths: str | os.PathLike[str]) -> int:
    """Return the disk usage of files or trees by compsize(8), in bytes, shared extents counted once; 0 if nothing is
    stored.
    """
    try:
        lines = run("compsize", "-b", *paths).splitlines()
    except KeeperError as error:
        if "All empty or still-delalloced" in str(error):
            return 0
        raise
    return next(int(line.split()[2]) for line in lines if line.startswith("TOTAL"))


def filefrag(*paths: str | os.PathLike[str], sync: bool = False) -> list[int]:
    """Return the number of extents of each file by filefrag(8).

    Only data on the disk is counted. With `sync`, dirty pages are written first, which adds a flush that journald did
    not choose.
    """
    words = ("filefrag", "-s") if sync else ("filefrag",)
    return [int(found) for found in re.findall(r": (\d+) extents? found", run(*words, *paths))]


def extents(path: str | os.PathLike[str], *, sync: bool = False) -> int:
    """Return the number of extents of one file, as `filefrag`."""
    return filefrag(path, sync=sync)[0]
