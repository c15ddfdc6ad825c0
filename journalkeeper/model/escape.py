# SPDX-License-Identifier: LGPL-2.1-or-later
"""The function that escapes every name and sentence before the log, stderr, a terminal or the service manager."""

from __future__ import annotations


def escape(name: str) -> str:
    r"""Return `name` with each character escaped that is not printable, so that it cannot control a terminal.

    These are all characters for which str.isprintable() is False: control characters, line separators, text
    direction overrides, every space but " ", and the bytes that are not UTF-8 (surrogates, see os.fsdecode). They
    become Python's escapes, such as `\n`, `\x1b` or `\u202e`. A backslash is doubled, so that no two names look alike.

    >>> escape("a\x1b[31m.journal")
    'a\\x1b[31m.journal'
    """
    return "".join(one if one.isprintable() and one != "\\" else repr(one)[1:-1] for one in name)
