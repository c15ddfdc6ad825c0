# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replacement of an archive by a datacow copy, for NOCOW files and for data that the kernel does not move.

The name leads to a whole file at every moment. The copy has no name until it is complete, verified and on the disk.
Then both files exchange their names in one step, and only then is the original deleted.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Final

from journalkeeper.btrfs import fiemap, inode, kernel, writeback
from journalkeeper.execute.inplace import join_near, read_parts
from journalkeeper.execute.pace import Pace
from journalkeeper.execute.verified_file import Failed, Refused, VerifiedFile, look_again
from journalkeeper.journald import layout, opening
from journalkeeper.model import Action, Range, Reason
from journalkeeper.model.units import parse_compression
from journalkeeper.policy.cost import count_least_extents

COMPRESSION_PROPERTY: Final = "btrfs.compression"
COPY_FLAGS: Final = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC | os.O_NOATIME
"""Flags for a copy without a name, whose access time does not change when it is read for verification."""

NEEDED: Final = {
    "security.capability": "CAP_SETFCAP is missing",
    "": "CAP_SYS_ADMIN is missing, or a security module forbids it",
}
"""What setxattr(2) lacks if it is not permitted, by attribute; "" stands for all others (cap_inode_setxattr())."""

FLAGS_KEPT: Final = inode.FS_SYNC_FL | inode.FS_NODUMP_FL | inode.FS_NOATIME_FL | inode.FS_NOCOMP_FL


def rewrite(held: VerifiedFile, action: Action, pace: Pace) -> int:
    """Copy `held` to a new datacow file, verify the copy, and exchange it for the original, which is deleted.

    `held.fd` then is the copy. If `pace` ends before the copy is verified, the original stays. In both cases, return
    the expected number of extents.

    Raises: Refused if the original changed meanwhile, or its owner cannot be given to the copy; Failed if the copy
    differs from an original that did not change; OSError. The original then keeps its name, except after an OSError
    that follows the exchange: see `_exchange_names`.
    """
    os.fsync(held.fd)
    with opening.hold(os.open(".", COPY_FLAGS, 0o600, dir_fd=held.dir_fd)) as copy:
        _give_owner(copy, held.status)
        _strip_attributes(held.fd, copy)
        _copy_xattrs(held.fd, copy)  # also before the data, which would be written in vain without the right to do so
        expected = max(action.extents_expected, _copy_data(held, copy, action, pace))
        if pace.ended is None:
            copy_attributes(held.fd, copy, held.status)
            os.fsync(copy)
            try:
                _verify_copy(held.fd, copy, pace)
            except Failed:
                _require_no_change(held, exchanged=False)
                raise
        if pace.ended is None:
            _exchange_names(held, copy)
    return expected


def _give_owner(copy: int, status: os.stat_result) -> None:
    """Give the copy the owner and group of `status`, if they differ: files in remote/ have another owner.

    Raises: Refused (FOREIGN_OWNER) without CAP_CHOWN, which the service does not have.
    """
    made = os.fstat(copy)
    if (made.st_uid, made.st_gid) == (status.st_uid, status.st_gid):
        return
    try:
        os.fchown(copy, status.st_uid, status.st_gid)
    except PermissionError as error:
        owner = f"user {status.st_uid}, group {status.st_gid}"
        raise Refused(Reason.FOREIGN_OWNER, f"a copy cannot be given to {owner} without CAP_CHOWN") from error


def _strip_attributes(original: int, copy: int) -> None:
    """Remove from `copy` all inode flags, and xattrs that `original` lacks: its directory gave it NOCOW or an ACL.

    Setting NOCOW and clearing it again enables checksums on a mount with nodatasum (fs/btrfs/ioctl.c,
    btrfs_fileattr_set), but not on each kernel: on 6.12 and 7.2 the copy stays without checksums (measured).

    Raises: Failed if the copy is still NOCOW; OSError.
    """
    for name in set(os.listxattr(copy)) - set(os.listxattr(original)):
        os.removexattr(copy, name)
    for flags in (0, inode.FS_NOCOW_FL, 0):
        inode.set_flags(copy, flags)
    if inode.is_nocow(copy):
        raise Failed(Reason.MISMATCH, "the copy could not be made datacow")


