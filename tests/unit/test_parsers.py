# SPDX-License-Identifier: LGPL-2.1-or-later
"""Any bytes into a parser: a value within its bounds comes out, or the documented error, and nothing else.

The checks are in tests/trust/parsers.py; here they are given any bytes and the fuzzer's seeds.
JOURNALKEEPER_EXAMPLES says how many inputs each test makes; a failing one is printed with the line that replays it.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trust import fuzz
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
