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


class ReadOnlyMount(NamedTuple):
    """A mount that takes no writes to journals below `top`, although its filesystem does; `number` is its id."""

    top: str
    number: str


def read_only_mounts(tops: Iterable[str]) -> dict[ReadOnlyMount, str]:
    """Return the mounts that keep a directory with journals read-only, and for each the first such directory.

    The unit's confinement makes such mounts: ReadWritePaths= excepts the directory that is there when the service
    starts. A directory that replaces it later lies on the read-only mount below. A filesystem that is read-only as a
    whole is no such mount, because a service that starts anew could not write to it either.
    """
    found: dict[ReadOnlyMount, str] = {}
    for top in tops:
        for path in _places(top):
            try:
                fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue  # The directory is gone, or the next look reports what is wrong with it.
            try:
                line = find_mount_line(fd)
            finally:
                os.close(fd)
            fields = [] if line is None else line.split()
            if fields and "ro" in fields[5].split(",") and "ro" not in fields[-1].split(","):
                found.setdefault(ReadOnlyMount(top, fields[0]), path)
    return found


def unwritable(tops: Iterable[str]) -> tuple[str, ...]:
    """Return the directories with journals that this process may not write to; none below another of them.

    remote/ is left out: each file there that belongs to another user has the reason foreign-owner.
    """
    found: list[str] = []
    for top in tops:
        for path in _places(top):
            if os.path.basename(path) == layout.REMOTE:
                continue
            hidden = any(path.startswith(f"{above.rstrip('/')}/") for above in found)
            if not hidden and os.path.isdir(path) and not os.access(path, os.W_OK, effective_ids=True):
                found.append(path)
    return tuple(found)


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
