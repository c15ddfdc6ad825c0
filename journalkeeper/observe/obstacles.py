# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why this process, or journald, cannot write to directories."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from journalkeeper.btrfs.volume import (
    FIRST_FREE_OBJECTID,
    find_mount_line,
    get_mount_point,
    is_in_read_only_subvolume,
    read_mount_lines,
)
from journalkeeper.health.evidence import Obstacle
from journalkeeper.journald import layout, opening
from journalkeeper.model.errors import KeeperError

HOST: Final = "/proc/1/mountinfo"
"""The mounts as journald sees them. Each process of the group root may read them, also under ProtectProc=."""


def find_obstacles(*paths: str, table: str = HOST) -> dict[str, Obstacle]:
    """Return why this process cannot write to directories or files, by path, or by that of the read-only subvolume or
    the mount that is read-only in `table`, even if it is writable to this process.

    An unwritable first path stands for all. A path that is gone is left out.
    """
    mounts, found = _read_mounts(table), dict[str, Obstacle]()
    for path in paths:
        with suppress(OSError):  # it vanished, or the look reports it
            if paths[0] not in found and os.path.exists(path):
                found |= _find_obstacle(path, mounts)
    return found


def _read_mounts(table: str) -> dict[str, set[str]]:
    """Return the options of each mount point; {} where they cannot be read."""
    with suppress(OSError):
        fields = (line.rstrip("\n").split(" ") for line in read_mount_lines(table))
        return {get_mount_point(line): {*line[5].split(","), *line[-1].split(",")} for line in fields}
    return {}


def _find_obstacle(path: str, mounts: dict[str, set[str]]) -> dict[str, Obstacle]:
    real = os.path.realpath(path)
    point = max((one for one in mounts if os.path.commonpath((one, real)) == one), key=len, default="")
    if point and "ro" in mounts[point]:
        return {point: Obstacle.READ_ONLY}
    if os.access(path, os.W_OK, effective_ids=True):
        return {}
    top = _find_read_only_subvolume(path)
    return {top: Obstacle.SUBVOLUME} if top else {path: _find_own_obstacle(path)}


def _find_read_only_subvolume(path: str) -> str:
    with suppress(OSError), opening.open_directory(os.path.realpath(path)) as fd:
        if is_in_read_only_subvolume(fd):
            while os.stat(path).st_ino != FIRST_FREE_OBJECTID:
                path = os.path.dirname(path)
            return path
    return ""


def _find_own_obstacle(path: str) -> Obstacle:
    """A directory made after the start of the service is on the read-only mount that systemd makes elsewhere than at
    ReadWritePaths=. Raises: OSError if the path cannot be opened.
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        fields = (find_mount_line(fd) or "").split(" ")
        seen = os.fstat(fd)
    finally:
        os.close(fd)
    if len(fields) > 5 and "ro" in fields[5].split(","):
        return Obstacle.MOUNT
    obstacle = Obstacle.ATTRIBUTE if seen.st_mode & 0o200 else Obstacle.MODE
    return obstacle if seen.st_uid == os.geteuid() else Obstacle.OWNER


def find_unwritable(top: str, table: str = HOST) -> dict[str, Obstacle]:
    """Return `find_obstacles` of `top` and the journal directories below it."""
    places = [top]
    with suppress(KeeperError):  # the look reports it
        places += [one.path for one in layout.find_directories(top)]
    places = [one for one in places if os.path.isdir(one) and os.path.basename(one) != layout.REMOTE]
    return find_obstacles(*places, table=table)
