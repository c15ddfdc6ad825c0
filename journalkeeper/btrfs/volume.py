# SPDX-License-Identifier: LGPL-2.1-or-later
"""The btrfs volume that contains a directory.

All functions work without privilege. They take a descriptor of the directory and never a path, so that they describe
the same directory that the work changes.

Source: linux/btrfs.h, linux/btrfs_tree.h; fs/btrfs/ioctl.c; proc(5), mountinfo and fdinfo.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import NamedTuple
from uuid import UUID

import btrfsutil

from journalkeeper.btrfs.kernel import call_ioctl, ioctl
from journalkeeper.btrfs.maintenance import SYSFS, find_maintenance
from journalkeeper.model import Volume
from journalkeeper.model.errors import NotBtrfsError
from journalkeeper.model.files import COPIES

BTRFS_IOC_SPACE_INFO = 0xC0109414
BTRFS_IOC_DEV_INFO = 0xD000941E
BTRFS_IOC_FS_INFO = 0x8400941F
BTRFS_IOC_START_SYNC = 0x80089418
BTRFS_IOC_WAIT_SYNC = 0x40089416

BTRFS_IOC_GET_SUBVOL_INFO = 0x81F8943C
SUBVOL_INFO = struct.Struct("=288xQ208x")
"""struct btrfs_ioctl_get_subvol_info_args: the flags of the subvolume that contains the inode."""

BTRFS_ROOT_SUBVOL_RDONLY = 1 << 0

FIRST_FREE_OBJECTID = 256
"""The inode number of a subvolume's top directory."""

FS_TREE_OBJECTID = 5
"""The id of the volume's top subvolume."""

MOUNTINFO = "/proc/self/mountinfo"

FS_INFO = struct.Struct("=Q8x16s16xQQ960x")
"""struct btrfs_ioctl_fs_info_args: max_id, fsid, and the flags and generation of Linux 5.10.

The caller sets flags for the fields that it wants, the kernel for the fields that it filled.
"""

BTRFS_FS_INFO_FLAG_GENERATION = 1 << 1

DEV_INFO = struct.Struct("=Q16xQQ4056x")
"""struct btrfs_ioctl_dev_info_args: devid, bytes_used, total_bytes; without uuid, spare and path."""

SPACE_ARGS = struct.Struct("=QQ")
"""struct btrfs_ioctl_space_args: space_slots, total_spaces."""

SPACE = struct.Struct("=QQQ")
"""struct btrfs_ioctl_space_info: flags, total_bytes, used_bytes. Sizes are as files see them: copies count once."""

BTRFS_BLOCK_GROUP_DATA = 1 << 0
BTRFS_BLOCK_GROUP_METADATA = 1 << 2

PROFILES = ("raid0", "raid1", "dup", "raid10", "raid5", "raid6", "raid1c3", "raid1c4")
"""The names that mkfs.btrfs gives to the BTRFS_BLOCK_GROUP_* bits from bit 3 on; without one of them "single"."""


class Space(NamedTuple):
    """One kind of chunks: its BTRFS_BLOCK_GROUP_* flags, the bytes of its chunks, and the used bytes among them."""

    flags: int
    total_bytes: int
    used_bytes: int

    @property
    def profile(self) -> str:
        """The name that mkfs.btrfs gives to the layout of the chunks: a name in PROFILES, or "single"."""
        return next((name for bit, name in enumerate(PROFILES, 3) if self.flags >> bit & 1), "single")


def read_fs_info(fd: int) -> tuple[str, int]:
    """Return the filesystem's UUID and its highest device id. Raises: OSError: ENOTTY not on btrfs."""
    max_id, fsid, _, _ = call_ioctl(fd, BTRFS_IOC_FS_INFO, FS_INFO, 0, b"", 0, 0)
    return str(UUID(bytes=fsid)), max_id


def _read_unallocated_bytes(fd: int, uuid: str, devid: int) -> int:
    """Return the raw bytes of a device that are in no chunk: 0 without a device of this id, or if it is missing.

    Raises: OSError: ENOTTY not on btrfs. Source: fs/btrfs/sysfs.c, btrfs_devinfo_missing_show (Linux 5.6). The path in
    DEV_INFO does not show a missing one: a device that the kernel knew before keeps a path there.
    """
    with suppress(OSError):
        if Path(SYSFS, uuid, "devinfo", f"{devid}", "missing").read_text("ascii") == "1\n":
            return 0
    try:
        _, used, size = call_ioctl(fd, BTRFS_IOC_DEV_INFO, DEV_INFO, devid, 0, 0)
    except OSError as error:
        if error.errno == errno.ENODEV:
            return 0
        raise
    return int(size - used)


def read_space_info(fd: int) -> tuple[Space, ...]:
    """Return each Space that the kernel reports, by kind and profile. Raises: OSError: ENOTTY not on btrfs."""
    _, slots = call_ioctl(fd, BTRFS_IOC_SPACE_INFO, SPACE_ARGS, 0, 0)
    buffer = bytearray(SPACE_ARGS.pack(slots, 0) + bytes(slots * SPACE.size))
    ioctl(fd, BTRFS_IOC_SPACE_INFO, buffer)
    filled = SPACE_ARGS.unpack_from(buffer)[1]
    end = SPACE_ARGS.size + min(filled, slots) * SPACE.size
    return tuple(map(Space._make, SPACE.iter_unpack(buffer[SPACE_ARGS.size : end])))


