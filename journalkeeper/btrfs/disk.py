# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bytes of a file on the disk, and the snapshots of a subvolume, also for a process without CAP_SYS_ADMIN.

An extent counts once and as a whole, even if the file refers only to a small part of it. compsize(8) and df(1) count
the same way; st_blocks does not. FIEMAP cannot replace BTRFS_IOC_TREE_SEARCH_V2: for 40 archives, an estimate by
physical addresses was up to 18% wrong before a rewrite, and more than 15% wrong for 27 of them after it.

The service has no CAP_SYS_ADMIN. It sends a file descriptor to journalkeeper-measure.socket, whose unit has only that
capability, and receives the number. One connection serves one question. Only root may ask, so the unit accepts the
descriptor of any file.

Source: linux/btrfs.h, linux/btrfs_tree.h; fs/btrfs/ioctl.c, btrfs_ioctl_tree_search_v2 and search_ioctl.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress

from journalkeeper.btrfs import volume
from journalkeeper.btrfs.kernel import ioctl

BTRFS_IOC_TREE_SEARCH_V2 = 0xC0709411
BTRFS_EXTENT_DATA_KEY = 108
BTRFS_FILE_EXTENT_INLINE = 0

SEARCH = struct.Struct("=QQQQQQQIIII32xQ")
"""struct btrfs_ioctl_search_key: tree_id, the minimum and maximum of objectid, offset, transid and type, nr_items, four
spare u64. Then buf_size of struct btrfs_ioctl_search_args_v2.
"""

ITEM = struct.Struct("=16xQ4xI20xB")
"""struct btrfs_ioctl_search_header: the file offset of the item, and its length without this header. Then the type in
its struct btrfs_file_extent_item. An inline item contains the file's data.
"""

HEADER_BYTES = 32

REGULAR = struct.Struct("<53xQQ16x")
"""An item that is not inline, behind its header: disk_bytenr, disk_num_bytes.

Only the item at file offset 0 can be inline, and all others have this length (fs/btrfs/tree-checker.c,
check_extent_data_item).
"""

BUFFER_BYTES = 64 << 10

LAST = 2**64 - 1

SOCKET = "/run/journalkeeper-measure"
ANSWER_S = 10.0
"""The longest wait for an answer. The unit starts in 0.2 s, and its TimeoutStartSec= is as long as this."""

ANSWER_BYTES = 32


def read_disk_bytes(fd: int) -> int | None:
    """Return the disk usage of one file in bytes, as compsize(8) without inline data; None without CAP_SYS_ADMIN.

    Each extent counts once and as a whole. Dirty pages have no place on the disk and do not count: sync the file first.
    Raises: OSError: ENOTTY not on btrfs.
    """
    inode, offset, kind = os.fstat(fd).st_ino, 0, BTRFS_EXTENT_DATA_KEY
    buffer = bytearray(SEARCH.size + BUFFER_BYTES)
    sizes, end = dict[int, int](), len(buffer)
    while end + REGULAR.size > len(buffer):  # the kernel stops early only if the next item does not fit
        SEARCH.pack_into(buffer, 0, 0, inode, inode, offset, LAST, 0, LAST, kind, kind, 2**32 - 1, 0, BUFFER_BYTES)
        try:
            ioctl(fd, BTRFS_IOC_TREE_SEARCH_V2, buffer)
        except PermissionError:
            return None
        items, at = SEARCH.unpack_from(buffer)[9], SEARCH.size  # nr_items
        _, length, form = ITEM.unpack_from(buffer, at)
        if items and form == BTRFS_FILE_EXTENT_INLINE:
            at, items = at + HEADER_BYTES + length, items - 1
        end = at + items * REGULAR.size
        sizes.update(REGULAR.iter_unpack(memoryview(buffer)[at:end]))
        offset = ITEM.unpack_from(buffer, end - REGULAR.size)[0] + 1
    sizes.pop(0, None)  # the place of a hole
    return sum(sizes.values())


QUESTIONS = {b"?": read_disk_bytes, b"s": volume.count_snapshots}


def measure_disk_bytes(fd: int, path: str = SOCKET) -> int | None:
    """Return and raise as `read_disk_bytes`. Without CAP_SYS_ADMIN, return the answer at `path`; None without one."""
    return _measure_or_ask(b"?", fd, path)


def measure_snapshots(fd: int, path: str = SOCKET) -> int | None:
    """Return and raise as `count_snapshots`. Without CAP_SYS_ADMIN, return the answer at `path`; None without one."""
    return _measure_or_ask(b"s", fd, path)


def _measure_or_ask(question: bytes, fd: int, path: str) -> int | None:
    """Return the number of this process, or if that is None, the unit's at `path`; None without one in ANSWER_S."""
    if (found := QUESTIONS[question](fd)) is not None:
        return found
    # The outcome of the work does not depend on this number.
    with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.settimeout(ANSWER_S)
        channel.connect(path)
        socket.send_fds(channel, [question], [fd])
        return int(channel.recv(ANSWER_BYTES))
    return None


def main() -> int:
    """Answer the question on standard input, a connection that a socket unit with Accept=yes passes.

    The question is a byte of QUESTIONS with a descriptor, without which there is no answer. The answer is a number as
    text, or "None" without CAP_SYS_ADMIN. Print an OSError and return 1, else return 0. Raises: KeyError: another byte.
    """
    try:
        with socket.socket(fileno=os.dup(0)) as connection:
            question, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            for fd in descriptors:
                connection.send(str(QUESTIONS[question](fd)).encode())
    except OSError as error:
        sys.stderr.write(f"journalkeeper: cannot measure: {error}\n")
        return 1
    return 0
