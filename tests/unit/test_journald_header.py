# SPDX-License-Identifier: LGPL-2.1-or-later
"""The header check: what journald itself would open is parsed, everything else a HeaderError."""

from __future__ import annotations

from pathlib import Path

import pytest

from journalkeeper.journald import journal_file
from journalkeeper.journald.journal_file import HEADER_BYTES, HeaderError, UnknownFormatError, parse_header
from journalkeeper.model import Header, State
from tests import journal_files

SIZE = 8 << 20
HEADER_SIZE, ARENA = 264, SIZE - 264
GOOD = {
    "header_size": HEADER_SIZE, "arena": ARENA, "data_table": 5632, "data_table_size": 3_700_000, "field_table": 280,
    "field_table_size": 5328, "tail_object": 4_000_000, "objects": 868, "entries": 83, "tail_seqnum": 84,
    "head_seqnum": 2, "entry_array": 3_999_000, "head_time": 1_700_000_000_000_000, "tail_time": 1_700_000_001_000_000,
}  # fmt: skip


def made(**changes: int) -> bytes:
    """Return a valid header with these `changes`."""
    return journal_files.header(HEADER_SIZE, **{**GOOD, **changes})


def test_every_field_is_where_the_format_has_it() -> None:
    assert parse_header(made(state=1), SIZE) == Header(
        state=State.ONLINE, entries=83, head_time_us=1_700_000_000_000_000, tail_time_us=1_700_000_001_000_000
    )


@pytest.mark.parametrize(("flags", "known"), [(0x1F, True), (0x20, False), (1 << 31 | 1, False)])
def test_a_format_that_is_unknown_is_not_judged_by_its_other_fields(flags: int, known: bool) -> None:
    """Bit 5 is the segmented format, whose counters are 0 or 2^64 - 1."""
    for changes in {}, {"state": 9, "entries": 2**64 - 1}:
        data = bytearray(made(**changes))
        data[12:16] = flags.to_bytes(4, "little")
        if known and not changes:
            assert parse_header(bytes(data), SIZE).entries == GOOD["entries"]
        else:
            with pytest.raises(HeaderError, match="state 9" if known else f"flags {flags & ~0x1F:#x}") as found:
                parse_header(bytes(data), SIZE)
            assert isinstance(found.value, UnknownFormatError) != known


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"header_size": 208, "arena": SIZE - 208},
        {"entries": 868},
        {"objects": ARENA // 16},
        {"tail_object": SIZE - 16},
        {"tail_object": HEADER_SIZE, "data_table": 0, "data_table_size": 0, "field_table": 0, "field_table_size": 0,
         "entry_array": 0, "entries": 0, "objects": 0},
        {"entry_array": 0},
        {"data_table": 4_000_016},  # a new file's last object, its items behind its header
        {"data_table_size": SIZE - 5632},
        {"head_time": 0, "tail_time": 1 << 55},
    ],
)  # fmt: skip
def test_header_fields_at_the_limit_are_accepted(changes: dict[str, int]) -> None:
    assert parse_header(made(**changes), SIZE).tail_time_us == {**GOOD, **changes}["tail_time"]


@pytest.mark.parametrize(
    "changes",
    [
        {"state": 3},
        {"header_size": 207},
        {"header_size": 2**64 - 1, "arena": 265},  # their sum would wrap in 64 bits
        {"arena": ARENA + 1},
        {"entries": 869},
        {"objects": ARENA // 16 + 1},
        {"tail_object": SIZE - 8},
        {"tail_object": 4_000_001},
        {"entry_array": 4_000_008},
        {"data_table": 4_000_024},
        {"data_table": 5633},
        {"data_table_size": SIZE - 5632 + 1},
        {"field_table_size": 2**64 - 1},
        {"tail_time": (1 << 55) + 1},
    ],
)
def test_header_fields_beyond_the_limit_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(HeaderError):
        parse_header(made(**changes), SIZE)


FIXED = HEADER_SIZE + GOOD["data_table_size"] + GOOD["field_table_size"]


@pytest.mark.parametrize(
    ("changes", "full_bytes"),
    [
        ({"data_objects": 0}, 0),
        ({"data_objects": 868}, FIXED + round((4_000_000 - FIXED) * 231_250 * 3 / 4 / 868)),
        ({"data_objects": 869}, 0),  # more than all objects
        ({"data_objects": 868, "header_size": 208, "arena": SIZE - 208}, 0),  # systemd before 187: no such field
        ({"data_objects": 868, "tail_object": FIXED - FIXED % 8, "entry_array": 0}, FIXED),
    ],
)
def test_a_file_is_full_when_its_hash_table_is_three_quarters_full(changes: dict[str, int], full_bytes: int) -> None:
    assert parse_header(made(**changes), SIZE).full_bytes == full_bytes


def test_a_short_file_is_no_journal() -> None:
    assert parse_header(made(header_size=208, arena=SIZE - 208)[:HEADER_BYTES], SIZE).entries == 83
    with pytest.raises(HeaderError, match="215 bytes"):
        parse_header(made()[: HEADER_BYTES - 1], SIZE)
    with pytest.raises(HeaderError, match="magic"):
        parse_header(b"KSHHRHLP" + made()[8:], SIZE)  # the magic of journald's sealing keys


def test_a_file_that_grew_since_its_stat_is_looked_at_again(tmp_path: Path) -> None:
    with open(tmp_path / "system.journal", "w+b", buffering=0) as file:
        file.write(made())
        file.truncate(SIZE)
        assert journal_file.read_header(file.fileno(), SIZE - 4096).entries == 83
        file.truncate(SIZE - 1)
        with pytest.raises(HeaderError):
            journal_file.read_header(file.fileno(), SIZE - 4096)


@pytest.mark.parametrize(
    ("data", "state"),
    [
        (made(state=1), State.ONLINE),
        (made(state=3), State.UNKNOWN),
        (made(state=1, incompatible=0x1F), State.ONLINE),
        (made(state=1, incompatible=0x20), State.UNKNOWN),
        (made()[:16], State.UNKNOWN),
        (b"", State.UNKNOWN),
    ],
)
def test_the_state_byte_alone_is_read_from_the_open_file(tmp_path: Path, data: bytes, state: State) -> None:
    (tmp_path / "system.journal").write_bytes(data)
    with open(tmp_path / "system.journal", "rb") as file:
        assert journal_file.read_state(file.fileno()) is state
