# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every parser of what a stranger can write, as a check of any bytes: a value within its bounds, or its error.

A check returns if its parser kept its word and raises AssertionError or what the parser should not have
raised. CHECKS has them by name, and SEEDS has inputs that get far; tests/unit/test_parsers.py gives them inputs.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from unittest.mock import Mock, patch

from journalkeeper.btrfs import extent_count, fiemap
from journalkeeper.bus import contract
from journalkeeper.bus import names as bus_names
from journalkeeper.bus.connection import Connection, measure_message
from journalkeeper.config import files, validation
from journalkeeper.journald import conf, journal_file, layout
from journalkeeper.model import Extents, Kind
from journalkeeper.model.errors import ConfigError, UsageError
from journalkeeper.model.units import U64_MAX, escape
from tests.bus import raw_call
from tests.journal_files import header as make_header
from tests.journal_files import journal

NAME_LIMIT: Final = 255
S63_MAX: Final = (1 << 63) - 1

T = TypeVar("T")


class Bytes:
    """An input from which values are taken one after the other; zeros follow its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Whether there is more."""
        return self._at < len(self._data)

    def take(self, length: int) -> bytes:
        """The next bytes, fewer at the end."""
        part = self._data[self._at : self._at + length]
        self._at += length
        return part

    def number(self, width: int = 1) -> int:
        """The next so many bytes as a number."""
        return int.from_bytes(self.take(width), "little")

    def pick(self, options: Sequence[T]) -> T:
        """One of these."""
        return options[self.number() % len(options)]

    def text(self) -> str:
        """A short text as a bus carries it."""
        return self.take(self.number()).decode(errors="replace")

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data))


# journald's files


def check_header(data: bytes) -> None:
    """The size of the file, then its first bytes."""
    found = Bytes(data)
    size_bytes = found.number(8) & S63_MAX
    with suppress(journal_file.HeaderError):
        read = journal_file.parse_header(found.rest(), size_bytes)
        assert 0 <= read.entries <= size_bytes // 16
        assert min(read.head_time_us, read.tail_time_us) >= 0
        assert max(read.head_time_us, read.tail_time_us) <= 1 << 55


def check_name(data: bytes) -> None:
    """One name of a directory."""
    name = os.fsdecode(data[:NAME_LIMIT])
    found = layout.classify(name)
    assert (found is not None) == name.endswith((".journal", ".journal~"))
    assert found is None or not layout.is_leftover(name)
    assert escape(name).isprintable()
    if found is not None:
        assert found.kind in Kind
        assert found.owner in {"system", "remote"} or found.owner.startswith("user:")
        assert 0 <= found.realtime_us <= U64_MAX


def check_entries(data: bytes) -> None:
    """How many entries are asked for and behind which, then a file whose entry arrays and objects are followed."""
    found = Bytes(data)
    most, after_seqnum = 1 + found.number() % 128, found.number(2)
    fd = os.memfd_create("journal")
    try:
        os.write(fd, found.rest())
        with suppress(ValueError):
            newest = journal_file.read_newest(fd, after_seqnum, most)
            assert len(newest) <= most
            assert all(after_seqnum < entry.seqnum <= U64_MAX and 0 <= entry.realtime_us <= U64_MAX for entry in newest)
            assert all(entry.source_us is None or 0 <= entry.source_us < 10**20 for entry in newest)
    finally:
        os.close(fd)


# configuration


def check_configuration(data: bytes) -> None:
    """The size of the volume, then a file of ours or of journald's."""
    found = Bytes(data)
    volume_bytes = found.number(8)
    lines = files.parse(found.rest(), "/etc/x.conf")
    settings = conf.fill_defaults(conf.from_assignments(lines), volume_bytes)
    assert settings.storage in conf.STORAGES
    assert all(value is None or value >= 0 for value in settings[1:] if not isinstance(value, str))
    problems: tuple[tuple[str, int, str, str], ...] = ()
    try:
        validation.describe(validation.make_config(lines))
    except ConfigError as error:
        problems = error.problems or (("", 0, "", ""),)
    assert all(file == "/etc/x.conf" and number > 0 and what for file, number, _, what in problems)


# the kernel's answers


