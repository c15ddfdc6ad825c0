# SPDX-License-Identifier: LGPL-2.1-or-later
"""The contents of a journal file: its header with the checks that it must pass, and its newest entries.

For any bytes, `parse_header` either returns a Header that journald itself would accept, or raises HeaderError. Every
scan calls it for every file. All reads use pread(2). libsystemd maps the file instead; if the disk returns an error for
a mapped page, or a process truncates the file, the kernel kills the reader with SIGBUS.

Source: systemd 252 to 257, src/libsystemd/sd-journal/journal-def.h and journal-file.c (journal_file_verify_header(),
journal_file_rotate_suggested()); the fields of the header are the same since 187. The entry arrays are a chain in which
each array lies behind the one before it (link_entry_into_array()).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct, unpack
from typing import Final, NamedTuple

from journalkeeper.model import Header, Reason, State
from journalkeeper.model.units import U64_MAX

HEADER_BYTES = 216
"""The part of the header that is read: up to n_data, which follows the part that every version has."""

_LEAST_HEADER_BYTES = 208
"""HEADER_SIZE_MIN of systemd."""

_FULLEST = 3 / 4
"""journald ends a file when its data hash table has more than this many objects for each item."""

_HASH_ITEM_BYTES = 16

MAGIC = b"LPKSHHRH"
_STATES = (State.OFFLINE, State.ONLINE, State.ARCHIVED)
_TIME_LIMIT_US = 1 << 55
"""systemd's TIMESTAMP_UPPER_BOUND, the year 3111."""

_LAYOUT = Struct("<8s4xIB71x9Q16x3Q8xQ")

_STATE = Struct("<12xIB")
STATE_OFFSET = _STATE.size - 1

_KNOWN_FLAGS = 0b11111
"""HEADER_INCOMPATIBLE_ANY of systemd: xz, lz4, keyed hash, zstd, compact. Bit 5 is for a segmented format."""

HEADER: Final = Struct("<8sII136xQ16xQ")
"""Signature, compatible and incompatible flags, n_entries, the offset of the first entry array."""

COMPACT: Final = 1 << 4
OBJECT: Final = Struct("<BB6xQ")
"""The header of each object: its type, its flags (for data: the compression), and its size including this header."""

DATA, ENTRY, ENTRY_ARRAY = 1, 3, 6
ARRAY: Final = Struct("<BB6xQQ")
"""The beginning of an entry array: its object header and the offset of the next array. The items follow."""

ENTRY_BYTES: Final = 64
TIMES: Final = Struct("<QQQ16s")
"""The seqnum, both times and the boot of an entry, after its object header. Its items begin at ENTRY_BYTES."""

ITEM, COMPACT_ITEM = Struct("<Q8x"), Struct("<I")
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


class HeaderError(Exception):
    """The file is not a journal file, or its header contradicts itself; the text names the field."""

    reason = Reason.BAD_HEADER


class UnknownFormatError(HeaderError):
    """The header has incompatible flags that are unknown here, so no other field of it has a known meaning."""

    reason = Reason.UNKNOWN_FORMAT


