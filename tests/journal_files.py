# SPDX-License-Identifier: LGPL-2.1-or-later
"""Journal files made by hand: their names, headers and entries, and how they lie on the disk."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from journalkeeper.btrfs import fiemap
from journalkeeper.btrfs.kernel import _declare_function
from journalkeeper.journald.journal_file import (
    ARRAY,
    COMPACT,
    COMPACT_DATA_BYTES,
    DATA_BYTES,
    ENTRY_BYTES,
    OBJECT,
    SOURCE,
)
from journalkeeper.probe.scratch_volume import run

PAGE: Final = 4096
FALLOC_FL_KEEP_SIZE: Final = 1
FALLOC_FL_PUNCH_HOLE: Final = 2
fallocate = _declare_function("fallocate64", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
MAGIC: Final = b"LPKSHHRH"
SEQNUM_ID: Final = "0123456789abcdef" * 2
OLD_NS: Final = 1_600_000_000_123_456_789
OFFLINE, ONLINE, ARCHIVED = range(3)

OFFSETS: Final = {
    "incompatible": 12, "state": 16, "file_id": 24, "machine_id": 40, "tail_boot_id": 56, "seqnum_id": 72,
    "header_size": 88, "arena": 96, "data_table": 104, "data_table_size": 112, "field_table": 120,
    "field_table_size": 128, "tail_object": 136, "objects": 144, "entries": 152, "tail_seqnum": 160,
    "head_seqnum": 168, "entry_array": 176, "head_time": 184, "tail_time": 192, "tail_monotonic": 200,
    "data_objects": 208,
}  # fmt: skip
"""Where the fields of a header are. Source: systemd, src/libsystemd/sd-journal/journal-def.h."""

WIDTHS: Final = {"incompatible": 4, "state": 1}
"""The widths of the numbers that do not have eight bytes."""

ENTRIES_HEADER_BYTES: Final = 272
FIRST_ARRAY: Final = 4
MESSAGE: Final = b"MESSAGE=hello"
EMPTY_HEADER_BYTES: Final = 208
EMPTY_BYTES: Final = 8 << 20


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Make a hole."""
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length)


def archive_name(number: int = 1, stem: str = "system") -> str:
    """Return the name that journald gives an archive."""
    return f"{stem}@{SEQNUM_ID}-{number:016x}-{number:016x}.journal"


def unclean_name(number: int = 1) -> str:
    """Return the name that journald gives a file that was not closed."""
    return f"system@{number:016x}-{number:016x}.journal~"


def header(size: int = ENTRIES_HEADER_BYTES, **fields: int | bytes) -> bytes:
    """Return a header of `size` bytes. The fields that are not given are 0."""
    data = bytearray(MAGIC.ljust(size, b"\0"))
    for name, value in fields.items():
        given = value if isinstance(value, bytes) else value.to_bytes(WIDTHS.get(name, 8), "little")
        data[OFFSETS[name] : OFFSETS[name] + len(given)] = given
    return bytes(data)


def count_entries(path: Path) -> int:
    """Return the number of entries of a journal file; 0 if it does not exist yet."""
    try:
        with path.open("rb") as file:
            return int.from_bytes(os.pread(file.fileno(), 8, OFFSETS["entries"]), "little")
    except FileNotFoundError:
        return 0


# files without entries


def empty(state: int = ARCHIVED, size_bytes: int = EMPTY_BYTES) -> bytes:
    """Return the first page of a journal file of `size_bytes` without an entry."""
    arena = size_bytes - EMPTY_HEADER_BYTES
    return header(PAGE, state=state, header_size=EMPTY_HEADER_BYTES, arena=arena)


def put_empty(path: Path, state: int = ARCHIVED) -> None:
    """Write a journal file without an entry to `path`: one page, and a hole."""
    with path.open("wb") as file:
        file.write(empty(state))
        file.truncate(EMPTY_BYTES)


# files of a few entries


class _File:
    """The bytes of a file that is being made; each object is at a multiple of eight bytes."""

    def __init__(self, *, compact: bool) -> None:
        self.data = bytearray(ENTRIES_HEADER_BYTES)
        self.compact = compact

    def put(self, content: bytes) -> int:
        """Append an object, and return its offset."""
        self.data += bytes(-len(self.data) % 8)
        at = len(self.data)
        self.data += content
        return at

    def field(self, payload: bytes) -> int:
        """Append a data object, and return its offset."""
        before = COMPACT_DATA_BYTES if self.compact else DATA_BYTES
        head = OBJECT.pack(1, 0, before + len(payload))
        return self.put(head.ljust(before, b"\0") + payload)

    def entry(self, seqnum: int, realtime_us: int, fields: Sequence[int]) -> int:
        """Append an entry object, and return its offset. The machine was booted at 0 of CLOCK_REALTIME."""
        items = b"".join(struct.pack("<I", at) if self.compact else struct.pack("<QQ", at, 0) for at in fields)
        head = OBJECT.pack(3, 0, ENTRY_BYTES + len(items)) + struct.pack("<QQQ", seqnum, realtime_us, realtime_us)
        return self.put(head.ljust(ENTRY_BYTES, b"\0") + items)


def journal(entries: Sequence[tuple[int, int, bytes | None]], *, compact: bool = False) -> bytes:
    """Return a file with an entry for each (seqnum, realtime, text of the time of sending).

    Each entry has two fields, and the arrays hold four entries and then more.
    """
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
    file.data[:ENTRIES_HEADER_BYTES] = header(
        incompatible=COMPACT if compact else 0,
        header_size=ENTRIES_HEADER_BYTES,
        arena=len(file.data) - ENTRIES_HEADER_BYTES,
        entries=len(places),
        entry_array=first,
    )
    return bytes(file.data)


# files of any content, as they lie on the disk


def write_out(fd: int) -> None:
    """Sync a file, and wait until btrfs has placed its extents on the disk, which can be later than the fsync's end."""
    os.fsync(fd)
    fiemap.write_back(fd)


def put(directory: Path, content: bytes, name: str | None = None, *, nocow: bool = False, torn: bool = True) -> Path:
    """Write a journal file with this content, and return its path. If `torn`, every page is an extent of its own."""
    path = directory / (archive_name() if name is None else name)
    path.touch()
    run("chattr", "+C" if nocow else "-C", path)
    with path.open("r+b", buffering=0) as file:
        file.write(content)
        write_out(file.fileno())
    if torn and not nocow:
        scatter(path)
    os.utime(path, ns=(OLD_NS, OLD_NS + 1))
    return path


def scatter(path: Path, piece_bytes: int = PAGE, *, every: int = 2, end_bytes: int | None = None) -> None:
    """Write each `every`-th piece of a file again, up to `end_bytes`, so that it becomes an extent of its own."""
    with path.open("r+b", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size if end_bytes is None else end_bytes
        for offset in range(0, end, every * piece_bytes):
            os.pwrite(file.fileno(), os.pread(file.fileno(), piece_bytes, offset), offset)
        write_out(file.fileno())
