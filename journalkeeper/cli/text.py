# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names and numbers for people.

Text from the disk is always escaped before it reaches a terminal.
"""

from __future__ import annotations

import os

from journalkeeper.model.escape import shown
from journalkeeper.model.units import parse_bool

__all__ = ["elide", "explain_no_directory", "parse_switch", "shown"]


def elide(name: str, width: int) -> str:
    """Return `name` cut in its middle to at most `width` columns. Its end stays, because that distinguishes files."""
    if len(name) <= width:
        return name
    if width < 2:
        return "…"[:width]
    head = (width - 1) // 3
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def explain_no_directory(path: str) -> str:
    """Return the error message for a path that is not a directory."""
    return "is not a directory" if os.path.lexists(path) else "no such directory"


def parse_switch(text: str) -> bool | None:
    """Return the value of a boolean environment variable; None if it is not a boolean."""
    try:
        return parse_bool(text.strip())
    except ValueError:
        return None
