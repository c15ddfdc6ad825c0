# SPDX-License-Identifier: LGPL-2.1-or-later
"""BTRFS_IOC_DEFRAG_RANGE: ask the kernel to rewrite a range of a file.

Success only means that the kernel tried. The call dirties pages, and the new extents exist after write-back. After the
first dirty page the call returns 0 even if a signal, a full volume or an I/O error stopped it. So measure the result.

Source: linux/btrfs.h; fs/btrfs/ioctl.c, btrfs_ioctl_defrag; fs/btrfs/defrag.c, btrfs_defrag_file.
"""

from __future__ import annotations

import struct

from journalkeeper.btrfs.kernel import RELEASE, call_ioctl
from journalkeeper.model.units import Compression

BTRFS_IOC_DEFRAG_RANGE = 0x40309410

BTRFS_DEFRAG_RANGE_COMPRESS = 1
BTRFS_DEFRAG_RANGE_COMPRESS_LEVEL = 4

BTRFS_COMPRESS = {"zlib": 1, "lzo": 2, "zstd": 3}
"""The numbers BTRFS_COMPRESS_ZLIB, _LZO and _ZSTD (fs/btrfs/fs.h)."""

ARGS = struct.Struct("=QQQI4s16x")
"""struct btrfs_ioctl_defrag_range_args: start, len, flags, extent_thresh, compress_type, unused."""

TYPE = struct.Struct("=I")
"""compress_type without a level: a u32."""

TYPE_AND_LEVEL = struct.Struct("=Bbxx")
"""compress_type with COMPRESS_LEVEL (Linux 6.15): a u8 type and an s8 level."""

HAS_LEVELS = RELEASE >= (6, 15)
"""Whether the kernel takes a level. Before, it has that of the mount option compress=, or else the default.

Source: fs/btrfs/inode.c, compress_file_range. This also holds, in all kernels, for the property btrfs.compression.
"""


def defrag_range(fd: int, offset: int, length: int, *, compress: Compression | None = None) -> None:
    """Ask the kernel to defragment or compress a range of a file. Success does not show that it did: measure.

    Without `compress`, the kernel skips extents of at least 256 KiB and extents without a neighbour to join. With it,
    the kernel rewrites every written extent and starts the write-back of the whole file (zstd:15: 0.7 s for 8 MiB).
    Dirty pages are always skipped: sync the file first.

    Raises: ValueError for an empty range, which the kernel would take as the rest of the file; OSError: EPERM no right
    to write; EROFS; ENOSPC; EINVAL `offset` at or behind the end of the file; ETXTBSY a swap file; EAGAIN a signal came
    before anything was done; ENOTTY not btrfs; EINVAL or EOPNOTSUPP `compress.level` without HAS_LEVELS.
    """
    if length <= 0:
        raise ValueError(f"the length of a range to defragment must be positive, not {length}")
    flags, packed = 0, bytes(4)
    if compress is not None:
        flags, number = BTRFS_DEFRAG_RANGE_COMPRESS, BTRFS_COMPRESS[compress.algorithm]
        packed = TYPE.pack(number)
        if compress.level is not None:
            flags |= BTRFS_DEFRAG_RANGE_COMPRESS_LEVEL
            packed = TYPE_AND_LEVEL.pack(number, compress.level)
    call_ioctl(fd, BTRFS_IOC_DEFRAG_RANGE, ARGS, offset, length, flags, 0, packed)