def _copy_data(held: VerifiedFile, copy: int, action: Action, pace: Pace) -> int:
    """Copy the written data until `pace` ends, and return the smallest number of extents that a whole copy can have.

    Only meanwhile the copy has the property that compresses, without a level. The kernel refuses it for data without
    checksums, and the copy is plain. Each piece is written back, but only fsync(2) protects it from a power cut.

    Raises: Refused if the original became shorter; OSError.
    """
    compression = parse_compression(action.compress)
    if compression is not None:
        try:
            os.setxattr(copy, COMPRESSION_PROPERTY, compression.algorithm.encode())
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            compression = None
    os.ftruncate(copy, held.status.st_size)
    runs = fiemap.find_data(held.fd, sync=True)
    for offset, length in pace.iterate_pieces(Range(offset, length, 0) for offset, length in runs):
        for at, data in read_parts(held.fd, offset, length):
            _write_all(copy, data, at)
        writeback.sync_file_range(copy, offset, length)
    if compression is not None:
        os.removexattr(copy, COMPRESSION_PROPERTY)
    return count_least_extents(fiemap.find_data(held.fd, sync=False), compressed=compression is not None)


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def copy_attributes(original: int, copy: int, status: os.stat_result) -> None:
    """Set FLAGS_KEPT and xattrs of the original, mode and times of `status`. Raises: Refused for an xattr; OSError."""
    os.fchmod(copy, status.st_mode & 0o7777)
    kept = _read_kept_flags(original)
    if kept != _read_kept_flags(copy):
        inode.set_flags(copy, inode.get_flags(copy) & ~FLAGS_KEPT | kept)
    _copy_xattrs(original, copy)
    os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_xattrs(original: int, copy: int) -> None:
    """Set all xattrs of the original. Raises: Refused if the process may not set one; OSError."""
    for name, value in _read_all_xattrs(original).items():
        try:
            os.setxattr(copy, name, value)
        except PermissionError as error:
            raise Refused(Reason.REFUSED, f"a copy cannot be given {name}: {NEEDED.get(name, NEEDED[''])}") from error


def _read_kept_flags(fd: int) -> int:
    return inode.get_flags(fd) & FLAGS_KEPT


def _read_all_xattrs(fd: int) -> dict[str, bytes]:
    """Return all xattrs by name, btrfs.compression among them."""
    return {name: os.getxattr(fd, name) for name in os.listxattr(fd)}


def _verify_copy(original: int, copy: int, pace: Pace) -> None:
    """Compare attributes, ranges with data, and content of the copy with the original, until `pace` ends.

    Drop the copy's cached pages first, so that the copy is read from the disk and its checksums are checked.

    Raises: Failed if the files differ; Refused if one became shorter; OSError.
    """
    os.posix_fadvise(copy, 0, 0, os.POSIX_FADV_DONTNEED)
    holes = [array("Q", chain.from_iterable(fiemap.find_data(fd, sync=True))) for fd in (original, copy)]
    if holes[0] != holes[1]:
        raise Failed(Reason.MISMATCH, "the copy's holes differ from the original's")
    require_equal_attributes(original, copy)
    require_equal_data(original, copy, pace.iterate_reads(join_near(fiemap.find_data(original, sync=False))))


def require_equal_attributes(original: int, copy: int) -> None:
    """Raise Failed if xattrs, FLAGS_KEPT, owner, mode, size or mtime differ."""
    wanted, found = _read_attributes(original), _read_attributes(copy)
    for what in wanted:
        if wanted[what] != found[what]:
            raise Failed(Reason.MISMATCH, f"the copy's {what} differ from the original's")