class _Kernel:
    """Answers FIEMAP with the rows of an input, at most `fiemap.BATCH_ROWS` a call, and then the last ones for ever."""

    MOST_CALLS: Final = 100

    def __init__(self, found: Bytes) -> None:
        self._found = found
        self._calls = 0
        self._said = b""
        self._mapped = 0

    def ioctl(self, _fd: int, _request: int, buffer: bytearray | Any) -> None:
        """Instead of the kernel's."""
        self._calls += 1
        assert self._calls < self.MOST_CALLS, "the map is asked for without an end"
        if self._found:
            self._answer()
        view = memoryview(buffer).cast("B")
        struct.pack_into("=I", view, 20, self._mapped)  # fm_mapped_extents
        part = self._said[: len(view) - fiemap.HEADER.size]
        view[fiemap.HEADER.size : fiemap.HEADER.size + len(part)] = part

    def _answer(self) -> None:
        """Some rows, perhaps one row again and again with a step, and how many there are said to be."""
        rows = [self._row() for _ in range(1 + self._found.number() % 8)]
        if self._found.number() % 4 == 0:
            (logical, physical, length, flags), step = rows[-1], self._found.number(4)
            more = range(1, fiemap.BATCH_ROWS + 1 - len(rows))
            rows += [((logical + n * step) & U64_MAX, (physical + n * step) & U64_MAX, length, flags) for n in more]
        self._said = b"".join(struct.pack("<QQQQQIIII", *row[:3], 0, 0, row[3], 0, 0, 0) for row in rows)
        lie = self._found.number()
        self._mapped = self._found.number(4) if lie == 255 else len(rows)

    def _row(self) -> tuple[int, int, int, int]:
        wide = 8 if self._found.number() % 8 == 0 else 4
        logical, physical, length = (self._found.number(wide) for _ in range(3))
        return logical, physical, length, self._found.number(2)


def check_fiemap(data: bytes) -> None:
    """The size of a file, then answers of the kernel's to each way in which they are asked for."""
    found = Bytes(data)
    size_bytes, kind = found.number(6), found.number() % 6
    fd = os.memfd_create("map")
    try:
        os.truncate(fd, size_bytes)
        with patch.object(fiemap, "ioctl", _Kernel(found).ioctl), suppress(OSError):
            match kind:
                case 0 | 1:
                    _check_survey(extent_count.survey(fd, sync=False, per_mib=bool(kind)), size_bytes)
                case 2:
                    assert extent_count.count(fd, sync=True) >= 0
                case 3:
                    runs = fiemap.find_same_places(
                        fiemap.iterate_extents(fd, sync=False), fiemap.iterate_extents(fd, sync=False)
                    )
                    assert all(offset >= 0 and length > 0 for offset, length in runs)
                case 4:
                    assert all(length > 0 for _, length in fiemap.find_unwritten(fd, sync=False))
                case _:
                    fiemap.is_shared_at(fd, found.number(8))
                    fiemap.locate_byte(fd, found.number(8))
    finally:
        os.close(fd)


