# SPDX-License-Identifier: LGPL-2.1-or-later
"""The newest entries of a journal file: their numbers, and when they were sent and taken.

All is read by pread(2). libsystemd maps the file instead, and where the disk gives an error for a
page of a mapping, or somebody cuts the file short, the kernel ends the whole process by SIGBUS.
Source: systemd 252 to 257, src/libsystemd/sd-journal/journal-def.h; the entry arrays are a chain
in which each one lies behind the one before it (journal-file.c, link_entry_into_array()).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from journalkeeper.journald.header import MAGIC
from journalkeeper.model.units import U64_MAX

HEADER: Final = struct.Struct("<8sII136xQ16xQ")
"""Signature, compatible and incompatible flags, n_entries, the offset of the first entry array."""

COMPACT: Final = 1 << 4
OBJECT: Final = struct.Struct("<BB6xQ")
"""Of each object: its type, its flags (of data: how it is compressed), its size with this."""

DATA, ENTRY, ENTRY_ARRAY = 1, 3, 6
ARRAY: Final = struct.Struct("<BB6xQQ")
"""Of an entry array: its object, the offset of the next one; the items follow."""

ENTRY_BYTES: Final = 64
TIMES: Final = struct.Struct("<QQ")
"""Of an entry, behind its object: seqnum, realtime. Its items begin at ENTRY_BYTES."""

ITEM, COMPACT_ITEM = struct.Struct("<Q8x"), struct.Struct("<I")
"""Of an entry: where the object of one field is."""

DATA_BYTES: Final = 64
COMPACT_DATA_BYTES: Final = 72
SOURCE: Final = b"_SOURCE_REALTIME_TIMESTAMP="
SOURCE_BYTES: Final = len(SOURCE) + len(str(U64_MAX))
MOST_ARRAYS: Final = 64
"""Each is twice as long as all before it together."""

MOST_ENTRY_BYTES: Final = 1 << 15
"""More than an entry of 1,000 fields has; what is beyond is not read."""


class Entry(NamedTuple):
    """One entry: its number, when journald took it, and when it was sent, None if nobody says."""

    seqnum: int
    realtime_us: int
    source_us: int | None


def newest(fd: int, behind: int, most: int) -> list[Entry]:
    """At most so many of the entries with a number above `behind`, the newest first.

    Raises: ValueError: what is there is no journal, or cannot be; OSError as pread(2).
    """
    magic, _, flags, count, first = HEADER.unpack(_read(fd, HEADER.size, 0))
    if magic != MAGIC:
        raise ValueError("no journal file: wrong magic")
    compact = bool(flags & COMPACT)
    times: dict[int, int | None] = {}
    found: list[Entry] = []
    for offset in _newest_offsets(fd, first, count, most, compact=compact):
        entry = _entry(fd, offset, times, compact=compact)
        if entry.seqnum <= behind:
            break
        found.append(entry)
    return found


def _newest_offsets(fd: int, first: int, count: int, most: int, *, compact: bool) -> Iterator[int]:
    """Where the newest entries are, the newest first."""
    width = 4 if compact else 8
    arrays: list[tuple[int, int]] = []
    at, left = first, count
    while at and left > 0 and len(arrays) < MOST_ARRAYS:
        kind, _, size, following = ARRAY.unpack(_read(fd, ARRAY.size, at))
        if kind != ENTRY_ARRAY or size < ARRAY.size or (following and following <= at):
            raise ValueError(f"no array of entries at {at}")
        used = min(left, (size - ARRAY.size) // width)
        arrays.append((at + ARRAY.size, used))
        at, left = following, left - used
    for items, used in reversed(arrays):
        taken = min(used, most)
        data = _read(fd, taken * width, items + (used - taken) * width)
        yield from reversed(struct.unpack(f"<{taken}{'I' if compact else 'Q'}", data))
        most -= taken


def _entry(fd: int, offset: int, times: dict[int, int | None], *, compact: bool) -> Entry:
    """The entry at `offset`. `times` remembers what the data objects were: entries share most of theirs."""
    head = _read(fd, ENTRY_BYTES, offset)
    kind, _, size = OBJECT.unpack_from(head)
    if kind != ENTRY or size < ENTRY_BYTES:
        raise ValueError(f"no entry at {offset}")
    seqnum, realtime_us = TIMES.unpack_from(head, OBJECT.size)
    item = COMPACT_ITEM if compact else ITEM
    length = (min(size, MOST_ENTRY_BYTES) - ENTRY_BYTES) // item.size * item.size
    for (data,) in item.iter_unpack(_read(fd, length, offset + ENTRY_BYTES)):
        if data not in times:
            times[data] = _source_us(fd, data, compact=compact)
        if (source_us := times[data]) is not None:
            return Entry(seqnum, realtime_us, source_us)
    return Entry(seqnum, realtime_us, None)


def _source_us(fd: int, offset: int, *, compact: bool) -> int | None:
    """The time in the data object at `offset`, None if it is another field or no number."""
    before = COMPACT_DATA_BYTES if compact else DATA_BYTES
    data = _read(fd, before + SOURCE_BYTES, offset, least=OBJECT.size)
    kind, compressed, size = OBJECT.unpack_from(data)
    payload = data[before:size]
    digits = payload.removeprefix(SOURCE)
    whole = kind == DATA and not compressed and size <= len(data) and payload.startswith(SOURCE)
    return int(digits) if whole and digits.isdigit() else None


def _read(fd: int, length: int, offset: int, *, least: int | None = None) -> bytes:
    """So many bytes at `offset`. Raises: ValueError if there are fewer (than `least`, if given); OSError."""
    if offset >= 1 << 63:
        raise ValueError(f"an offset of {offset}")
    data = os.pread(fd, length, offset)
    if len(data) < (length if least is None else least):
        raise ValueError(f"{len(data)} bytes at {offset} and not {length}")
    return data
