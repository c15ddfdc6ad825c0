# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why this process cannot write to directories."""

from __future__ import annotations

import os
from contextlib import suppress

from journalkeeper.btrfs.volume import FIRST_FREE_OBJECTID, find_mount_line, is_in_read_only_subvolume
from journalkeeper.health.evidence import Obstacle
from journalkeeper.journald import layout, opening
from journalkeeper.model.errors import KeeperError


def find_obstacles(path: str) -> dict[str, Obstacle]:
    """Return why this process cannot write to the directory `path`, by its path or that of the read-only subvolume; {}
    if it can, or if `path` is gone.
    """
    with suppress(OSError):  # it vanished, or the look reports it
        if os.path.exists(path) and not os.access(path, os.W_OK, effective_ids=True):
            top = _find_read_only_subvolume(path)
            return {top: Obstacle.SUBVOLUME} if top else {path: _find_obstacle(path)}
    return {}


def _find_read_only_subvolume(path: str) -> str:
    with suppress(OSError), opening.open_directory(os.path.realpath(path)) as fd:
        if is_in_read_only_subvolume(fd):
            while os.stat(path).st_ino != FIRST_FREE_OBJECTID:
                path = os.path.dirname(path)
            return path
    return ""


def _find_obstacle(path: str) -> Obstacle:
    """Return the reason why this process cannot write to `path`. The caller knows that it cannot.

    A directory made after the service started lies on the read-only mount that systemd makes outside ReadWritePaths=.
    Raises: OSError if the path cannot be opened.
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        fields = (find_mount_line(fd) or "").rstrip("\n").split(" ")
        seen = os.fstat(fd)
    finally:
        os.close(fd)
    if "ro" in fields[-1].split(","):
        return Obstacle.FILESYSTEM
    if len(fields) > 5 and "ro" in fields[5].split(","):
        return Obstacle.MOUNT
    obstacle = Obstacle.ATTRIBUTE if seen.st_mode & 0o200 else Obstacle.MODE
    return obstacle if seen.st_uid == os.geteuid() else Obstacle.OWNER


def find_unwritable(top: str) -> dict[str, Obstacle]:
    """Return the journal directories that this process may not write to, each with the reason; {} if there are none."""
    places = [top]
    with suppress(KeeperError):  # the look reports it
        places += [one.path for one in layout.find_directories(top)]
    found: dict[str, Obstacle] = {}
    for path in places:
        if os.path.isdir(path) and os.path.basename(path) != layout.REMOTE and top not in found:
            found |= find_obstacles(path)
    return found
