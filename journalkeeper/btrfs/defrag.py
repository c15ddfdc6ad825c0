# SPDX-License-Identifier: LGPL-2.1-or-later
"""BTRFS_IOC_DEFRAG_RANGE: have a range of a file written anew.

The one rule: success says that the kernel tried. It dirties pages, and what comes of them
shows only when they are written back; and once it has dirtied a single page it reports
success even if a signal, a full volume or an I/O error then made it stop. Measure.

Source: linux/btrfs.h; fs/btrfs/ioctl.c, btrfs_ioctl_defrag; fs/btrfs/defrag.c, btrfs_defrag_file.
"""

from __future__ import annotations

import errno
import struct

from journalkeeper.btrfs.kernel import ioctl
from journalkeeper.model.compression import Compression

BTRFS_IOC_DEFRAG_RANGE = 0x40309410

BTRFS_DEFRAG_RANGE_COMPRESS = 1
BTRFS_DEFRAG_RANGE_START_IO = 2
BTRFS_DEFRAG_RANGE_COMPRESS_LEVEL = 4

BTRFS_COMPRESS = {"zlib": 1, "lzo": 2, "zstd": 3}
"""BTRFS_COMPRESS_ZLIB and its like (fs/btrfs/fs.h)."""

ARGS = struct.Struct("=QQQI4s16x")
"""struct btrfs_ioctl_defrag_range_args: start, len, flags, extent_thresh, compress_type, unused."""

TYPE = struct.Struct("=I")
"""compress_type: a u32, or since 6.15 with COMPRESS_LEVEL a u8 type and an s8 level."""

TYPE_AND_LEVEL = struct.Struct("=Bbxx")

WITHOUT_LEVELS = (errno.EOPNOTSUPP, errno.EINVAL)
"""What kernels before 6.15 say to a level: an unknown flag, or (before they checked flags) an unknown type."""

_levels_refused = False


def defrag_range(
    fd: int,
    offset: int,
    length: int,
    *,
    extent_thresh_bytes: int = 0,
    compress: Compression | None = None,
    start_io: bool = True,
) -> Compression | None:
    """Have the extents in a range joined, or compressed, and return the compression that was really asked for.

    Without `compress`: extents of `extent_thresh_bytes` (0: 256 KiB) and more are left, and
    those that have no neighbour to be joined with. A threshold longer than the range finds
    the pieces of the call before too short, each time: 37 MiB in pieces of 1 MiB with a
    threshold of 32 MiB were written again in whole at the second run, with 1 MiB not at all.

    With `compress`: every written extent of the range is rewritten, whatever its size and
    however often, and the call takes as long as the compression (zstd:15: 0.7 s for 8 MiB);
    the level is left out where the kernel has none.

    Holes, unwritten extents, and dirty pages are always left: sync first. `start_io` begins
    the write-back of the whole file, not only of the range; with `compress` the kernel does
    so in any case. A file open for reading only will do, if it may be written.

    Raises: ValueError for an empty range, which the kernel would take as the rest of the file;
    OSError: EPERM no right to write; EROFS; ENOSPC; EINVAL `offset` at or behind the end of the
    file; ETXTBSY a swap file; EAGAIN a signal came before anything was done; ENOTTY not btrfs.
    """
    if length <= 0:
        raise ValueError(f"a range to defragment needs a length, not {length}")
    flags = BTRFS_DEFRAG_RANGE_START_IO if start_io else 0
    if compress is None:
        _defrag_range(fd, offset, length, flags=flags, extent_thresh=extent_thresh_bytes, compress=bytes(4))
        return None
    flags |= BTRFS_DEFRAG_RANGE_COMPRESS
    number = BTRFS_COMPRESS[compress.algorithm]
    if compress.level is not None and not _levels_refused:
        leveled = flags | BTRFS_DEFRAG_RANGE_COMPRESS_LEVEL
        packed = TYPE_AND_LEVEL.pack(number, compress.level)
        try:
            _defrag_range(fd, offset, length, flags=leveled, extent_thresh=extent_thresh_bytes, compress=packed)
        except OSError as error:
            if error.errno not in WITHOUT_LEVELS:
                raise
        else:
            return compress
    _defrag_range(fd, offset, length, flags=flags, extent_thresh=extent_thresh_bytes, compress=TYPE.pack(number))
    _remember_levels(refused=compress.level is not None)
    return Compression(compress.algorithm)


def _remember_levels(*, refused: bool) -> None:
    """Keep in mind that this kernel took a call without its level that it had refused with it."""
    global _levels_refused  # noqa: PLW0603 - a fact about the running kernel, the same for the whole process
    _levels_refused = _levels_refused or refused


def _defrag_range(fd: int, start: int, length: int, *, flags: int, extent_thresh: int, compress: bytes) -> None:
    ioctl(fd, BTRFS_IOC_DEFRAG_RANGE, bytearray(ARGS.pack(start, length, flags, extent_thresh, compress)))
