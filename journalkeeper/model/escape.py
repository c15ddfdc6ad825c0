# SPDX-License-Identifier: LGPL-2.1-or-later
"""The function that escapes every name and sentence before the log, stderr, a terminal or the service manager."""

from __future__ import annotations


def escape(name: str) -> str:
    r"""Return `name` with each character escaped that is not printable, so that it cannot control a terminal.

    These are all characters for which str.isprintable() is False: control characters, line separators, text
    direction overrides, every space but " ", and the bytes that are not UTF-8 (surrogates, see os.fsdecode). They
    become `\xNN`, `\uNNNN` or `\UNNNNNNNN`. A backslash is doubled, so that no two names look alike.

    >>> escape("a\x1b[31m.journal")
    'a\\x1b[31m.journal'
    """
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(_escape_character(character) for character in name)


def _escape_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80 or 0xDC80 <= code <= 0xDCFF:  # os.fsdecode's stand-in for the byte code - 0xDC00
        return f"\\x{code & 0xFF:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
