# SPDX-License-Identifier: LGPL-2.1-or-later
"""Maintenance of a whole volume (balance, scrub, device replace), and the disks of a volume.

All functions work without privilege. If a file cannot be read, they assume that no operation is running.

Source: fs/btrfs/sysfs.c, exclusive_operation (Linux 5.10) and devices; btrfs-progs, cmds/scrub.c: a running `btrfs
scrub` listens on scrub.progress.UUID and writes scrub.status.UUID every 5 s. BTRFS_IOC_SCRUB_PROGRESS would need
CAP_SYS_ADMIN.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from glob import glob

SYSFS = "/sys/fs/btrfs"
SCRUBS = "/var/lib/btrfs"

SCRUB_FRESH_S = 15.0
"""Three times the interval in which a scrub writes its status. If the status is older, the scrub was killed."""

PAUSED = " paused"
"""The ending of exclusive_operation while a balance is paused. A paused balance moves nothing."""


def find_maintenance(uuid: str, *, sysfs: str = SYSFS, scrubs: str = SCRUBS) -> str:
    """Return the name of an operation that runs on the volume, or "" if none runs or no file can be read.

    It is a kernel's name ("balance", unless paused), or "scrub" with its socket and a fresh status (SCRUB_FRESH_S).
    """
    with suppress(OSError), open(f"{sysfs}/{uuid}/exclusive_operation", encoding="ascii") as file:
        operation = file.read().strip()
        if operation != "none" and not operation.endswith(PAUSED):
            return operation
    with suppress(OSError):
        os.stat(f"{scrubs}/scrub.progress.{uuid}")
        if abs(time.time() - os.stat(f"{scrubs}/scrub.status.{uuid}").st_mtime) < SCRUB_FRESH_S:
            return "scrub"
    return ""


def list_disks(uuid: str, *, sysfs: str = SYSFS) -> list[str]:
    """Return the sorted names (/proc/diskstats) of a mounted volume's devices and all below them; [] if it is gone.

    They are each partition or mapped device, and the disks on which it lies. Only a whole disk's statistics show the
    load of its other partitions and logical volumes, such as a backup.

    Source: Documentation/ABI/stable/sysfs-block.
    """
    devices = map(os.path.realpath, glob(f"{sysfs}/{uuid}/devices/*"))
    return sorted({layer for device in devices for layer in _find_layers(device)})


def _find_layers(sys_path: str) -> set[str]:
    """Return the names of the device at the real path `sys_path`, of its partition's disk, and of all below them."""
    found = {os.path.basename(sys_path)}
    if os.path.exists(f"{sys_path}/partition"):
        found |= _find_layers(os.path.dirname(sys_path))
    for slave in glob(f"{sys_path}/slaves/*"):
        found |= _find_layers(os.path.realpath(slave))
    return found
