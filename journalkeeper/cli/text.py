# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names and numbers as people read them.

The one rule: nothing that came from the disk reaches a terminal unescaped.
"""

from __future__ import annotations

from journalkeeper.values import parse_bool


def shown(name: str) -> str:
    r"""`name` with all that could steer a terminal or break a line escaped as in C.

    Control characters, line separators, text direction overrides and the bytes that are not
    UTF-8 (surrogates, see os.fsdecode) become `\xNN` or `\uNNNN`; a backslash is doubled, so
    that no two names look alike.

    >>> shown("a\x1b[31m.journal")
    'a\\x1b[31m.journal'
    """
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(_shown_character(character) for character in name)


def _shown_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # os.fsdecode's stand-in for the byte code - 0xDC00
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


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
