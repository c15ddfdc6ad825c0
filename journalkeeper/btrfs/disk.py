# SPDX-License-Identifier: LGPL-2.1-or-later
"""BTRFS_IOC_TREE_SEARCH_V2: the bytes that a file occupies on the disk.

An extent counts once and as a whole, even if the file refers only to a small part of it. compsize(8) and df(1) count
the same way; st_blocks does not.

Source: linux/btrfs.h, linux/btrfs_tree.h; fs/btrfs/ioctl.c, btrfs_ioctl_tree_search_v2 and search_ioctl.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from journalkeeper.btrfs.kernel import ioctl

BTRFS_IOC_TREE_SEARCH_V2 = 0xC0709411
BTRFS_EXTENT_DATA_KEY = 108
BTRFS_FILE_EXTENT_INLINE = 0

SEARCH = struct.Struct("=QQQQQQQIIII32xQ")
"""struct btrfs_ioctl_search_key: tree_id, the minimum and maximum of objectid, offset, transid and type, nr_items, four
spare u64. Then buf_size of struct btrfs_ioctl_search_args_v2.
"""

ITEM_HEADER = struct.Struct("=16xQ4xI")
"""struct btrfs_ioctl_search_header: the file offset of the item, and its length without this header."""

ITEM = struct.Struct("<20xBQQ")
"""struct btrfs_file_extent_item: type, disk_bytenr, disk_num_bytes. The data of type inline is in the item."""

BUFFER_BYTES = 64 << 10

LAST = 2**64 - 1


def read_disk_bytes(fd: int) -> int | None:
    """Return the disk usage of one file in bytes, as compsize(8) counts it; None without CAP_SYS_ADMIN.

    Each extent counts once and as a whole, and inline data and dirty pages without a place on the disk do not count:
    sync the file first. Raises: OSError: ENOTTY not on btrfs.
    """
    try:
        return sum(dict(_list_parts(fd)).values())
    except PermissionError:
        return None


def _list_parts(fd: int) -> Iterator[tuple[int, int]]:
    """Yield the place and the size on the disk of the whole extent of each part of the file, without inline data.

    Raises: OSError: EPERM no CAP_SYS_ADMIN; ENOTTY not on btrfs.
    """
    inode, offset, kind = os.fstat(fd).st_ino, 0, BTRFS_EXTENT_DATA_KEY
    buffer = bytearray(SEARCH.size + BUFFER_BYTES)
    while True:
        SEARCH.pack_into(buffer, 0, 0, inode, inode, offset, LAST, 0, LAST, kind, kind, 2**32 - 1, 0, BUFFER_BYTES)
        ioctl(fd, BTRFS_IOC_TREE_SEARCH_V2, buffer)
        items = SEARCH.unpack_from(buffer)[9]  # nr_items
        at = SEARCH.size
        for _ in range(items):
            item_offset, length = ITEM_HEADER.unpack_from(buffer, at)
            form, place, disk_bytes = ITEM.unpack_from(buffer, at + ITEM_HEADER.size)
            if form != BTRFS_FILE_EXTENT_INLINE and place != 0:  # 0: a hole
                yield place, disk_bytes
            at += ITEM_HEADER.size + length
            offset = item_offset + 1
        if not items:
            return
