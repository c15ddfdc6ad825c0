# SPDX-License-Identifier: LGPL-2.1-or-later
"""Journal files of a few entries, made by hand: two fields an entry, in arrays of four entries each and then more."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from journalkeeper.journald.entries import ARRAY, COMPACT, COMPACT_DATA_BYTES, DATA_BYTES, ENTRY_BYTES, OBJECT, SOURCE

HEADER_BYTES: Final = 272
FIRST_ARRAY: Final = 4
MESSAGE: Final = b"MESSAGE=hello"


class _File:
    """What is written so far; each object lies at a multiple of eight bytes."""

    def __init__(self, *, compact: bool) -> None:
        self.data = bytearray(HEADER_BYTES)
        self.compact = compact

    def put(self, content: bytes) -> int:
        """Where it lies now."""
        self.data += bytes(-len(self.data) % 8)
        at = len(self.data)
        self.data += content
        return at

    def field(self, payload: bytes) -> int:
        """A data object."""
        before = COMPACT_DATA_BYTES if self.compact else DATA_BYTES
        head = OBJECT.pack(1, 0, before + len(payload))
        return self.put(head.ljust(before, b"\0") + payload)

    def entry(self, seqnum: int, realtime_us: int, fields: Sequence[int]) -> int:
        """An entry object."""
        items = b"".join(struct.pack("<I", at) if self.compact else struct.pack("<QQ", at, 0) for at in fields)
        head = OBJECT.pack(3, 0, ENTRY_BYTES + len(items)) + struct.pack("<QQ", seqnum, realtime_us)
        return self.put(head.ljust(ENTRY_BYTES, b"\0") + items)


def journal(entries: Sequence[tuple[int, int, bytes | None]], *, compact: bool = False) -> bytes:
    """A file with an entry for each (seqnum, realtime, what the sender's time is said to be)."""
    file, width = _File(compact=compact), "I" if compact else "Q"
    message = file.field(MESSAGE)
    places = []
    for seqnum, realtime_us, source in entries:
        fields = [message, *([file.field(SOURCE + source)] if source is not None else [])]
        places.append(file.entry(seqnum, realtime_us, fields))
    first = before = at = 0
    length = FIRST_ARRAY
    while at < len(places):
        part = places[at : at + length]
        content = struct.pack(f"<{length}{width}", *part, *[0] * (length - len(part)))
        place = file.put(ARRAY.pack(6, 0, ARRAY.size + len(content), 0) + content)
        if before:
            struct.pack_into("<Q", file.data, before + OBJECT.size, place)
        first, before = first or place, place
        at, length = at + length, length * 2
    struct.pack_into("<8sII", file.data, 0, b"LPKSHHRH", 0, COMPACT if compact else 0)
    struct.pack_into("<QQ", file.data, 88, HEADER_BYTES, len(file.data) - HEADER_BYTES)
    struct.pack_into("<Q", file.data, 152, len(places))
    struct.pack_into("<Q", file.data, 176, first)
    return bytes(file.data)
