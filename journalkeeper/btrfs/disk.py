# SPDX-License-Identifier: LGPL-2.1-or-later
"""BTRFS_IOC_TREE_SEARCH_V2: the bytes that a file really keeps on the disk.

The one rule: an extent counts whole, and once, however little of it the file still refers
to. So compsize(8) counts, and so df(1) notices; st_blocks does not.

Source: linux/btrfs.h, linux/btrfs_tree.h; fs/btrfs/ioctl.c, btrfs_ioctl_tree_search_v2 and search_ioctl.
"""

from __future__ import annotations

import ctypes
import os
import struct

from journalkeeper.btrfs.kernel import ioctl

BTRFS_IOC_TREE_SEARCH_V2 = 0xC0709411
BTRFS_EXTENT_DATA_KEY = 108
BTRFS_FILE_EXTENT_INLINE = 0

SEARCH = struct.Struct("=QQQQQQQIIII32xQ")
"""struct btrfs_ioctl_search_key: tree_id, min and max of objectid, offset, transid, type;
nr_items; four spare u64. Then buf_size of struct btrfs_ioctl_search_args_v2.
"""

NR_ITEMS = struct.Struct("=I")
NR_ITEMS_OFFSET = 64

HEADER = struct.Struct("=16xQ4xI")
"""struct btrfs_ioctl_search_header: transid, objectid, **offset**, type, **len**."""

TYPE_OFFSET = 20
INLINE_DATA_OFFSET = 21
DISK = struct.Struct("<QQ")
DISK_OFFSET = 21
"""In struct btrfs_file_extent_item, little-endian: disk_bytenr and disk_num_bytes; inline data begins there."""

BUFFER_BYTES = 64 << 10

LAST = 2**64 - 1


def disk_bytes(fd: int) -> int | None:
    """What compsize(8) calls the disk usage of one file, in bytes; None without CAP_SYS_ADMIN.

    Unwritten extents count, dirty pages not yet placed do not: sync first.

    Raises: OSError: ENOTTY not on btrfs.
    """
    inode = os.fstat(fd).st_ino
    buffer = ctypes.create_string_buffer(SEARCH.size + BUFFER_BYTES)
    inline = 0
    seen: dict[int, int] = {}
    offset = 0
    while True:
        try:
            items = _tree_search_v2(fd, inode, offset, buffer)
        except PermissionError:
            return None
        if not items:
            return inline + sum(seen.values())
        last, in_this = _parse(buffer.raw, items, seen)
        inline += in_this
        offset = last + 1


def _tree_search_v2(fd: int, inode: int, offset: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
    """Fill `buffer` with the extent items of `inode` from file offset `offset` on; return their number.

    Tree 0 is the subvolume that `fd` is in.
    """
    kind = BTRFS_EXTENT_DATA_KEY
    SEARCH.pack_into(buffer, 0, 0, inode, inode, offset, LAST, 0, LAST, kind, kind, 2**32 - 1, 0, BUFFER_BYTES)
    ioctl(fd, BTRFS_IOC_TREE_SEARCH_V2, buffer)
    return int(NR_ITEMS.unpack_from(buffer, NR_ITEMS_OFFSET)[0])


def _parse(raw: bytes, items: int, seen: dict[int, int]) -> tuple[int, int]:
    """Note each extent's place and size in `seen`; return the last item's file offset and the bytes held inline."""
    header, disk, header_bytes = HEADER.unpack_from, DISK.unpack_from, 32
    inline = key_offset = 0
    position = SEARCH.size
    for _ in range(items):
        key_offset, length = header(raw, position)
        position += header_bytes
        if raw[position + TYPE_OFFSET] == BTRFS_FILE_EXTENT_INLINE:
            inline += length - INLINE_DATA_OFFSET
        else:
            place, size = disk(raw, position + DISK_OFFSET)
            if place:
                seen[place] = size
        position += length
    return key_offset, inline
