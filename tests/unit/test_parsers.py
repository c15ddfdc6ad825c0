# SPDX-License-Identifier: LGPL-2.1-or-later
"""Any bytes into a parser: a value within its bounds comes out, or the documented error, and nothing else.

The checks are in tests/trust/parsers.py; here they are given what looks like the real thing and what does not.
JOURNALKEEPER_EXAMPLES says how many inputs each test makes; a failing one is printed with the line that replays it.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journalkeeper.journald import header
from journalkeeper.model.units import U64_MAX
from tests import journal_files
from tests.trust import fuzz, parsers
from tests.trust.parsers import CHECKS

PROPERTY = settings(
    max_examples=int(os.environ.get("JOURNALKEEPER_EXAMPLES", "200")), deadline=None, print_blob=True, database=None
)


@pytest.mark.parametrize("name", CHECKS)
def test_any_bytes_are_a_value_or_the_error(name: str) -> None:
    @PROPERTY
    @given(st.binary(max_size=400))
    def check(data: bytes) -> None:
        CHECKS[name](data)

    check()


@pytest.mark.parametrize("name", CHECKS)
def test_seeds_of_the_fuzzer_are_a_value_or_the_error(name: str) -> None:
    for data in fuzz.SEEDS[name]:
        CHECKS[name](data)


fields = st.one_of(st.sampled_from([0, 8, 16, 208, 240, 1 << 20, 1 << 55, 1 << 63, U64_MAX]), st.integers(0, U64_MAX))
near_header = st.builds(
    journal_files.header,
    state=st.integers(0, 3),
    header_size=st.just(208),
    **{name: fields for name, at in journal_files.OFFSETS.items() if at > journal_files.OFFSETS["header_size"]},
)


@PROPERTY
@given(st.binary(max_size=300) | near_header, st.integers(0, (1 << 63) - 1))
def test_a_header_is_sound_or_an_error(data: bytes, size_bytes: int) -> None:
    parsers.check_header(size_bytes.to_bytes(8, "little") + data)
    with open(os.memfd_create("header"), "r+b", buffering=0) as file:
        file.write(data)
        with suppress(header.HeaderError):
            header.read(file.fileno(), size_bytes)
        header.read_state(file.fileno())


extent = st.builds(
    lambda logical, physical, length, flags: b"\1" + struct.pack("<IIIH", logical, physical, length, flags),
    *[st.integers(0, (1 << 20) - 1).map(lambda pages: pages << 12)] * 3,
    st.sampled_from([0, 1, 4, 8, 0x200, 0x800, 0x2000, 0x2809]),
)
answer = st.builds(
    lambda some, more, step: bytes([len(some) - 1]) + b"".join(some) + more + step.to_bytes(4, "little") + b"\0",
    st.lists(extent, min_size=1, max_size=8),
    st.sampled_from([b"\0", b"\1"]),
    st.sampled_from([0, 4096, 1 << 20]),
)


@PROPERTY
@given(st.integers(0, 1 << 40), st.integers(0, 5), st.lists(answer, max_size=6).map(b"".join))
def test_a_map_is_counts_or_an_os_error(size_bytes: int, kind: int, answers: bytes) -> None:
    parsers.check_fiemap(size_bytes.to_bytes(6, "little") + bytes([kind]) + answers)
