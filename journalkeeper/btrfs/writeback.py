# SPDX-License-Identifier: LGPL-2.1-or-later
"""Partial write-back of a file, and holes.

None of these calls protects data from a power cut; only fsync(2) does.

Source: sync_file_range(2); linux/fs.h.
"""

from __future__ import annotations

import errno
import os
from struct import Struct

from journalkeeper.btrfs import kernel

SYNC_FILE_RANGE_WAIT_BEFORE = 1
SYNC_FILE_RANGE_WRITE = 2
SYNC_FILE_RANGE_WAIT_AFTER = 4

FIDEDUPERANGE = 0xC0189436
DEDUPE = Struct("=QQHHIqQQiI")
"""struct file_dedupe_range with one struct file_dedupe_range_info."""

MOST_ZEROS = 1 << 20


def sync_file_range(fd: int, offset: int, length: int) -> None:
    """Write the dirty pages of a range and wait for them, without the inode's lock that fsync(2) takes.

    A `length` of 0 means up to the end of the file. btrfs places the whole dirty run that overlaps the range, and the
    file's map shows it only after the whole run is written. So call FIEMAP with `sync` before measuring.

    Raises: OSError: EIO, ENOSPC the write-back failed.
    """
    flags = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER
    kernel.sync_file_range(fd, offset, length, flags)


def wait_writeback(fd: int, offset: int, length: int) -> None:
    """Wait for the pages of a range that are in write-back. A `length` of 0 means up to the end of the file.

    Raises: as `sync_file_range`.
    """
    kernel.sync_file_range(fd, offset, length, SYNC_FILE_RANGE_WAIT_BEFORE)


def free_zeros(fd: int, hole: int, offset: int, length: int) -> None:
    """Free the space of a range of whole blocks that reads as zeros, as far as the file's end. Its times do not change.

    `fd` is open for writing, and `hole` is an empty file of the same volume, whose size changes. The kernel compares
    the range with a hole of `hole`, and replaces it, under the locks of both files: what a process writes meanwhile
    stays, with a part of at most MOST_ZEROS around it. The range stays, too, if only one of the files has checksums.

    Raises: OSError: EIO; ENOSPC, EDQUOT no room for the metadata; EPERM; ETXTBSY a swap file.

    Source: ioctl_fideduperange(2); fs/remap_range.c; fs/btrfs/reflink.c, btrfs_remap_file_range.
    """
    end = min(offset + length, os.fstat(fd).st_size)
    for start in range(offset, end, MOST_ZEROS):
        size = min(MOST_ZEROS, end - start)
        os.ftruncate(hole, size)  # a range that ends within a block has to be the end of both files
        status = kernel.call_ioctl(hole, FIDEDUPERANGE, DEDUPE, 0, size, 1, 0, 0, fd, start, 0, 0, 0)[8]
        if status < 0 and status != -errno.EINVAL:
            raise OSError(-status, os.strerror(-status))
