# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mounts of journal directories, and whether this process can write there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from journalkeeper.btrfs.volume import find_mount_line
from journalkeeper.health.evidence import Obstacle
from journalkeeper.journald import layout
from journalkeeper.model.errors import KeeperError

MOUNTINFO: Final = "/proc/self/mountinfo"


class Unwritable(NamedTuple):
    """A directory with journals, `top` or below it, that this process may not write to.

    `mount` is the id of its mount. The unit's confinement makes mounts that are read-only although their filesystem is
    not (Obstacle.MOUNT): ReadWritePaths= excepts the directory that is there when the service starts. A directory that
    replaces it later lies on the read-only mount below.
    """

    top: str
    path: str
    mount: str
    obstacle: Obstacle


def find_unwritable(tops: Iterable[str]) -> list[Unwritable]:
    """Return the directories with journals that this process may not write to."""
    return [
        Unwritable(top, path, *_find_obstacle(path))
        for top in tops
        for path in _places(top)
        if os.path.isdir(path) and not os.access(path, os.W_OK, effective_ids=True)
    ]


def list_paths(unwritable: Iterable[Unwritable]) -> tuple[tuple[str, Obstacle], ...]:
    """Return (path, obstacle) for directories that cannot be written. Directories below another one are left out.

    remote/ is left out, too: each file there that belongs to another user has the reason foreign-owner.
    """
    paths: dict[str, Obstacle] = {}
    for one in unwritable:
        hidden = any(one.path.startswith(f"{above.rstrip('/')}/") for above in paths)
        if not hidden and os.path.basename(one.path) != layout.REMOTE:
            paths[one.path] = one.obstacle
    return tuple(paths.items())


def _find_obstacle(path: str) -> tuple[str, Obstacle]:
    """Return (mount id, obstacle): why this process cannot write to the directory `path`.

    The mount id is "" if the obstacle is not a mount.
    """
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return "", Obstacle.ATTRIBUTE  # The directory is gone.
    try:
        fields = (find_mount_line(fd) or "").split()
        is_ours = os.fstat(fd).st_uid == os.geteuid()
    finally:
        os.close(fd)
    if fields and "ro" in fields[-1].split(","):
        return fields[0], Obstacle.FILESYSTEM
    if fields and "ro" in fields[5].split(","):
        return fields[0], Obstacle.MOUNT
    return "", Obstacle.ATTRIBUTE if is_ours else Obstacle.OWNER


def _places(top: str) -> list[str]:
    """Return `top` and the directories of its instances; only `top` if it cannot be listed."""
    try:
        return [top, *(one.path for one in layout.find_directories(top))]
    except KeeperError:
        return [top]


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
