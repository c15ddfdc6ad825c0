# SPDX-License-Identifier: LGPL-2.1-or-later
"""The row of one file: as far as its stat and its header tell, or why it could not be looked at."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from journalkeeper.btrfs import inode, mtime_note
from journalkeeper.journald import header
from journalkeeper.journald.layout import Directory
from journalkeeper.journald.names import Name
from journalkeeper.model import MAX_FILE_BYTES, Extents, Header, JournalFile, Kind, Reason, State
from journalkeeper.model.units import format_size

MAX_TIME_NS: Final = 1 << 63
"""The year 2262, where the kernel's own clock ends (ktime_t); only utimensat(2) can tell of later ones."""

UNNAMED: Final = Name(Kind.ACTIVE, "remote")
NO_HEADER: Final = Header(State.UNKNOWN, "", "", "", 0, 0, 0, 0, 0)


def beyond(status: os.stat_result) -> str:
    """Why the numbers of a stat are none of a journal file, "" if they may be: no sum of them exceeds 63 bits."""
    if status.st_size > MAX_FILE_BYTES:
        return f"{format_size(status.st_size)} large, and no journal file is larger than {format_size(MAX_FILE_BYTES)}"
    if abs(status.st_mtime_ns) >= MAX_TIME_NS:
        return "changed at a time that no clock of the kernel's can show"
    return ""


def begun(place: Directory, name: str, kind: Name, fd: int) -> JournalFile:
    """The row of an open file, but for how it lies.

    Raises: OSError: ENOENT, ESTALE it was removed or changed meanwhile; EIO.
    """
    status = os.fstat(fd)
    if status.st_nlink == 0:
        raise FileNotFoundError(errno.ENOENT, "removed while it was looked at")
    if beyond(status):
        raise OSError(errno.ESTALE, "changed while it was looked at")  # the next look sees what it is
    noted = mtime_note.is_there(fd)
    trouble, detail, head = None, "", NO_HEADER
    try:
        head = header.read(fd, status.st_size)
    except header.HeaderError as error:
        trouble, detail = Reason.BAD_HEADER, str(error)
    return JournalFile(
        path=f"{place.path}/{name}",
        device=status.st_dev,
        inode=status.st_ino,
        kind=kind.kind,
        owner=kind.owner,
        instance=place.name,
        state=head.state,
        size_bytes=status.st_size,
        allocated_bytes=status.st_blocks * 512,
        disk_bytes=None,
        extents=Extents(),
        nocow=inode.is_nocow(fd),
        entries=head.entries,
        head_time_us=head.head_time_us,
        tail_time_us=head.tail_time_us,
        links=status.st_nlink,
        uid=status.st_uid,
        mtime_ns=mtime_note.find_mtime_ns(fd, status) if noted else status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        problem=trouble,
        problem_detail=detail,
        mtime_noted=noted,
    )


def problem(place: Directory, name: str, kind: Name, why: Reason, detail: str) -> JournalFile:
    """A row for what could not be looked at."""
    return JournalFile(
        path=f"{place.path.rstrip('/')}/{name}",
        device=0,
        inode=0,
        kind=kind.kind,
        owner=kind.owner,
        instance=place.name,
        state=State.UNKNOWN,
        size_bytes=0,
        allocated_bytes=0,
        disk_bytes=None,
        extents=Extents(),
        nocow=False,
        entries=0,
        head_time_us=0,
        tail_time_us=0,
        links=0,
        uid=0,
        mtime_ns=0,
        ctime_ns=0,
        problem=why,
        problem_detail=detail,
    )


def irregular(place: Directory, name: str, kind: Name, status: os.stat_result) -> JournalFile:
    """A row for a name that is no regular file."""
    what = {stat.S_IFDIR: "is a directory", stat.S_IFLNK: "is a symbolic link"}
    detail = what.get(stat.S_IFMT(status.st_mode), "not a regular file")
    return problem(place, name, kind, Reason.NOT_REGULAR, detail)


def directory_problem(place: Directory, why: Reason, detail: str) -> JournalFile:
    """A row for a whole directory that could not be looked into."""
    parent, _, name = place.path.rpartition("/")
    return problem(place._replace(path=parent), name, UNNAMED, why, detail)


def reason(error: OSError) -> Reason:
    """What an error of a look means."""
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ESTALE:
            return Reason.VANISHED
        case errno.EACCES | errno.EPERM:
            return Reason.UNREADABLE
        case errno.ELOOP | errno.ENXIO:
            return Reason.NOT_REGULAR
        case _:
            return Reason.IO_ERROR
