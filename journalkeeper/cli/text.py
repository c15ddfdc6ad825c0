# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names and numbers as people read them.

The one rule: nothing that came from the disk reaches a terminal unescaped.
"""

from __future__ import annotations

from journalkeeper.model.escape import shown
from journalkeeper.model.units import parse_bool

__all__ = ["counted", "elided", "shown", "switched"]


def elided(name: str, width: int) -> str:
    """`name` cut in its middle to at most `width` columns, its end being what tells files apart."""
    if len(name) <= width:
        return name
    if width < 2:
        return "…"[:width]
    head = (width - 1) // 3
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def counted(number: int, singular: str) -> str:
    """`number` with its noun: "1 file", "9,447 extents"."""
    return f"{number:,} {singular}" if number == 1 else f"{number:,} {singular}s"


def switched(text: str) -> bool | None:
    """What a switch in the environment says; None if it is not a boolean."""
    try:
        return parse_bool(text.strip())
    except ValueError:
        return None
