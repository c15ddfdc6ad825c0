# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mount table, as far as it is about journal directories."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Final

MOUNTINFO: Final = "/proc/self/mountinfo"


def read_only(directories: Iterable[str]) -> list[str]:
    """Those that are there and that this process may not write to because of how they are mounted."""
    found = []
    for directory in directories:
        try:
            flags = os.statvfs(directory).f_flag
        except OSError:
            continue  # not there, or the look says what is wrong with it
        if flags & os.ST_RDONLY:
            found.append(directory)
    return found


def about(places: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of mountinfo whose mount points are above or below one of `places`, or one of them."""
    with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
        return tuple(line for line in file if any(_concerns(_mount_point(line), place) for place in places))


def _mount_point(line: str) -> str:
    r"""The mount point in a line of mountinfo, where blanks and backslashes are octal escapes (proc(5))."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split(" ")[4])


def _concerns(point: str, place: str) -> bool:
    inside = f"{place.rstrip('/')}/"
    return inside.startswith(f"{point.rstrip('/')}/") or point.startswith(inside)
