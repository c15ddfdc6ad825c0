# SPDX-License-Identifier: LGPL-2.1-or-later
"""Journal files made by hand: headers of any content, files of no entry, and files of a few.

An entry has two fields; entry arrays have four entries each and then more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from journalkeeper.journald.entries import ARRAY, COMPACT, COMPACT_DATA_BYTES, DATA_BYTES, ENTRY_BYTES, OBJECT, SOURCE

HEADER_BYTES: Final = 272
LEAST_HEADER_BYTES: Final = 208
FILE_BYTES: Final = 8 << 20
"""journald's files are whole steps of 8 MiB."""

FIELDS: Final = {
    "state": 16, "file_id": 24, "machine_id": 40, "tail_boot_id": 56, "seqnum_id": 72, "header_size": 88, "arena": 96,
    "data_table": 104, "data_table_size": 112, "field_table": 120, "field_table_size": 128, "tail_object": 136,
    "objects": 144, "entries": 152, "tail_seqnum": 160, "head_seqnum": 168, "entry_array": 176, "head_time": 184,
    "tail_time": 192, "tail_monotonic": 200,
}  # fmt: skip
"""Where each is in a header (struct Header of journal-def.h)."""

FIRST_ARRAY: Final = 4
MESSAGE: Final = b"MESSAGE=hello"


def header(length: int = LEAST_HEADER_BYTES, **fields: int | bytes) -> bytes:
    """The first bytes of a file: these of FIELDS, and zeros."""
    data = bytearray(length)
    data[:8] = b"LPKSHHRH"
    for name, value in fields.items():
        given = value if isinstance(value, bytes) else value.to_bytes(1 if name == "state" else 8, "little")
        data[FIELDS[name] : FIELDS[name] + len(given)] = given
    return bytes(data)


def without_entries(state: int = 2, size_bytes: int = FILE_BYTES) -> bytes:
    """The first block of such a file, archived by default, which every check of the header passes."""
    return header(4096, state=state, header_size=LEAST_HEADER_BYTES, arena=size_bytes - LEAST_HEADER_BYTES)


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
    arena = len(file.data) - HEADER_BYTES
    file.data[:HEADER_BYTES] = header(
        HEADER_BYTES, header_size=HEADER_BYTES, arena=arena, entries=len(places), entry_array=first
    )
    struct.pack_into("<I", file.data, 12, COMPACT if compact else 0)
    return bytes(file.data)
