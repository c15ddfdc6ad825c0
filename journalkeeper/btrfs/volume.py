# SPDX-License-Identifier: LGPL-2.1-or-later
"""The volume that a directory is on.

Everything here is read without privilege, by a descriptor of the directory
and never by a path, so that it speaks of the same place as the work does.

Source: linux/btrfs.h, linux/btrfs_tree.h; fs/btrfs/ioctl.c; proc(5), mountinfo and fdinfo.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import NamedTuple

import btrfsutil

from journalkeeper.btrfs.kernel import ioctl
from journalkeeper.btrfs.maintenance import maintenance
from journalkeeper.model import Volume
from journalkeeper.model.errors import NotBtrfsError

BTRFS_IOC_SPACE_INFO = 0xC0109414
BTRFS_IOC_DEV_INFO = 0xD000941E
BTRFS_IOC_FS_INFO = 0x8400941F

FS_INFO = struct.Struct("=QQ16s992x")
"""struct btrfs_ioctl_fs_info_args: max_id, num_devices, fsid; the rest is not used here."""

FS_GENERATION = struct.Struct("=48xQQ960x")
"""The same structure's flags, of the kernel what was asked for and answered, and generation (Linux 5.10)."""

BTRFS_FS_INFO_FLAG_GENERATION = 1 << 1

DEV_INFO = struct.Struct("=Q16sQQ4056x")
"""struct btrfs_ioctl_dev_info_args: devid, uuid, bytes_used, total_bytes; spare; path."""

SPACE_ARGS = struct.Struct("=QQ")
"""struct btrfs_ioctl_space_args: space_slots, total_spaces."""

SPACE = struct.Struct("=QQQ")
"""struct btrfs_ioctl_space_info: flags, total_bytes, used_bytes, as files see them: copies count once."""

BTRFS_BLOCK_GROUP_DATA = 1 << 0
BTRFS_BLOCK_GROUP_METADATA = 1 << 2

PROFILES = {
    1 << 3: "raid0",
    1 << 4: "raid1",
    1 << 5: "dup",
    1 << 6: "raid10",
    1 << 7: "raid5",
    1 << 8: "raid6",
    1 << 9: "raid1c3",
    1 << 10: "raid1c4",
}
"""BTRFS_BLOCK_GROUP_*, by mkfs.btrfs's words; none of them is "single"."""

REDUNDANT = frozenset({"raid1", "raid1c3", "raid1c4", "raid10", "raid5", "raid6", "dup"})
"""Profiles with a second copy, or parity, that only a checksum can choose between.

dup is one of them: with one device, but two copies that can differ unseen without checksums.
"""


class Space(NamedTuple):
    """One kind of chunk: BTRFS_BLOCK_GROUP_* flags, bytes in allocated chunks, bytes used of them."""

    flags: int
    total_bytes: int
    used_bytes: int

    @property
    def profile(self) -> str:
        """mkfs.btrfs's word for how the chunks are laid out."""
        return next((name for bit, name in PROFILES.items() if self.flags & bit), "single")


def fs_info(fd: int) -> tuple[str, int]:
    """The filesystem's UUID and its highest device id.

    Raises: OSError: ENOTTY not on btrfs.
    """
    buffer = bytearray(FS_INFO.size)
    ioctl(fd, BTRFS_IOC_FS_INFO, buffer)
    max_id, _, fsid = FS_INFO.unpack(buffer)
    text = fsid.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])), max_id


def dev_info(fd: int, devid: int) -> tuple[int, int] | None:
    """(bytes in chunks, size) of one device, raw bytes; None if there is none of that id.

    Raises: OSError: ENOTTY not on btrfs.
    """
    buffer = bytearray(DEV_INFO.size)
    DEV_INFO.pack_into(buffer, 0, devid, bytes(16), 0, 0)
    try:
        ioctl(fd, BTRFS_IOC_DEV_INFO, buffer)
    except OSError as error:
        if error.errno == errno.ENODEV:
            return None
        raise
    _, _, used, size = DEV_INFO.unpack(buffer)
    return used, size


