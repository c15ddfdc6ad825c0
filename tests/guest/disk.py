# SPDX-License-Identifier: LGPL-2.1-or-later
"""Unplug the disk of a loop device under a mounted filesystem, and plug it in again.

The device is shrunk to one sector. From that moment every write fails, also one that the block layer's throttle holds
back, and the content of page caches is lost. This models a disk that keeps every write that it has acknowledged
(without a volatile write cache, or with a battery). It does not model acknowledged writes that are lost or reordered,
nor a sector that is half written.
"""

from __future__ import annotations

import fcntl
import os
import struct

LOOP_SET_STATUS64 = 0x4C04
LOOP_GET_STATUS64 = 0x4C05
INFO_BYTES = 232
SIZELIMIT_OFFSET = 32
SECTOR_BYTES = 512


def unplug(*devices: str) -> None:
    """Make every further read or write of loop devices fail.

    Raises: OSError, EBUSY on a kernel that changes no loop device in use.
    Source: linux/loop.h, struct loop_info64.
    """
    for device in devices:
        _limit(device, SECTOR_BYTES)


def plug(*devices: str) -> None:
    """Undo `unplug`. Nothing may be mounted from the devices."""
    for device in devices:
        _limit(device, 0)


def _limit(device: str, limit_bytes: int) -> None:
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        info = bytearray(INFO_BYTES)
        fcntl.ioctl(descriptor, LOOP_GET_STATUS64, info)
        struct.pack_into("=Q", info, SIZELIMIT_OFFSET, limit_bytes)
        fcntl.ioctl(descriptor, LOOP_SET_STATUS64, info)
    finally:
        os.close(descriptor)
