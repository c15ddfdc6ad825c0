# SPDX-License-Identifier: LGPL-2.1-or-later
"""The newest entries of a journal file, with their numbers and times.

All reads use pread(2). libsystemd maps the file instead; if the disk returns an error for a mapped page, or a process
truncates the file, the kernel kills the reader with SIGBUS.

Source: systemd 252 to 257, src/libsystemd/sd-journal/journal-def.h; the entry arrays are a chain in which each array
lies behind the one before it (journal-file.c, link_entry_into_array()).
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
"""The header of each object: its type, its flags (for data: the compression), and its size including this header."""

DATA, ENTRY, ENTRY_ARRAY = 1, 3, 6
ARRAY: Final = struct.Struct("<BB6xQQ")
"""The beginning of an entry array: its object header and the offset of the next array. The items follow."""

ENTRY_BYTES: Final = 64
TIMES: Final = struct.Struct("<QQQ16s")
"""The seqnum, both times and the boot of an entry, after its object header. Its items begin at ENTRY_BYTES."""

ITEM, COMPACT_ITEM = struct.Struct("<Q8x"), struct.Struct("<I")
"""An item of an entry: the offset of the object that holds one field."""

DATA_BYTES: Final = 64
COMPACT_DATA_BYTES: Final = 72
SOURCE: Final = b"_SOURCE_REALTIME_TIMESTAMP="
SOURCE_BYTES: Final = len(SOURCE) + len(str(U64_MAX))
MOST_ARRAYS: Final = 64
"""The longest chain of arrays that is followed. Each array is twice as long as all arrays before it together."""

MOST_ENTRY_BYTES: Final = 1 << 15
"""The largest part of an entry that is read, enough for 1,000 fields."""

STEP_US, SLEW = 10_000, 0.001
"""The clock was set if it moved by more than STEP_US, and by more than adjtime(3) would move it in that time."""


class Entry(NamedTuple):
    """One entry of a journal: its number, and when journald received it by both clocks.

    `source_us` is when it was sent, or None if the entry does not contain this time.
    """

    seqnum: int
    realtime_us: int
    source_us: int | None
    monotonic_us: int = 0
    boot_id: str = ""


class WallClock:
    """The wall clock of a machine, as the entries show it in the order in which journald received them.

    In one boot, all entries have the same difference between the two clocks until the wall clock is set. `steps` is
    the number of times that it was set, `unclear` the number of waits that this may explain.
    """

    def __init__(self) -> None:
        self.steps = self.unclear = 0
        self._boots: dict[str, tuple[int, int, int]] = {}
        """The difference and the monotonic time at the last entry of a boot, and since when the clock was not set."""

    def take_entry(self, boot_id: str, taken_us: int, monotonic_us: int, wait_us: int = 0) -> bool:
        """Store the next entry's real and monotonic time, and return whether its message can have waited `wait_us`.

        The two times of a message that was sent before the clock was set, or before the first entry, are of two clocks.
        """
        offset_us, since_us = taken_us - monotonic_us, taken_us
        if (before := self._boots.get(boot_id)) is not None:
            before_us, then_us, since_us = before
            if abs(offset_us - before_us) > STEP_US + SLEW * abs(monotonic_us - then_us):
                self.steps, since_us = self.steps + 1, taken_us
        self._boots[boot_id] = offset_us, monotonic_us, since_us
        is_clear = 0 <= wait_us <= min(monotonic_us, max(STEP_US, taken_us - since_us))
        self.unclear += not is_clear
        return is_clear


def read_newest(fd: int, after_seqnum: int, most: int) -> list[Entry]:
    """Return at most `most` entries with a sequence number above `after_seqnum`, the newest first; [] without any.

    Raises: ValueError: the file is not a valid journal; OSError as pread(2).
    """
    magic, _, flags, count, first = HEADER.unpack(_read_bytes(fd, HEADER.size, 0))
    if magic != MAGIC:
        raise ValueError("not a journal file: wrong magic number")
    compact = bool(flags & COMPACT)
    times: dict[int, int | None] = {}
    found: list[Entry] = []
    for offset in _find_newest_offsets(fd, first, count, most, compact=compact):
        entry = _read_entry(fd, offset, times, compact=compact)
        if entry.seqnum <= after_seqnum:
            break
        found.append(entry)
    return found


def _find_newest_offsets(fd: int, first: int, count: int, most: int, *, compact: bool) -> Iterator[int]:
    """Yield the offsets of the newest entries in the file, the newest first, at most `most`.

    The chain of entry arrays begins at `first` with the oldest of `count` entries. Only the first MOST_ARRAYS arrays
    are read: the newer entries of a longer chain are missing.

    Raises: ValueError if the chain is not valid; OSError as pread(2).
    """
    width = 4 if compact else 8
    arrays: list[tuple[int, int]] = []
    at, left = first, count
    while at and left > 0 and len(arrays) < MOST_ARRAYS:
        kind, _, size, following = ARRAY.unpack(_read_bytes(fd, ARRAY.size, at))
        if kind != ENTRY_ARRAY or size < ARRAY.size or (following and following <= at):
            raise ValueError(f"no entry array at {at}")
        used = min(left, (size - ARRAY.size) // width)
        arrays.append((at + ARRAY.size, used))
        at, left = following, left - used
    for items, used in reversed(arrays):
        taken = min(used, most)
        data = _read_bytes(fd, taken * width, items + (used - taken) * width)
        yield from reversed(struct.unpack(f"<{taken}{'I' if compact else 'Q'}", data))
        most -= taken


def _read_entry(fd: int, offset: int, times: dict[int, int | None], *, compact: bool) -> Entry:
    """Return the entry at `offset`. `times` caches the time in each data object, because entries share most of them.

    Raises: ValueError if no entry is at `offset`, or the file is too short; OSError as pread(2).
    """
    head = _read_bytes(fd, ENTRY_BYTES, offset)
    kind, _, size = OBJECT.unpack_from(head)
    if kind != ENTRY or size < ENTRY_BYTES:
        raise ValueError(f"no entry at {offset}")
    seqnum, realtime_us, monotonic_us, boot = TIMES.unpack_from(head, OBJECT.size)
    item = COMPACT_ITEM if compact else ITEM
    length = (min(size, MOST_ENTRY_BYTES) - ENTRY_BYTES) // item.size * item.size
    for (data,) in item.iter_unpack(_read_bytes(fd, length, offset + ENTRY_BYTES)):
        if data not in times:
            times[data] = _read_source_us(fd, data, compact=compact)
        if (source_us := times[data]) is not None:
            break
    else:
        source_us = None
    return Entry(seqnum, realtime_us, source_us, monotonic_us, boot.hex())


def _read_source_us(fd: int, offset: int, *, compact: bool) -> int | None:
    """Return the sender's time (_SOURCE_REALTIME_TIMESTAMP) from the data object at `offset`, None if it has none.

    Raises: ValueError if the file is too short; OSError as pread(2).
    """
    before = COMPACT_DATA_BYTES if compact else DATA_BYTES
    data = _read_bytes(fd, before + SOURCE_BYTES, offset, least=OBJECT.size)
    kind, compressed, size = OBJECT.unpack_from(data)
    payload = data[before:size]
    digits = payload.removeprefix(SOURCE)
    whole = kind == DATA and not compressed and size <= len(data) and payload.startswith(SOURCE)
    return int(digits) if whole and digits.isdigit() else None


def _read_bytes(fd: int, length: int, offset: int, *, least: int | None = None) -> bytes:
    """Return `length` bytes at `offset`. With `least`, the file may end after `least` of them.

    Raises: ValueError if the file ends earlier, or for an offset from 2^63; OSError.
    """
    if offset >= 1 << 63:
        raise ValueError(f"impossible offset {offset}")
    data = os.pread(fd, length, offset)
    if len(data) < (length if least is None else least):
        raise ValueError(f"only {len(data)} of {length} bytes at {offset}")
    return data
