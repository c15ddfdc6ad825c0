# SPDX-License-Identifier: LGPL-2.1-or-later
"""The row of one file, from its stat, its header and its extents, or with the reason why a look at it failed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Final

from journalkeeper.btrfs import disk, extent_count, inode
from journalkeeper.journald import journal_file, opening
from journalkeeper.journald.layout import Directory, Name, classify
from journalkeeper.model import MAX_FILE_BYTES, Extents, Header, JournalFile, Kind, Reason, State
from journalkeeper.model.errors import NotBtrfsError, describe_errno
from journalkeeper.model.units import format_size

MAX_TIME_NS: Final = 1 << 63
"""The year 2262, the limit of the kernel's own clock (ktime_t). Only utimensat(2) can set later times."""

Survey = Callable[[int], Extents]

UNNAMED: Final = Name(Kind.ACTIVE, "remote")
REASONS: Final = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ESTALE), Reason.VANISHED),
    **dict.fromkeys((errno.EACCES, errno.EPERM), Reason.UNREADABLE),
    **dict.fromkeys((errno.ELOOP, errno.ENXIO), Reason.NOT_REGULAR),
    **dict.fromkeys((errno.EIO, errno.EUCLEAN), Reason.IO_ERROR),
    errno.EAGAIN: Reason.IN_USE,  # a program has a lease on the file, as a file server takes for its clients
}
"""The reason for which an errno ends the look at a file; any other is REFUSED."""


class UnfitFileError(Exception):
    """The file cannot be looked at. `why` becomes the problem of its row, and the text the problem's detail."""

    def __init__(self, why: Reason, detail: str) -> None:
        super().__init__(detail)
        self.why = why


def require_regular(status: os.stat_result) -> None:
    """Raise UnfitFileError with NOT_REGULAR unless the stat is a regular file's."""
    if not stat.S_ISREG(status.st_mode):
        what = {stat.S_IFDIR: "is a directory", stat.S_IFLNK: "is a symbolic link"}
        raise UnfitFileError(Reason.NOT_REGULAR, what.get(stat.S_IFMT(status.st_mode), "not a regular file"))


def describe_impossible_stat(status: os.stat_result) -> str:
    """Return why a size, or the distance of an mtime from 1970, is too large, or "": sums of others fit in 63 bits."""
    if status.st_size > MAX_FILE_BYTES:
        return f"{format_size(status.st_size)} large: files above {format_size(MAX_FILE_BYTES)} are left alone"
    if abs(status.st_mtime_ns) >= MAX_TIME_NS:
        return "impossible modification time: beyond the range of the kernel's clock"
    return ""


def read_row(
    place: Directory, name: str, status: os.stat_result, survey: Survey, *, dir_fd: int, disk_bytes: bool
) -> JournalFile:
    """Open the file `name` in the directory `place`, and return its complete row, in which a bad header is the problem.

    After another problem, or an OSError such as ENOENT, the row has no measurements. `status` is the stat by the name;
    the row has the opened file's. The disk usage is measured only with `disk_bytes`, and the extents of an active file
    by `survey`. Dirty pages of a file that is neither active nor ONLINE are written before its extents are read.
    """
    try:
        require_regular(status)
        kind = classify(name)
        if kind is None or (beyond := describe_impossible_stat(status)):
            raise UnfitFileError(Reason.NOT_JOURNAL, "not a journal file's name" if kind is None else beyond)
        if status.st_dev != os.fstat(dir_fd).st_dev:
            raise UnfitFileError(Reason.NOT_BTRFS, "another filesystem is mounted on this file")
        with opening.hold_open(name, dir_fd) as fd:
            status, flags = _stat_open_file(fd), inode.get_flags(fd)
            head, problem, detail = _read_header(fd, status.st_size)
            # The dirty pages of a finished file are written back first. An fsync returns before btrfs has added the
            # written extents to the file (btrfs_finish_ordered_io), by seconds on a busy machine. No stat shows when
            # they are added, so an earlier row would stay wrong for good.
            finished = head.state is not State.ONLINE
            extents = survey(fd) if kind.kind is Kind.ACTIVE else extent_count.survey(fd, sync=finished)
            # The kernel sets the flag, too, if a piece did not become smaller: other pieces are compressed then.
            refusing = inode.get_flags(dir_fd) | (0 if extents.encoded_bytes else flags)
            return JournalFile(
                path=f"{place.path}/{name}",
                device=status.st_dev,
                inode=status.st_ino,
                kind=kind.kind,
                owner=kind.owner,
                instance=place.name,
                size_bytes=status.st_size,
                allocated_bytes=status.st_blocks * 512,
                disk_bytes=disk.read_disk_bytes(fd) if disk_bytes else None,
                extents=extents,
                nocow=bool(flags & inode.FS_NOCOW_FL),
                links=status.st_nlink,
                uid=status.st_uid,
                mtime_ns=status.st_mtime_ns,
                ctime_ns=status.st_ctime_ns,
                problem=problem,
                problem_detail=detail,
                refuses_compression=bool(refusing & inode.FS_NOCOMP_FL),
                fixed=bool(flags & inode.FIXED),
                **head._asdict(),
            )
    except (OSError, UnfitFileError) as error:
        return build_problem(place, name, *explain_error(error))


def _stat_open_file(fd: int) -> os.stat_result:
    """Return the stat. Raises: OSError: ENOENT without a name any more; ESTALE if its size or time is impossible."""
    status = os.fstat(fd)
    if status.st_nlink == 0:
        raise FileNotFoundError(errno.ENOENT, "removed during the look")
    if describe_impossible_stat(status):
        raise OSError(errno.ESTALE, "changed during the look")  # the next look reads the new state
    return status


def _read_header(fd: int, size_bytes: int) -> tuple[Header, Reason | None, str]:
    """Return the header, None and ""; or an empty header, the problem and its detail after a HeaderError."""
    try:
        return journal_file.read_header(fd, size_bytes), None, ""
    except journal_file.HeaderError as error:
        return Header(), error.reason, str(error)


def build_problem(place: Directory, name: str | None, why: Reason, detail: str) -> JournalFile:
    """Return a row without measurements, with the problem `why`; if `name` is None, it has the path of `place`."""
    kind = (name and classify(name)) or UNNAMED
    path = place.path if name is None else f"{place.path.rstrip('/')}/{name}"
    return JournalFile(path, 0, 0, kind.kind, kind.owner, place.name, problem=why, problem_detail=detail)


def explain_error(error: OSError | NotBtrfsError | UnfitFileError) -> tuple[Reason, str]:
    """Return the reason and the detail for a row's problem, from the error that ended the look.

    An OSError has a reason from REASONS, or REFUSED, and the detail of `describe_errno`. Others have their own.
    """
    match error:
        case UnfitFileError():
            return error.why, str(error)
        case NotBtrfsError():
            return Reason.NOT_BTRFS, str(error)
    return REASONS.get(error.errno or 0, Reason.REFUSED), describe_errno(error.errno)