def read_generation(fd: int) -> int:
    """Return the number of the volume's current transaction; 0 if the kernel does not report it.

    sync(2) ends a transaction; fsync(2) only writes to a log. Raises: OSError: ENOTTY not on btrfs.
    """
    _, _, flags, number = call_ioctl(fd, BTRFS_IOC_FS_INFO, FS_INFO, 0, b"", BTRFS_FS_INFO_FLAG_GENERATION, 0)
    return int(number) if flags & BTRFS_FS_INFO_FLAG_GENERATION else 0


def commit_transaction(fd: int) -> None:
    """Commit the btrfs transaction of the volume that contains `fd`, and wait until it is on the disk.

    Dirty pages stay dirty. If another commit is under way, the call can take 30 s or longer. Other threads run
    meanwhile; they would not run during a call of btrfsutil, which keeps the interpreter's lock.

    Raises: OSError: EROFS the volume became read-only after an error; EIO.
    """
    buffer = bytearray(8)  # the number of the transaction
    ioctl(fd, BTRFS_IOC_START_SYNC, buffer)
    ioctl(fd, BTRFS_IOC_WAIT_SYNC, buffer)


def require_btrfs(fd: int, path: str) -> None:
    """Raise NotBtrfsError with `path` if `fd` is not on btrfs. Raises: also OSError if the volume itself fails."""
    try:
        read_fs_info(fd)
    except OSError as error:
        if error.errno in {errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL}:
            raise NotBtrfsError(path) from error
        raise


def read_volume(fd: int) -> Volume:
    """Return the volume that contains the directory `fd`, with its maintenance, without its load and snapshots.

    Free bytes are those in chunks; unallocated bytes are apart, raw, without missing devices. The profile is that of
    most data by chunk sizes. `own_subvolume`: `fd` or its parent is the top of one. Raises: OSError: ENOTTY elsewhere.
    """
    uuid, max_id = read_fs_info(fd)
    spaces = read_space_info(fd)
    data = [space for space in spaces if space.flags & BTRFS_BLOCK_GROUP_DATA]
    profile = max(data, key=lambda space: space.total_bytes).profile
    return Volume(
        device=os.fstat(fd).st_dev,
        uuid=uuid,
        subvolume=btrfsutil.subvolume_id(fd),
        data_profile=profile,
        redundant=any(space.profile in COPIES for space in data),
        free_bytes=_sum_free(data),
        unallocated_bytes=sum(_read_unallocated_bytes(fd, uuid, devid) for devid in range(1, max_id + 1)),
        metadata_free_bytes=_sum_free([space for space in spaces if space.flags & BTRFS_BLOCK_GROUP_METADATA]),
        own_subvolume=any(os.stat(path, dir_fd=fd).st_ino == FIRST_FREE_OBJECTID for path in (".", "..")),
        options=read_mount_options(fd),
        maintenance=find_maintenance(uuid),
        read_only_subvolume=is_in_read_only_subvolume(fd),
        mixed=any(space.flags & BTRFS_BLOCK_GROUP_METADATA for space in data),
        quota_bytes=_read_quota_bytes(uuid, btrfsutil.subvolume_id(fd)),
    )


def is_in_read_only_subvolume(fd: int) -> bool:
    """Return whether the subvolume that contains the directory `fd` is read-only. Raises: OSError: ENOTTY elsewhere."""
    return bool(call_ioctl(fd, BTRFS_IOC_GET_SUBVOL_INFO, SUBVOL_INFO, 0)[0] & BTRFS_ROOT_SUBVOL_RDONLY)


def _read_quota_bytes(uuid: str, subvolume: int) -> int | None:
    """Return what the limits of the subvolume's own quota group leave, at least 0; None without a limit or if unknown.

    Groups above it are left out, because no file shows which they are.
    Source: fs/btrfs/sysfs.c, qgroup_attrs (Linux 5.9); bits 0 and 1 of limit_flags are BTRFS_QGROUP_LIMIT_MAX_RFER and
    BTRFS_QGROUP_LIMIT_MAX_EXCL.
    """

    def read(name: str) -> int:
        return int(Path(SYSFS, uuid, "qgroups", f"0_{subvolume}", name).read_text("ascii"))

    with suppress(OSError, ValueError):
        limits = [kind for bit, kind in enumerate(("referenced", "exclusive")) if read("limit_flags") >> bit & 1]
        return min((max(0, read(f"max_{kind}") - read(kind)) for kind in limits), default=None)
    return None


def describe_quota_group(path: str) -> str:
    """Return a clause: the quota group of the subvolume of `path`, or one above, is full; and the command to see it.

    Raises: OSError: ENOENT; ENOTTY not on btrfs.
    """
    shown = f"btrfs qgroup show -pcre {quote(path)}"
    return f"quota group 0/{btrfsutil.subvolume_id(path)} or a group above it is full, see `{shown}`"


