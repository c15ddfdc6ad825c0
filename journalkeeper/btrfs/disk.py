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

NR_ITEMS = struct.Struct("=I")
NR_ITEMS_OFFSET = 64

FIRST = struct.Struct("=28xI20xB")
"""The first item: **len** of its struct btrfs_ioctl_search_header; type in its struct btrfs_file_extent_item."""

ITEM = struct.Struct("<53xQQ16x")
"""An item that is not inline, behind its header: little-endian disk_bytenr and disk_num_bytes.

Only the item at file offset 0 can be inline, and all other items have this length. The kernel refuses other leaves
(fs/btrfs/tree-checker.c, check_extent_data_item).
"""

REFERENCE = struct.Struct("<40xQ5xQQ8xQ")
"""The same item's ram_bytes, disk_bytenr, disk_num_bytes and num_bytes.

The extent holds ram_bytes of data in disk_num_bytes on the disk, and this item refers to num_bytes of the data.
"""

OFFSET = struct.Struct("=Q")
OFFSET_OFFSET = 16
"""The position of the file offset in an item's header."""

HEADER_BYTES = 32
INLINE_DATA_OFFSET = 21

BUFFER_BYTES = 64 << 10

LAST = 2**64 - 1


def read_disk_bytes(fd: int) -> int | None:
    """Return the disk usage of one file in bytes, as compsize(8) counts it; None without CAP_SYS_ADMIN.

    Unwritten extents count. Dirty pages without a place on the disk do not count: sync the file first.

    Raises: OSError: ENOTTY not on btrfs.
    """
    inline = 0
    seen: dict[int, int] = {}
    try:
        for in_this, items in _search_items(fd):
            inline += in_this
            seen.update(ITEM.iter_unpack(items))
    except PermissionError:
        return None
    seen.pop(0, None)  # the place of a hole
    return inline + sum(seen.values())


def read_pinned_bytes(fd: int) -> int | None:
    """Return how many bytes on the disk belong to the file's extents, but to no part of the file.

    btrfs keeps a whole extent while any part of it is in use. For a compressed extent, each part counts in proportion
    to its uncompressed size. The result is None without CAP_SYS_ADMIN.

    Raises: as `read_disk_bytes`.
    """
    whole: dict[int, int] = {}
    used: dict[int, float] = {}
    try:
        for _, items in _search_items(fd):
            for ram_bytes, place, disk_num_bytes, num_bytes in REFERENCE.iter_unpack(items):
                whole[place] = disk_num_bytes
                used[place] = used.get(place, 0) + disk_num_bytes * num_bytes / max(1, ram_bytes)
    except PermissionError:
        return None
    whole.pop(0, None)  # the place of a hole
    return sum(max(0, size - round(used[place])) for place, size in whole.items())


def _search_items(fd: int) -> Iterator[tuple[int, memoryview]]:
    """Yield (bytes stored inline, other raw items) of the file's extent items, for each search call."""
    inode = os.fstat(fd).st_ino
    buffer = bytearray(SEARCH.size + BUFFER_BYTES)
    offset, more = 0, True
    while more:
        inline, items, last, more = _parse(memoryview(buffer), _tree_search_v2(fd, inode, offset, buffer))
        yield inline, items
        offset = last + 1


def _tree_search_v2(fd: int, inode: int, offset: int, buffer: bytearray) -> int:
    """Fill `buffer` with the extent items of `inode` from file offset `offset` on; return their number.

    Tree 0 is the subvolume that `fd` is in.
    """
    kind = BTRFS_EXTENT_DATA_KEY
    SEARCH.pack_into(buffer, 0, 0, inode, inode, offset, LAST, 0, LAST, kind, kind, 2**32 - 1, 0, BUFFER_BYTES)
    ioctl(fd, BTRFS_IOC_TREE_SEARCH_V2, buffer)
    return int(NR_ITEMS.unpack_from(buffer, NR_ITEMS_OFFSET)[0])


def _parse(view: memoryview, items: int) -> tuple[int, memoryview, int, bool]:
    """Parse a search result of `items` items in `view`.

    Return the bytes stored inline, the other items, the last item's file offset, and whether more items may follow. The
    kernel stops early only when the next item does not fit.
    """
    inline = 0
    position = SEARCH.size
    if items:
        length, kind = FIRST.unpack_from(view, position)
        if kind == BTRFS_FILE_EXTENT_INLINE:
            inline = length - INLINE_DATA_OFFSET
            position += HEADER_BYTES + length
            items -= 1
    end = position + items * ITEM.size
    last = OFFSET.unpack_from(view, end - ITEM.size + OFFSET_OFFSET)[0] if items else 0
    return inline, view[position:end], last, end + ITEM.size > len(view)