def _check_survey(seen: Extents, size_bytes: int) -> None:
    assert min(seen[:5]) >= 0
    assert len(seen.per_mib) <= -(-size_bytes // (1 << 20))
    assert sum(seen.per_mib) <= seen.total


# the bus


def check_options(data: bytes) -> None:
    """The arguments of a caller, of the types that the bus lets through."""
    found = Bytes(data)
    flags, compress = found.number(), found.pick(("", "zstd", found.text()))
    tops = ("/var/log/journal/", "/srv/j/", "/", "")
    paths = [found.pick(tops) + found.text() for _ in range(found.number() if found else 0)]
    with suppress(UsageError):
        asked = contract.make_request(paths, compress, flags, ("/var/log/journal", "/srv/j"))
        assert sum(map(len, asked.paths)) <= contract.MOST_CHARACTERS
        assert all(one.startswith(("/var/log/journal/", "/srv/j/")) for one in asked.paths)
        assert not any("/../" in f"{one}/" or "/./" in f"{one}/" for one in asked.paths)
        assert asked.takes_active or asked.takes_archived
        assert contract.list_arguments(asked)[1:] == (compress, flags)


SMALL_MOST: Final = 512
"""Bytes of a message that is read, because no message of an input has as many as the service reads."""


def check_messages(data: bytes) -> None:
    """How the bytes are cut into parts, then messages as they come: the cuts change nothing, and nothing is long."""
    found = Bytes(data)
    step = 1 + found.number(2)
    messages = found.rest()
    once = asyncio.run(_receive([messages]))
    assert once == asyncio.run(_receive([messages[at : at + step] for at in range(0, len(messages), step)]))
    assert all(len(one) == measure_message(one)[1] <= SMALL_MOST for one in once)


async def _receive(parts: list[bytes]) -> list[bytes]:
    """Return the messages that a connection reads."""
    reader = asyncio.StreamReader()
    connection = Connection(reader, Mock(), SMALL_MOST)
    received: list[bytes] = []
    parse = connection._hand_over

    def receive(data: bytes) -> None:
        received.append(data)
        parse(data)

    with patch.object(connection, "_hand_over", receive):
        for part in parts:
            reader.feed_data(part)
            await asyncio.sleep(0)
        reader.feed_eof()
        await connection.ended
    return received


CHECKS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "header": check_header,
    "name": check_name,
    "entries": check_entries,
    "configuration": check_configuration,
    "fiemap": check_fiemap,
    "options": check_options,
    "messages": check_messages,
}

_HEADER = make_header(
    state=1, file_id=b"f" * 16, machine_id=b"m" * 16, seqnum_id=b"s" * 16, header_size=256, arena=8388352,
    data_table=5632, data_table_size=3634448, field_table=272, field_table_size=5328, tail_object=4_000_000,
    objects=900, entries=200, tail_seqnum=1200, head_seqnum=1001, entry_array=3640080, head_time=1 << 50,
    tail_time=1 << 50,
)  # fmt: skip
_CONFIGURATION = b"""[Watch]
SettleSec=10min
Directories=/var/log/journal
[Defrag]
Compress=zstd:3
MinExtents=100
[Budget]
BytesPerDay=2G
[Journal]
SystemMaxUse=1.5G
SyncIntervalSec=5min 20s
SystemMaxFiles=0x20
# a comment \\
 and more
"""
_ROWS = bytes([1, 0, 0, 0, 0, 1]) + struct.pack("<IIIH", 4096, 8192, 4096, 8)
_ENTRIES = [(number, (1 << 50) + number, b"%d" % (1 << 50)) for number in range(1, 7)]
_PLAN = raw_call(bus_names.BUS_NAME, bus_names.MANAGER_PATH, bus_names.MANAGER, "Plan", "asst", [], "", 0)
_LONG_BODY = raw_call(bus_names.BUS_NAME, bus_names.MANAGER_PATH, bus_names.MANAGER, "Plan", "s", "x" * 600)
_LONG_PATH = raw_call("a.b", "/" + "x" * 1100, "a.b", "C", "s", "hello")

SEEDS: Final[Mapping[str, Sequence[bytes]]] = {
    "header": [(8388608).to_bytes(8, "little") + _HEADER],
    "name": [
        b"system@" + b"0" * 32 + b"-" + b"0" * 16 + b"-" + b"1" * 16 + b".journal",
        b"user-1000@" + b"0" * 16 + b"-" + b"f" * 16 + b".journal~",
        b"remote-x.journal",
        b".journalkeeper-1.tmp",
    ],
    "entries": [b"\x20\0\0" + journal(_ENTRIES, compact=compact) for compact in (False, True)],
    "configuration": [(1 << 34).to_bytes(8, "little") + _CONFIGURATION],
    "fiemap": [(1 << 20).to_bytes(6, "little") + bytes([kind]) + _ROWS for kind in range(6)],
    "options": [b"\0" + b"\1" + bytes([option]) + b"\1\1\1\3abc" * 2 for option in range(9)],
    "messages": [
        *(b"\7\0" + _PLAN, b"\xff\0" + _PLAN * 3, b"\1\0" + b"B" + _PLAN[1:]),
        *(b"\x40\0" + _LONG_BODY + _PLAN, b"\xff\1" + _LONG_PATH + _LONG_BODY),
    ],
}
