# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mounts of journal directories, and whether this process can write there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from journalkeeper.btrfs.volume import find_mount_line
from journalkeeper.journald import layout
from journalkeeper.model.errors import KeeperError

MOUNTINFO: Final = "/proc/self/mountinfo"


class Unwritable(NamedTuple):
    """A directory with journals, `top` or below it, that this process may not write to.

    `mount` is the id of a mount that is read-only although its filesystem is not, "" for another reason. The unit's
    confinement makes such mounts: ReadWritePaths= excepts the directory that is there when the service starts. A
    directory that replaces it later lies on the read-only mount below.
    """

    top: str
    path: str
    mount: str


def find_unwritable(tops: Iterable[str]) -> list[Unwritable]:
    """Return the directories with journals that this process may not write to."""
    return [
        Unwritable(top, path, _find_read_only_mount(path))
        for top in tops
        for path in _places(top)
        if os.path.isdir(path) and not os.access(path, os.W_OK, effective_ids=True)
    ]


def list_paths(unwritable: Iterable[Unwritable]) -> tuple[str, ...]:
    """Return the paths of directories that cannot be written; none below another of them.

    remote/ is left out: each file there that belongs to another user has the reason foreign-owner.
    """
    paths: list[str] = []
    for _, path, _ in unwritable:
        hidden = any(path.startswith(f"{above.rstrip('/')}/") for above in paths)
        if not hidden and os.path.basename(path) != layout.REMOTE:
            paths.append(path)
    return tuple(paths)


def _find_read_only_mount(path: str) -> str:
    """Return the id of the mount of `path` if it is read-only and its filesystem is not, else ""."""
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""  # The directory is gone.
    try:
        fields = (find_mount_line(fd) or "").split()
    finally:
        os.close(fd)
    return fields[0] if fields and "ro" in fields[5].split(",") and "ro" not in fields[-1].split(",") else ""


def _places(top: str) -> list[str]:
    """Return `top` and the directories of its instances, as far as they can be listed."""
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