def parse_header(data: bytes, size_bytes: int) -> Header:
    """Return the header in `data`, the first HEADER_BYTES or more of a file of `size_bytes`.

    It has the state, the number of entries, the times of the first and the last, and an estimate of the size at which
    journald ends the file (0: unknown). If the file has grown since `size_bytes` was read, it looks truncated.
    `read_header` handles that.

    Raises: HeaderError: not valid, or contradicts the size; its subclass UnknownFormatError: unknown flags.
    """
    if len(data) < HEADER_BYTES:
        raise HeaderError(f"only {len(data)} bytes, a header has {HEADER_BYTES}")
    (
        magic, flags, state, header_size, arena_size, data_table, data_table_size, field_table, field_table_size,
        tail_object, objects, entries, entry_array, head_time, tail_time, data_objects,
    ) = _LAYOUT.unpack_from(data)  # fmt: skip
    if magic != MAGIC:
        raise HeaderError("not a journal file: wrong magic number")
    if unknown := flags & ~_KNOWN_FLAGS:
        raise UnknownFormatError(f"a format that this version does not know: incompatible flags {unknown:#x}")
    if state >= len(_STATES):
        raise HeaderError(f"unknown state {state}")
    end = header_size + arena_size
    if header_size < _LEAST_HEADER_BYTES or end > size_bytes:
        raise HeaderError(f"header of {header_size} and arena of {arena_size} bytes in a file of {size_bytes}")
    if entries > objects or objects > arena_size // OBJECT.size:
        raise HeaderError(f"{entries} entries, {objects} objects in {arena_size} bytes")
    last = end - OBJECT.size
    _check_offset("tail object", tail_object, header_size, last)
    _check_offset("first entry array", entry_array, header_size, tail_object)
    # A table's offset is that of its items, behind its object's header. In a new file the last object is a table.
    _check_offset("data hash table", data_table, header_size, tail_object + OBJECT.size)
    _check_offset("field hash table", field_table, header_size, tail_object + OBJECT.size)
    if data_table_size > end - data_table or field_table_size > end - field_table:
        raise HeaderError(f"hash tables of {data_table_size} and {field_table_size} bytes reach beyond {end}")
    if head_time > _TIME_LIMIT_US or tail_time > _TIME_LIMIT_US:
        raise HeaderError("time of an entry beyond the year 3111")
    fixed = header_size + data_table_size + field_table_size
    most_objects = data_table_size // _HASH_ITEM_BYTES * _FULLEST
    is_known = header_size >= HEADER_BYTES and 0 < data_objects <= objects
    full_bytes = fixed + round(max(0, tail_object - fixed) * most_objects / data_objects) if is_known else 0
    return Header(_STATES[state], entries, head_time, tail_time, full_bytes)


def _check_offset(what: str, offset: int, first: int, last: int) -> None:
    """Raise HeaderError unless `offset` is 0 (none), or a multiple of 8 from `first` to `last`."""
    if offset and (offset & 7 or not first <= offset <= last):
        raise HeaderError(f"{what} at {offset}, outside of {first} to {last} or not a multiple of 8")


def read_header(fd: int, size_bytes: int) -> Header:
    """Return the header of an open file that had `size_bytes` a moment ago.

    journald may grow, archive or truncate the file at the same time, so any HeaderError leads to a second read.

    Raises: HeaderError of the second read; OSError as pread(2), EIO among them.
    """
    try:
        return parse_header(os.pread(fd, HEADER_BYTES, 0), size_bytes)
    except HeaderError:
        return parse_header(os.pread(fd, HEADER_BYTES, 0), os.fstat(fd).st_size)


def read_state(fd: int) -> State:
    """Return the present state of the open file; UNKNOWN if it has no state byte, an unknown one, or unknown flags.

    pread(2) sees a change by journald at once. The magic number is not checked. Raises: OSError as pread(2).
    """
    data = os.pread(fd, _STATE.size, 0)
    flags, state = _STATE.unpack(data) if len(data) == _STATE.size else (0, len(_STATES))
    return State.UNKNOWN if flags & ~_KNOWN_FLAGS or state >= len(_STATES) else _STATES[state]


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

    In one boot, all entries have the same difference between the two clocks until the wall clock is set. `unclear` is
    the number of entries for which `take_entry` returned False.
    """

    def __init__(self) -> None:
        self.unclear = 0
        self._boots: dict[str, tuple[int, int, int]] = {}
        """The difference and the monotonic time at the last entry of a boot, and since when the clock was not set."""

    def take_entry(self, boot_id: str, taken_us: int, monotonic_us: int, wait_us: int = 0) -> bool:
        """Store the next entry's real and monotonic time, and return whether its message can have waited `wait_us`.

        False for a negative wait, one from before the boot, or one above STEP_US from before the clock was set or the
        first entry, because its two times are of two clocks.
        """
        offset_us, since_us = taken_us - monotonic_us, taken_us
        if (before := self._boots.get(boot_id)) is not None:
            before_us, then_us, since_us = before
            if abs(offset_us - before_us) > STEP_US + SLEW * abs(monotonic_us - then_us):
                since_us = taken_us
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
    """Yield the offsets of the newest entries in the file, the newest first: `most`, or fewer if the chain is shorter.

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
        yield from reversed(unpack(f"<{taken}{'I' if compact else 'Q'}", data))
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
