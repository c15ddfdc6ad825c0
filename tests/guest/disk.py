# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pulling a loop device's disk away under a mounted filesystem, and plugging it in again.

What is not on the disk at the moment of the cut is lost, as with a real one.

The device is shrunk to one sector: every write from that moment on fails, also those that
the block layer's throttle still holds back, and what was in page caches never arrives.
This models a disk that keeps what it has said is written (no volatile write cache, or one
with a battery): it does not model completed writes that a cache loses or reorders, nor a
sector that is half written.
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
    """Let every further read or write of loop devices fail.

    Raises: OSError, EBUSY on a kernel that changes no loop device in use.
    Source: linux/loop.h, struct loop_info64.
    """
    for device in devices:
        _limit(device, SECTOR_BYTES)


def plug(*devices: str) -> None:
    """Undo `unplug`, once nothing is mounted from it any more."""
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
