# SPDX-License-Identifier: LGPL-2.1-or-later
"""The header of a journal file, and the checks that it must pass.

For any bytes, `parse` either returns a Header that journald itself would accept, or raises HeaderError. Every scan
calls it for every file.

Source: systemd 255, src/libsystemd/sd-journal/journal-def.h (struct Header) and journal-file.c
(journal_file_verify_header(), journal_file_rotate_suggested()); the fields are the same since 187.
"""

from __future__ import annotations

import os
from struct import Struct

from journalkeeper.model import Header, Reason, State

HEADER_BYTES = 216
"""The part of the header that is read: up to n_data, which follows the part that every version has."""

_LEAST_HEADER_BYTES = 208
"""HEADER_SIZE_MIN of systemd."""

_FULLEST = 3 / 4
"""journald ends a file when its data hash table has more than this many objects for each item."""

_HASH_ITEM_BYTES = 16

MAGIC = b"LPKSHHRH"
_STATES = (State.OFFLINE, State.ONLINE, State.ARCHIVED)
_OBJECT_HEADER_BYTES = 16
_TIME_LIMIT_US = 1 << 55
"""systemd's TIMESTAMP_UPPER_BOUND, the year 3111."""

_LAYOUT = Struct("<8s4xIB71x9Q16x3Q8xQ")

_STATE = Struct("<12xIB")
STATE_OFFSET = _STATE.size - 1

_KNOWN_FLAGS = 0b11111
"""HEADER_INCOMPATIBLE_ANY of systemd: xz, lz4, keyed hash, zstd, compact. Bit 5 is for a segmented format."""


class HeaderError(Exception):
    """The file is not a journal file, or its header contradicts itself; the text names the field."""

    reason = Reason.BAD_HEADER


class UnknownFormatError(HeaderError):
    """The header has incompatible flags that are unknown here, so no other field of it has a known meaning."""

    reason = Reason.UNKNOWN_FORMAT


def parse(data: bytes, size_bytes: int) -> Header:
    """Return the header in `data`, the first HEADER_BYTES or more of a file of `size_bytes`.

    If the file has grown since `size_bytes` was read, it looks truncated. `read` handles that.

    Raises: UnknownFormatError; HeaderError if the header is not valid or contradicts the size.
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
    if entries > objects or objects > arena_size // _OBJECT_HEADER_BYTES:
        raise HeaderError(f"{entries} entries, {objects} objects in {arena_size} bytes")
    last = end - _OBJECT_HEADER_BYTES
    _check_offset("tail object", tail_object, header_size, last)
    _check_offset("first entry array", entry_array, header_size, tail_object)
    # A table's offset is that of its items, behind its object's header. In a new file the last object is a table.
    _check_offset("data hash table", data_table, header_size, tail_object + _OBJECT_HEADER_BYTES)
    _check_offset("field hash table", field_table, header_size, tail_object + _OBJECT_HEADER_BYTES)
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
    if offset and (offset & 7 or not first <= offset <= last):
        raise HeaderError(f"{what} at {offset}, outside of {first} to {last} or not a multiple of 8")


def read(fd: int, size_bytes: int) -> Header:
    """Return the header of an open file that had `size_bytes` a moment ago.

    journald may grow, archive or truncate the file at the same time, so a HeaderError leads to a second read.

    Raises: HeaderError of the second read; OSError as pread(2), EIO among them.
    """
    try:
        return parse(os.pread(fd, HEADER_BYTES, 0), size_bytes)
    except HeaderError:
        return parse(os.pread(fd, HEADER_BYTES, 0), os.fstat(fd).st_size)


def read_state(fd: int) -> State:
    """Return the present state of the open file; UNKNOWN if it has no state byte, an unknown one, or unknown flags.

    journald writes the byte through a shared mapping, and pread(2) sees the change at once. Raises: OSError as
    pread(2).
    """
    data = os.pread(fd, _STATE.size, 0)
    flags, state = _STATE.unpack(data) if len(data) == _STATE.size else (0, len(_STATES))
    return State.UNKNOWN if flags & ~_KNOWN_FLAGS or state >= len(_STATES) else _STATES[state]
