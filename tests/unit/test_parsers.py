# SPDX-License-Identifier: LGPL-2.1-or-later
"""Any bytes into a parser: a value within its bounds comes out, or the documented error, and nothing else.

JOURNALKEEPER_EXAMPLES says how many inputs each test makes; a failing one is printed with the line that replays it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from journalkeeper.cli.times import parse_time_us
from journalkeeper.config import files, validation
from journalkeeper.history import rows
from journalkeeper.journald import conf, header, names
from journalkeeper.model import Header, Kind, Outcome, Past
from journalkeeper.model.compression import parse_compression
from journalkeeper.model.errors import ConfigError
from journalkeeper.model.units import U64_MAX, parse_bool, parse_size, parse_span_us

PROPERTY = settings(
    max_examples=int(os.environ.get("JOURNALKEEPER_EXAMPLES", "200")), deadline=None, print_blob=True, database=None
)
NOW_US = 1_700_000_000_000_000
NAME_LIMIT = 255

any_name = st.binary(max_size=NAME_LIMIT).map(os.fsdecode)
near_name = st.lists(
    st.sampled_from(
        ["system", "user-", "remote-", "@", "-", "~", ".journal", ".journal~", "\udcff", "\n", "0", "f" * 16, "F" * 32]
    )
    | st.text("0123456789abcdefxyz@-~.", max_size=40),
    max_size=9,
).map("".join)


@PROPERTY
@given(any_name | near_name)
@example(f"system@{'f' * 32}-{'f' * 16}-{'f' * 16}.journal")
def test_a_name_is_a_journals_or_none(name: str) -> None:
    found = names.classify(name)
    assert (found is not None) == name.endswith((".journal", ".journal~"))
    if found is not None:
        assert found.kind in Kind
        assert found.owner in {"system", "remote"} or found.owner.startswith("user:")
        assert 0 <= found.head_seqnum <= U64_MAX
        assert 0 <= found.realtime_us <= U64_MAX
        assert (found.kind is Kind.ARCHIVED) == bool(found.seqnum_id)


fields = st.one_of(st.sampled_from([0, 8, 16, 208, 240, 1 << 20, 1 << 55, 1 << 63, U64_MAX]), st.integers(0, U64_MAX))
near_header = st.builds(
    lambda state, numbers: (
        (b"LPKS" + b"HHRH" + bytes(8) + bytes([state])).ljust(88, b"\0") + struct.pack("<15Q", 208, *numbers)
    ),
    st.integers(0, 3),
    st.lists(fields, min_size=14, max_size=14),
)


@PROPERTY
@given(st.binary(max_size=300) | near_header, st.integers(0, (1 << 63) - 1))
def test_a_header_is_sound_or_an_error(data: bytes, size_bytes: int) -> None:
    found: Header | None = None
    fd = os.memfd_create("header")
    try:
        os.write(fd, data)
        with suppress(header.HeaderError):
            found = header.read(fd, size_bytes)
        header.state(fd)
    finally:
        os.close(fd)
    if found is not None:
        assert 0 <= found.entries <= size_bytes // 16
        assert min(found.head_time_us, found.tail_time_us) >= 0
        assert max(found.head_time_us, found.tail_time_us) <= 1 << 55


@PROPERTY
@given(st.text(max_size=60) | st.text("0123456789.KMGTPEB +-\n", max_size=60))
def test_a_size_is_within_64_bits_or_a_value_error(text: str) -> None:
    bounded(parse_size, text, U64_MAX)


@PROPERTY
@given(st.text(max_size=60) | st.text("0123456789. hminsudywofty\u00b5+-", max_size=60) | st.just("infinity"))
def test_a_span_is_within_64_bits_or_a_value_error(text: str) -> None:
    bounded(parse_span_us, text, U64_MAX)


@PROPERTY
@given(st.text(max_size=60) | st.text("0123456789-:. @UTCZagoleft+dh", max_size=40))
@example("@9223372036854775807")
@example("-292000y")
def test_a_time_is_within_63_bits_or_a_value_error(text: str) -> None:
    bounded(lambda words: parse_time_us(words, NOW_US), text, (1 << 63) - 1)


def bounded(parse: Callable[[str], int], text: str, most: int) -> None:
    with suppress(ValueError):
        assert 0 <= parse(text) <= most


@PROPERTY
@given(st.text(max_size=20) | st.text("zstdliobn:0123456789", max_size=12))
def test_words_are_a_value_or_a_value_error(text: str) -> None:
    for parse in (parse_compression, parse_bool):
        with suppress(ValueError):
            found = parse(text)
            assert found is None or isinstance(found, tuple | bool)


lines = st.lists(
    st.binary(max_size=80)
    | st.sampled_from(
        [b"[Journal]", b"[Defrag]", b"[Budget]", b"[", b"\\", b"#", b"SyncIntervalSec=", b"\0", b"\xff=\xff"]
    )
    | st.builds(
        lambda key, value: key.encode() + b"=" + value,
        st.sampled_from([*conf._KEYS, "Compress", "BytesPerDay", "MinExtents", "Directories"]),
        st.binary(max_size=40) | st.text("0123456789KMGTPEx.smhd ", max_size=20).map(str.encode),
    ),
    max_size=12,
).map(b"\n".join)


@PROPERTY
@given(lines, st.integers(0, U64_MAX))
def test_a_configuration_is_settings_or_its_error(data: bytes, filesystem_bytes: int) -> None:
    found = files.parse(data, "/etc/x.conf")
    settings_ = conf.effective(conf.from_assignments(found), filesystem_bytes)
    assert settings_.storage in conf.STORAGES
    assert all(value is None or value >= 0 for value in settings_[1:] if not isinstance(value, str))
    problems: tuple[tuple[str, int, str, str], ...] = ()
    try:
        validation.from_assignments(found)
    except ConfigError as error:
        problems = error.problems or (("", 0, "", ""),)
    assert all(file == "/etc/x.conf" and number > 0 and what for file, number, _, what in problems)


column = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.binary(max_size=9) | st.text(max_size=9)
number = st.integers(0, 1 << 40)
near_past = st.tuples(number, st.sampled_from(["compress", "squash"]), number, number, number, number)
near_entry = st.tuples(
    number, st.just("daemon"), st.binary(max_size=9), st.sampled_from(["compress", ""]), st.just("done"),
    st.just("fragmented"), number, number, number | st.none(), number | st.none(), number, number, st.text(max_size=9),
)  # fmt: skip


@pytest.mark.parametrize(
    ("read", "near", "wide"), [(rows.past, near_past, 6), (rows.entry, near_entry, 13)], ids=["past", "entry"]
)
def test_a_row_is_understood_or_a_value_error(
    read: Callable[[tuple[object, ...]], tuple[object, ...]], near: st.SearchStrategy[tuple[object, ...]], wide: int
) -> None:
    @PROPERTY
    @given(near | st.tuples(*[column] * wide), st.integers(0, wide - 1), st.none() | column)
    def check(row: tuple[object, ...], place: int, damage: object) -> None:
        changed = row if damage is None else (*row[:place], damage, *row[place + 1 :])
        try:
            found = read(changed)
        except (ValueError, TypeError):
            return
        whole = found[1] if read is rows.past else found[2]
        assert isinstance(whole, Past | Outcome)
        if isinstance(whole, Past):
            whole = whole._replace(mtime_ns=abs(whole.mtime_ns))  # a file may be older than 1970
        assert all(value >= 0 for value in whole if isinstance(value, int | float))

    check()
