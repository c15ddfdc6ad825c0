# SPDX-License-Identifier: LGPL-2.1-or-later
"""What btrfs or its tools do with a whole volume just now, and the disks that it lies on.

Read without privilege, from files that are there anyway; what cannot be read is
not going on.

Source: fs/btrfs/sysfs.c, exclusive_operation (Linux 5.10) and devices; btrfs-progs,
cmds/scrub.c: a running `btrfs scrub` listens on scrub.progress.UUID and writes
scrub.status.UUID every 5 s. The kernel's own word, BTRFS_IOC_SCRUB_PROGRESS, is for
CAP_SYS_ADMIN alone.
"""

from __future__ import annotations

import os
import time

SYSFS = "/sys/fs/btrfs"
SCRUBS = "/var/lib/btrfs"

SCRUB_FRESH_S = 15.0
"""Three of the intervals in which a scrub writes its status: an older one was killed."""

PAUSED = " paused"
"""How a balance says that it waits for who knows whom: it moves nothing then."""


def maintenance(uuid: str, *, sysfs: str = SYSFS, scrubs: str = SCRUBS) -> str:
    """ "balance", "device replace" and its like, "scrub", or "" for nothing."""
    try:
        with open(f"{sysfs}/{uuid}/exclusive_operation", encoding="ascii") as file:
            operation = file.read().strip()
    except FileNotFoundError:
        operation = "none"
    if operation != "none" and not operation.endswith(PAUSED):
        return operation
    return "scrub" if _scrubbed(uuid, scrubs) else ""


def _scrubbed(uuid: str, scrubs: str) -> bool:
    try:
        os.stat(f"{scrubs}/scrub.progress.{uuid}")
        written_s = os.stat(f"{scrubs}/scrub.status.{uuid}").st_mtime
    except (FileNotFoundError, PermissionError):
        return False
    return abs(time.time() - written_s) < SCRUB_FRESH_S


def disks(uuid: str, *, sysfs: str = SYSFS) -> list[str]:
    """The kernel's names, as in /proc/diskstats, of the block devices of a mounted volume; none if it is gone.

    With them the disk of each partition and what device-mapper, md and bcache have below: a backup
    of another partition or logical volume shows only there. Source: Documentation/ABI/stable/sysfs-block.
    """
    top = f"{sysfs}/{uuid}/devices"
    return sorted({layer for name in _listed(top) for layer in _layers(os.path.realpath(f"{top}/{name}"))})


def _layers(device: str) -> set[str]:
    """The block device that has the directory `device` in sysfs, and all below it."""
    found = {os.path.basename(device)}
    if os.path.exists(f"{device}/partition"):
        found |= _layers(os.path.dirname(device))
    for name in _listed(f"{device}/slaves"):
        found |= _layers(os.path.realpath(f"{device}/slaves/{name}"))
    return found


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