def require_equal_data(original: int, copy: int, runs: Iterable[tuple[int, int]]) -> None:
    """Raise Failed if the content of `runs`, (offset, length), differs; Refused if a file ends before. OSError."""
    for offset, length in runs:
        for theirs, ours in zip(read_parts(original, offset, length), read_parts(copy, offset, length), strict=True):
            if theirs != ours:
                raise Failed(Reason.MISMATCH, "the copy's content differs from the original's")


def _read_attributes(fd: int) -> dict[str, object]:
    status = os.fstat(fd)
    return {
        "attributes": _read_all_xattrs(fd),
        "flags": _read_kept_flags(fd),
        "owner and mode": (status.st_uid, status.st_gid, status.st_mode),
        "size and time of change": (status.st_size, status.st_mtime_ns),
    }


def _exchange_names(held: VerifiedFile, copy: int) -> None:
    """Exchange the names of copy and original, and delete the original. At the end `held.fd` is the copy.

    After the exchange the original has the temporary name, so no program can open it by its own name any more. Check it
    once more, to find a write until the exchange.

    Raises: as `_undo_exchange`. Refused if the original changed or another file took its name: the names are as before
        the call, and the copy is deleted. OSError: before the exchange the copy's name is deleted. After the exchange
        the names stay exchanged, and the original can keep the temporary name until the next run.
    """
    directory, temporary = held.dir_fd, f"{layout.TEMPORARY_PREFIX}{held.file.inode}{layout.TEMPORARY_SUFFIX}"
    os.link(f"/proc/self/fd/{copy}", temporary, dst_dir_fd=directory, follow_symlinks=True)
    try:
        os.fsync(copy)
        _require_no_change(held, exchanged=False)
        kernel.exchange(directory, temporary, held.name)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise
    try:
        if not _is_named(held.fd, temporary, directory):
            raise Refused(Reason.CHANGED, "another file took the name during the exchange")
        _require_no_change(held, exchanged=True)
    except Refused:
        _undo_exchange(held, temporary, copy)
        raise
    os.fsync(directory)
    os.unlink(temporary, dir_fd=directory)
    os.dup2(copy, held.fd, inheritable=False)


def _undo_exchange(held: VerifiedFile, temporary: str, copy: int) -> None:
    """Give the original, which has the name `temporary`, its name back, and delete the copy.

    If another program put its own file in the copy's place meanwhile, that file keeps the name. The original is then
    deleted, because the program meant to replace it.

    Raises: FileNotFoundError if a program removed the file's name meanwhile. The file with the temporary name is
        then deleted, because the removal was meant for it. OSError.
    """
    try:
        kernel.exchange(held.dir_fd, temporary, held.name)
        if not _is_named(copy, temporary, held.dir_fd):
            kernel.exchange(held.dir_fd, temporary, held.name)
    except FileNotFoundError:
        os.unlink(temporary, dir_fd=held.dir_fd)
        raise
    os.fsync(held.dir_fd)
    os.unlink(temporary, dir_fd=held.dir_fd)


def _is_named(fd: int, name: str, directory: int) -> bool:
    """Return whether `name` itself, not a link's target, is the file `fd`. Raises: OSError: ENOENT no such name."""
    return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=directory, follow_symlinks=False))


def _require_no_change(held: VerifiedFile, *, exchanged: bool) -> None:
    """Raise as `look_again`, replacing; Refused if owner, group, mode or ctime changed since `held` was made.

    An exchange changes the ctime, so a new ctime counts only if not `exchanged`.
    """
    before, now = held.status, look_again(held, replacing=True).status
    owner, now_owner = (before.st_uid, before.st_gid, before.st_mode), (now.st_uid, now.st_gid, now.st_mode)
    if owner != now_owner or (not exchanged and before.st_ctime_ns != now.st_ctime_ns):
        raise Refused(Reason.CHANGED, "the file changed during the copy")