def space_info(fd: int) -> tuple[Space, ...]:
    """The kinds of chunks that the volume has.

    Raises: OSError: ENOTTY not on btrfs.
    """
    buffer = bytearray(SPACE_ARGS.size)
    ioctl(fd, BTRFS_IOC_SPACE_INFO, buffer)
    slots = SPACE_ARGS.unpack(buffer)[1]
    buffer = bytearray(SPACE_ARGS.size + slots * SPACE.size)
    SPACE_ARGS.pack_into(buffer, 0, slots, 0)
    ioctl(fd, BTRFS_IOC_SPACE_INFO, buffer)
    filled = SPACE_ARGS.unpack_from(buffer)[1]
    end = SPACE_ARGS.size + min(filled, slots) * SPACE.size
    return tuple(map(Space._make, SPACE.iter_unpack(buffer[SPACE_ARGS.size : end])))


def generation(fd: int) -> int:
    """The number of the volume's present transaction, 0 where the kernel does not tell.

    sync(2) ends a transaction, and so does the kernel every 30 s; fsync(2) only writes to a log.

    Raises: OSError: ENOTTY not on btrfs.
    """
    buffer = bytearray(FS_GENERATION.pack(BTRFS_FS_INFO_FLAG_GENERATION, 0))
    ioctl(fd, BTRFS_IOC_FS_INFO, buffer)
    flags, number = FS_GENERATION.unpack(buffer)
    return int(number) if flags & BTRFS_FS_INFO_FLAG_GENERATION else 0


def require_btrfs(fd: int, path: str) -> None:
    """Say clearly if a file or directory is not on btrfs; `path` is its name for the error.

    Raises: NotBtrfsError; OSError if the volume itself fails.
    """
    try:
        fs_info(fd)
    except OSError as error:
        if error.errno in {errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL}:
            raise NotBtrfsError(path) from error
        raise


def volume(fd: int) -> Volume:
    """The volume that the directory `fd` is on; ask `require_btrfs` first.

    Raises: OSError: ENOTTY not on btrfs; what the kernel says if the volume itself fails.
    """
    uuid, max_id = fs_info(fd)
    spaces = space_info(fd)
    data = [space for space in spaces if space.flags & BTRFS_BLOCK_GROUP_DATA]
    profile = max(data, key=lambda space: space.total_bytes).profile
    devices = (dev_info(fd, devid) for devid in range(1, max_id + 1))
    return Volume(
        device=os.fstat(fd).st_dev,
        uuid=uuid,
        subvolume=btrfsutil.subvolume_id(fd),
        data_profile=profile,
        redundant=any(space.profile in REDUNDANT for space in data),
        free_bytes=_free(data),
        unallocated_bytes=sum(size - used for used, size in filter(None, devices)),
        metadata_free_bytes=_free([space for space in spaces if space.flags & BTRFS_BLOCK_GROUP_METADATA]),
        own_subvolume=_own_subvolume(fd),
        options=mount_options(fd),
        maintenance=maintenance(uuid),
    )


def _free(spaces: list[Space]) -> int:
    return sum(space.total_bytes - space.used_bytes for space in spaces)


def _own_subvolume(fd: int) -> bool:
    """Whether the directory, or the one that it is in, is the root of a subvolume.

    `/var/log/journal` made a subvolume holds `/var/log/journal/<machine-id>`.
    """
    if btrfsutil.is_subvolume(fd):
        return True
    parent = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    try:
        return bool(btrfsutil.is_subvolume(parent))
    finally:
        os.close(parent)


def mount_options(fd: int) -> tuple[str, ...]:
    """The options of the mount that `fd` was opened through, in mount(8)'s words; () if it cannot be seen from here."""
    line = mount_line(fd)
    return () if line is None else parse_options(line)


def mount_line(fd: int) -> str | None:
    """Return the line of mountinfo for the mount that `fd` was opened through, or None if it cannot be seen from here.

    It is found by the mount's id, because no mountinfo contains the st_dev of a subvolume.
    """
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        mount_id = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return next((line for line in file if line.split(" ", 1)[0] == mount_id), None)


def parse_options(line: str) -> tuple[str, ...]:
    """The options in one line of mountinfo: the mount's own, then the filesystem's; read-only if either is."""
    fields = line.split()
    words = dict.fromkeys([*fields[5].split(","), *fields[-1].split(",")])
    if "ro" in words:
        words.pop("rw", None)
    return tuple(words)
