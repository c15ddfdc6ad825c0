# SPDX-License-Identifier: LGPL-2.1-or-later
"""An archive copied to a datacow file that takes its place: NOCOW ones, and those that the kernel does not move.

The name leads to a whole file at every moment. The copy has no name until
it is finished, verified and on the disk; then the two trade places in one step, and only
then does the old one go.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final

from journalkeeper.btrfs import fiemap, inode, mtime_note, rename, writeback
from journalkeeper.execute.inplace import near
from journalkeeper.execute.pace import Pace
from journalkeeper.execute.verified_file import Failed, Refused, VerifiedFile, being_written
from journalkeeper.journald import names
from journalkeeper.model import MIB, Action, Kind, Range, Reason
from journalkeeper.model.compression import parse_compression
from journalkeeper.policy.gain import least_extents

READ_BYTES: Final = MIB
COMPRESSION_PROPERTY: Final = "btrfs.compression"
COPY_FLAGS: Final = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | os.O_NOATIME
"""Without a name, and without an access time of its own when it is read again to be verified."""

FLAGS_KEPT: Final = inode.FS_SYNC_FL | inode.FS_NODUMP_FL | inode.FS_NOATIME_FL | inode.FS_NOCOMP_FL


def rewrite(held: VerifiedFile, action: Action, pace: Pace) -> int:
    """Put a datacow copy in the place of `held`, unless `pace` ends before the copy is whole and verified.

    Returns the number of extents that can be expected.

    Raises: Failed if the copy does not equal the original; Refused if that changed meanwhile; OSError.
    """
    os.fsync(held.fd)
    directory = os.open(f"/proc/self/fd/{held.dir_fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        copy = os.open(".", COPY_FLAGS, 0o600, dir_fd=directory)
        try:
            _give_owner(copy, held.status)
            _strip(held.fd, copy)
            expected = max(action.extents_expected, _fill(held, copy, action, pace))
            if pace.ended is None:
                _bear(held.fd, copy, held.status)
                os.fsync(copy)
                _verify(held.fd, copy, pace)
            if pace.ended is None:
                _take_place(held, directory, copy)
        finally:
            os.close(copy)
    finally:
        os.close(directory)
    return expected


def _give_owner(copy: int, status: os.stat_result) -> None:
    """Give the copy the original's owner while it is empty, if the directory has not given it that owner already.

    Raises: Refused without the right, which the service does not have: another owner, as in remote/, or group.
    """
    made = os.fstat(copy)
    if (made.st_uid, made.st_gid) == (status.st_uid, status.st_gid):
        return
    try:
        os.fchown(copy, status.st_uid, status.st_gid)
    except PermissionError as error:
        owner = f"user {status.st_uid}, group {status.st_gid}"
        raise Refused(Reason.FOREIGN_OWNER, f"a copy cannot be given to {owner} without CAP_CHOWN") from error


def _strip(original: int, copy: int) -> None:
    """Take off the copy what directory and mount gave it: a default ACL, a compression, NOCOW, no checksums.

    Setting NOCOW and taking it off again is what brings the checksums back that a mount
    with nodatasum leaves out (fs/btrfs/ioctl.c, btrfs_fileattr_set).
    """
    for name in set(os.listxattr(copy)) - set(os.listxattr(original)):
        os.removexattr(copy, name)
    for flags in (0, inode.FS_NOCOW_FL, 0):
        inode.set_flags(copy, flags)
    if inode.is_nocow(copy):
        raise Failed(Reason.MISMATCH, "the copy could not be made datacow")


def _fill(held: VerifiedFile, copy: int, action: Action, pace: Pace) -> int:
    """Copy the written data, compressed on its way by a property that is taken off; the fewest extents it can have."""
    compression = parse_compression(action.compress)
    if compression is not None:
        os.setxattr(copy, COMPRESSION_PROPERTY, compression.algorithm.encode())
    os.ftruncate(copy, held.status.st_size)
    runs = fiemap.find_data(held.fd, sync=True)
    for offset, length in pace.pieces(tuple(Range(offset, length, 0) for offset, length in runs)):
        for at, data in _read(held.fd, offset, length):
            _write(copy, data, at)
        writeback.sync_file_range(copy, offset, length)
    if compression is not None:
        os.removexattr(copy, COMPRESSION_PROPERTY)
    return least_extents(runs, compressed=compression is not None)


def _read(fd: int, offset: int, length: int) -> Iterator[tuple[int, bytes]]:
    end = offset + length
    while offset < end:
        data = os.pread(fd, min(READ_BYTES, end - offset), offset)
        if not data:
            raise Refused(Reason.CHANGED, "the file became shorter while it was read")
        yield offset, data
        offset += len(data)


def _write(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def _bear(original: int, copy: int, status: os.stat_result) -> None:
    """Give the copy all else that the original bears: mode, flags, ACL and other xattrs, times."""
    os.fchmod(copy, status.st_mode & 0o7777)
    kept = _flags(original)
    if kept != _flags(copy):
        inode.set_flags(copy, inode.get_flags(copy) & ~FLAGS_KEPT | kept)
    for name, value in _xattrs(original).items():
        os.setxattr(copy, name, value)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _flags(fd: int) -> int:
    return inode.get_flags(fd) & FLAGS_KEPT


def _xattrs(fd: int) -> dict[str, bytes]:
    """All but a note about this one inode's mtime, which the copy is given."""
    return {name: os.getxattr(fd, name) for name in os.listxattr(fd) if name != mtime_note.NAME}


