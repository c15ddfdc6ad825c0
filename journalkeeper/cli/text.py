# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names and numbers as people read them.

Nothing that came from the disk reaches a terminal unescaped.
"""

from __future__ import annotations

import os

from journalkeeper.model.escape import shown
from journalkeeper.model.units import parse_bool

__all__ = ["elided", "no_directory", "shown", "switched"]


def elided(name: str, width: int) -> str:
    """`name` cut in its middle to at most `width` columns, its end being what tells files apart."""
    if len(name) <= width:
        return name
    if width < 2:
        return "…"[:width]
    head = (width - 1) // 3
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def no_directory(path: str) -> str:
    """What is wrong with a path that is to be a directory and is none."""
    return "is not a directory" if os.path.lexists(path) else "no such directory"


def switched(text: str) -> bool | None:
    """What a switch in the environment says; None if it is not a boolean."""
    try:
        return parse_bool(text.strip())
    except ValueError:
        return None
