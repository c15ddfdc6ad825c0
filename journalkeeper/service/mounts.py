# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mounts of journal directories, and whether this process can write there."""

from __future__ import annotations

import os
import re
from typing import Final

from journalkeeper.btrfs.volume import find_mount_line
from journalkeeper.health.evidence import Obstacle
from journalkeeper.journald import layout
from journalkeeper.model.errors import KeeperError

MOUNTINFO: Final = "/proc/self/mountinfo"


def find_unwritable(top: str) -> dict[str, Obstacle]:
    """Return why this process may not write to directories with journals: `top`, or else those of its instances.

    The unit's confinement makes mounts that are read-only although their filesystem is not (Obstacle.MOUNT):
    ReadWritePaths= excepts the directory that is there when the service starts. A directory that replaces it later lies
    on the read-only mount below. remote/ is left out: each file there that belongs to another user has the reason
    foreign-owner.
    """
    if _is_unwritable(top):
        return {top: _find_obstacle(top)}
    try:
        places = [one.path for one in layout.find_directories(top)]
    except KeeperError:  # the look reports it
        return {}
    return {path: _find_obstacle(path) for path in places if _is_unwritable(path)}


def _is_unwritable(path: str) -> bool:
    is_ours = os.path.isdir(path) and os.path.basename(path) != layout.REMOTE
    return is_ours and not os.access(path, os.W_OK, effective_ids=True)


def _find_obstacle(path: str) -> Obstacle:
    """Return why this process cannot write to the directory `path`."""
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return Obstacle.ATTRIBUTE  # The directory is gone.
    try:
        fields = (find_mount_line(fd) or "").split()
        is_ours = os.fstat(fd).st_uid == os.geteuid()
    finally:
        os.close(fd)
    if fields and "ro" in fields[-1].split(","):
        return Obstacle.FILESYSTEM
    if fields and "ro" in fields[5].split(","):
        return Obstacle.MOUNT
    return Obstacle.ATTRIBUTE if is_ours else Obstacle.OWNER


def find_mount_lines(places: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines of mountinfo with a mount point at, above or below one of `places`."""
    with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
        return tuple(line for line in file if any(_concerns(_mount_point(line), place) for place in places))


def _mount_point(line: str) -> str:
    """Return the mount point in a line of mountinfo, which has octal escapes for blanks and backslashes (proc(5))."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split(" ")[4])


def _concerns(point: str, place: str) -> bool:
    inside = f"{place.rstrip('/')}/"
    return inside.startswith(f"{point.rstrip('/')}/") or point.startswith(inside)
