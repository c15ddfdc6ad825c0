# SPDX-License-Identifier: LGPL-2.1-or-later
"""Any bytes into a parser: a value within its bounds comes out, or the documented error, and nothing else.

The checks are in tests/trust/parsers.py; here they are given any bytes, and seeds that were changed at some places.
JOURNALKEEPER_EXAMPLES says how many inputs each test makes; a failing one is printed with the line that replays it.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trust.parsers import CHECKS, SEEDS

PROPERTY = settings(
    max_examples=int(os.environ.get("JOURNALKEEPER_EXAMPLES", "200")), deadline=None, print_blob=True, database=None
)


def change(seed: bytes, changes: dict[int, bytes]) -> bytes:
    """Return the seed with other bytes at some places, which count from its begin again behind its end."""
    data = bytearray(seed)
    for place, other in changes.items():
        begin = place % len(data)
        data[begin : begin + len(other)] = other
    return bytes(data)


CHANGES = st.dictionaries(st.integers(0, 4095), st.binary(min_size=1, max_size=8), max_size=5)


@pytest.mark.parametrize("name", CHECKS)
def test_any_bytes_are_a_value_or_the_error(name: str) -> None:
    @PROPERTY
    @given(st.binary(max_size=400) | st.builds(change, st.sampled_from(SEEDS[name]), CHANGES))
    def check(data: bytes) -> None:
        CHECKS[name](data)

    check()


@pytest.mark.parametrize("name", CHECKS)
def test_seeds_are_a_value_or_the_error(name: str) -> None:
    for data in SEEDS[name]:
        CHECKS[name](data)
