# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find obstacles that keep this process from writing to directories, or journald from storing the next message."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from journalkeeper.btrfs import volume
from journalkeeper.health.evidence import Obstacle, Silence, lacks_room
from journalkeeper.journald import control, layout, opening
from journalkeeper.journald.layout import Directory
from journalkeeper.model import Volume
from journalkeeper.model.errors import KeeperError

HOST: Final = "/proc/1/mountinfo"
"""The mounts as journald sees them. Each process of the group root may read them, also under ProtectProc=."""

BOOTED: Final = "/run/systemd/system"
"""This directory exists where systemd is PID 1: sd_booted(3)."""

RUNNING: Final = "/run/systemd/units/invocation:"
"""PID 1 keeps a link of this name for each unit that is active (unit_export_state_files(), unit.c). The service may not
start systemctl.
"""

MASKING: Final = ("/etc/systemd/system", "/run/systemd/system")
EMPTY_SUBVOL_DIR_OBJECTID: Final = 2
"""The inode number of the directory that a snapshot contains in place of a subvolume. It can only be removed."""

Places = Mapping[str, Sequence[Directory]]
"""The journal directories at and below each top, none of a top that cannot be listed, which a look reports."""

Mounts = Mapping[str, Sequence[str]]
"""The options of each mount point."""


def list_places(tops: Iterable[str]) -> Places:
    """Return the journal directories at each of `tops`, () where they cannot be listed."""
    found: dict[str, Sequence[Directory]] = {}
    for top in tops:
        found[top] = ()
        with suppress(KeeperError, OSError):
            found[top] = layout.find_directories(top)
    return found


def read_mounts(table: str = HOST) -> Mounts:
    """Return the options of each mount point; {} where they cannot be read."""
    with suppress(OSError):
        return {volume.get_mount_point(line): volume.parse_options(line) for line in volume.read_mount_lines(table)}
    return {}


def find_obstacles(mounts: Mounts, *paths: str) -> dict[str, Obstacle]:
    """Return why this process cannot write to `paths`, by path; a subvolume, or a mount in `mounts`, by its own path.

    A mount that is read-only in `mounts` is an obstacle even if this process can write to it. Once the first path has
    an obstacle by its own path, the others are not examined. A path that cannot be examined is left out.
    """
    found = dict[str, Obstacle]()
    for path in paths:
        with suppress(OSError):  # it vanished, or the look reports it
            if paths[0] not in found and os.path.exists(path):
                found |= _find_obstacle(path, mounts)
    return found


def _find_obstacle(path: str, mounts: Mounts) -> dict[str, Obstacle]:
    """Return {} or the first obstacle: READ_ONLY by the mount point in `mounts`; `_explain_read_only` by `path`;
    SUBVOLUME by its top; ATTRIBUTE (the mode allows) or MODE by `path`. Raises: OSError.
    """
    real = os.path.realpath(path)
    point = next((one for one in (real, *map(str, Path(real).parents)) if one in mounts), "")
    if point and "ro" in mounts[point]:
        return {point: Obstacle.READ_ONLY}
    if os.access(path, os.W_OK, effective_ids=True):
        return {}
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return {path: _explain_read_only(path)}
    if top := _find_read_only_subvolume(path):
        return {top: Obstacle.SUBVOLUME}
    status = os.stat(path)
    is_ours = status.st_mode & 0o200 and status.st_uid == os.geteuid()
    return {path: Obstacle.ATTRIBUTE if is_ours else Obstacle.MODE}


def _explain_read_only(path: str) -> Obstacle:
    """Return READ_ONLY if the whole file system is read-only, else MOUNT: only the mount of this process is."""
    with opening.hold(os.open(path, os.O_PATH | os.O_CLOEXEC)) as fd:
        options = volume.parse_filesystem_options(volume.find_mount_line(fd) or "")
    # the filesystem itself after an error; else the mount was made after the start: ReadWritePaths= are writable
    return Obstacle.READ_ONLY if "ro" in options else Obstacle.MOUNT


def _find_read_only_subvolume(path: str) -> str:
    """Return the top of the read-only subvolume that contains the directory `path`, or "" without one or if unknown."""
    with suppress(OSError), opening.open_directory(os.path.realpath(path)) as fd:
        if volume.is_in_read_only_subvolume(fd):
            while os.stat(path).st_ino != volume.FIRST_FREE_OBJECTID:
                path = os.path.dirname(path)
            return path
    return ""


def find_unwritable(top: str, places: Iterable[Directory], mounts: Mounts) -> dict[str, Obstacle]:
    """Return `find_obstacles` of the directories `top` and `places`, without remote/, where journald does not write."""
    paths = (top, *(one.path for one in places))
    paths = tuple(one for one in paths if os.path.isdir(one) and os.path.basename(one) != layout.REMOTE)
    return find_obstacles(mounts, *paths)


def find_full(places: Places) -> tuple[tuple[str, Volume], ...]:
    """Return the first readable directory of each subvolume whose volume or quota `lacks_room`, and the Volume.

    A top without journal directories is examined itself.
    """
    found = dict[int, tuple[str, Volume]]()
    paths = ([one.path for one in below] or [os.path.realpath(top)] for top, below in places.items())
    for path in chain.from_iterable(paths):
        with suppress(KeeperError, OSError), opening.open_directory(path) as fd:
            volume.require_btrfs(fd, path)
            found.setdefault(os.fstat(fd).st_dev, (path, volume.read_volume(fd)))
    return tuple(one for one in found.values() if lacks_room(one[1]))


def is_left_by_rollback(path: str) -> bool:
    """Return whether `path` can be opened and is what a snapshot contains in place of a subvolume."""
    with suppress(OSError), opening.open_directory(os.path.realpath(path)) as fd:
        # it knows no ioctl of btrfs, and other filesystems use this number, too
        return os.fstat(fd).st_ino == EMPTY_SUBVOL_DIR_OBJECTID and " - btrfs " in (volume.find_mount_line(fd) or "")
    return False


def find_silent(places: Places, timeout_s: float) -> tuple[tuple[str, Silence], ...]:
    """Return the unit of each journald of this host that writes to `places` and stores no messages, with the reason.

    A journald of a namespace is asked only while it runs, because a question would start it. Return () without systemd.
    """
    if not os.path.isdir(BOOTED):
        return ()
    namespaces = {"" for top in places if os.path.realpath(top) == os.path.realpath(layout.TOP)}
    with suppress(OSError):
        namespaces |= {one.namespace for one in chain.from_iterable(places.values()) if control.has_journald(one)}
    units = [(one, f"systemd-journald{one and '@'}{one}.service") for one in sorted(namespaces)]
    return tuple((unit, why) for one, unit in units if (why := _find_silence(one, unit, timeout_s)))


def _find_silence(namespace: str, unit: str, timeout_s: float) -> Silence | None:
    """Return why, or None. If the unit runs: HUNG, ROLLED_BACK (main). Else: MASKED, STOPPED (main, no socket)."""
    if os.path.lexists(f"{RUNNING}{unit}"):
        if control.is_responsive(namespace, timeout_s) is False:
            return Silence.HUNG
        return Silence.ROLLED_BACK if not namespace and is_left_by_rollback(layout.TOP) else None
    if any(os.path.realpath(f"{place}/{unit}") == os.devnull for place in MASKING):
        return Silence.MASKED
    if not namespace:
        try:
            control.connect(f"{control.RUNTIME}/socket", socket.SOCK_DGRAM).close()
        except KeeperError:  # nor does PID 1 take messages in its place
            return Silence.STOPPED
    return None