def count_snapshots(fd: int) -> int | None:
    """Return the number of other subvolumes that share data with the one that contains `fd` by snapshots.

    They are its snapshots, its origin if it is a snapshot itself (as after a rollback), and theirs in turn, also those
    of a deleted origin. The volume's top does not count. Return None without CAP_SYS_ADMIN, and for the top of a volume
    without a UUID (mkfs.btrfs before 4.16).

    Raises: OSError: ENOTTY not on btrfs.
    """
    try:
        own = btrfsutil.subvolume_info(fd, btrfsutil.subvolume_id(fd))
        every = [one for _, one in btrfsutil.SubvolumeIterator(fd, top=FS_TREE_OBJECTID, info=True)]
    except OSError as error:
        if error.errno == errno.EPERM:  # a BtrfsUtilError, never a PermissionError
            return None
        raise
    if not any(own.uuid):
        return None
    pairs = [{one.uuid, one.parent_uuid} for one in every if any(one.parent_uuid)]
    family, found = {own.uuid}, 0
    while found < len(family):
        found = len(family)
        family.update(*(pair for pair in pairs if pair & family))
    return len([one for one in every if one.uuid in family - {own.uuid}])


def is_subvolume(fd: int) -> bool:
    """Return whether the directory `fd`, which is on btrfs, is the top of a subvolume."""
    return os.fstat(fd).st_ino == FIRST_FREE_OBJECTID


create_subvolume = btrfsutil.create_subvolume
"""Make an empty subvolume at a path. Raises: OSError."""

delete_subvolume = btrfsutil.delete_subvolume
"""Delete the subvolume at a path, with all files in it. Raises: OSError."""


def read_uuid(top: int | str) -> bytes:
    """Return the UUID of a subvolume. Its snapshots have others. Raises: OSError, also if `top` is not its top."""
    return bytes(btrfsutil.subvolume_info(top).uuid)


def has_subvolume(directory: str, path: str) -> bool:
    """Return whether the volume has a subvolume at `path`, in the form of `find_subvolume`. Raises: as that."""
    return any(place == path for place, _ in btrfsutil.SubvolumeIterator(directory, top=FS_TREE_OBJECTID))


def find_subvolume(directory: str, uuid: bytes) -> str | None:
    """Return the path ("@/log") from the top of the volume of `directory` to the subvolume with this UUID, or None.

    The top itself is not found. Raises: OSError: EPERM without CAP_SYS_ADMIN; ENOTTY not on btrfs.
    """
    every = btrfsutil.SubvolumeIterator(directory, top=FS_TREE_OBJECTID, info=True)
    return next((place for place, info in every if info.uuid == uuid), None)


def _sum_free(spaces: list[Space]) -> int:
    return sum(space.total_bytes - space.used_bytes for space in spaces)


def read_mount_options(fd: int) -> tuple[str, ...]:
    """Return the options of the mount through which `fd` was opened, and its filesystem's; () if it is not visible."""
    return parse_options(line) if (line := find_mount_line(fd)) else ()


def read_mount_lines(table: str = "") -> list[str]:
    """Return the lines, which only a line feed ends, of this process's mountinfo or of the mountinfo file `table`."""
    # Any user's mount point may contain a carriage return, which the kernel does not escape: it ends no line.
    with open(table or MOUNTINFO, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return [line.rstrip("\n") for line in file]


def find_mount_lines(places: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines of mountinfo with a mount point at, above or below one of `places`, which are absolute."""
    return tuple(line for line in read_mount_lines() if any(_concerns(line, place) for place in places))


def get_mount_point(line: str, index: int = 4) -> str:
    """Return the mount point in a line of mountinfo, or with 3 the path in the volume that is mounted there.

    The line has octal escapes for blanks and backslashes (proc(5)).
    """
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split(" ")[index])


def _concerns(line: str, place: str) -> bool:
    """Return whether the mount point in a line of mountinfo is `place`, or lies above or below it."""
    point = get_mount_point(line)
    return os.path.commonpath((point, place)) in {point, place}


def find_mount_line(fd: int) -> str | None:
    """Return the line of mountinfo for the mount through which `fd` was opened, or None if it is not visible here.

    No mountinfo contains the st_dev of a subvolume.
    """
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        mount_id = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
    return next((line for line in read_mount_lines() if line.split(" ", 1)[0] == mount_id), None)


def parse_options(line: str) -> tuple[str, ...]:
    """Return the options in a line of mountinfo, each once: the mount's, then the filesystem's. "ro" replaces "rw"."""
    words = dict.fromkeys([*line.split(" ")[5].split(","), *parse_filesystem_options(line)])
    if "ro" in words:
        words.pop("rw", None)
    return tuple(words)


def parse_filesystem_options(line: str) -> list[str]:
    """Return the filesystem's own options in a line of mountinfo, without the mount's; [""] for an empty line."""
    return line.rpartition(" ")[2].split(",")