def _verify(original: int, copy: int, pace: Pace) -> None:
    """Compare what was stored with what was to be stored: read back from the disk, checksums and all.

    Holes are compared as such, and only data is read, piece by piece; unless `pace` ends before the last.
    """
    os.posix_fadvise(copy, 0, 0, os.POSIX_FADV_DONTNEED)
    runs = fiemap.find_data(original, sync=True)
    pairs = {
        "holes": (runs, fiemap.find_data(copy, sync=True)),
        "attributes": (_xattrs(original), _xattrs(copy)),
        "flags": (_flags(original), _flags(copy)),
        "owner, mode, size and times": (_bearing(original), _bearing(copy)),
    }
    for what, (wanted, found) in pairs.items():
        if wanted != found:
            raise Failed(Reason.MISMATCH, f"{what} of the copy are not those of the original")
    for offset, length in pace.reads(near(runs)):
        for wanted, found in zip(_read(original, offset, length), _read(copy, offset, length), strict=True):
            if wanted != found:
                raise Failed(Reason.MISMATCH, "content of the copy is not that of the original")


def _bearing(fd: int) -> tuple[int, ...]:
    status = os.fstat(fd)
    return status.st_uid, status.st_gid, status.st_mode, status.st_size, status.st_mtime_ns


def _take_place(held: VerifiedFile, directory: int, copy: int) -> None:
    """Exchange the names, or leave all as it was if the original is no longer the one that was copied.

    The original is compared once more when nobody can open it by its name any longer: what was written to it
    until then is seen, and what a program could still write that has it open.
    """
    temporary = f"{names.TEMPORARY_PREFIX}{held.file.inode}{names.TEMPORARY_SUFFIX}"
    os.link(f"/proc/self/fd/{copy}", temporary, dst_dir_fd=directory, follow_symlinks=True)
    try:
        os.fsync(copy)
        _still_the_same(held, exchanged=False)
        rename.exchange(directory, temporary, held.name)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise
    try:
        if _inode(temporary, directory) != (held.file.device, held.file.inode):
            raise Refused(Reason.CHANGED, "another file took the name during the exchange")
        _still_the_same(held, exchanged=True)
    except Refused:
        _undo_exchange(held, directory, temporary, copy)
        raise
    os.fsync(directory)
    os.unlink(temporary, dir_fd=directory)


def _undo_exchange(held: VerifiedFile, directory: int, temporary: str, copy: int) -> None:
    """Give what was displaced its name back, and remove the copy.

    A file that took the name from the copy meanwhile keeps it, and a name that was removed stays so: what was
    displaced would be gone, too, if nothing had been exchanged.
    """
    status = os.fstat(copy)
    try:
        rename.exchange(directory, temporary, held.name)
        if _inode(temporary, directory) != (status.st_dev, status.st_ino):
            rename.exchange(directory, temporary, held.name)
    except FileNotFoundError:
        os.unlink(temporary, dir_fd=directory)
        raise
    os.fsync(directory)
    os.unlink(temporary, dir_fd=directory)


def _inode(name: str, directory: int) -> tuple[int, int]:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return status.st_dev, status.st_ino


def _still_the_same(held: VerifiedFile, *, exchanged: bool) -> None:
    """Raises: Refused if anybody was at the original; an exchange moves the ctime."""
    now = os.fstat(held.fd)
    if now.st_nlink == 0:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    unchanged = ["st_size", "st_mtime_ns", "st_nlink", "st_uid", "st_gid", "st_mode"]
    if not exchanged:
        unchanged.append("st_ctime_ns")
    if any(getattr(now, field) != getattr(held.status, field) for field in unchanged):
        raise Refused(Reason.CHANGED, "the file changed while it was copied")
    if held.file.kind is not Kind.ACTIVE and being_written(held.fd):
        raise Refused(Reason.IN_USE, "a program opened the file for writing while it was copied")
