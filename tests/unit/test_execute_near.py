# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which runs of data go to the kernel in one piece."""

from __future__ import annotations

import pytest

from journalkeeper.execute.inplace import NEAR_BYTES, near
from journalkeeper.model import KIB, Range

RUNS = [
    ([], ()),
    ([(0, 40 * KIB)], (Range(0, 40 * KIB, 0),)),
    ([(0, 4 * KIB), (8 * KIB, 4 * KIB), (16 * KIB, 4 * KIB)], (Range(0, 20 * KIB, 0),)),
    # one block less than the limit, and the limit
    ([(0, 4 * KIB), (NEAR_BYTES, 4 * KIB)], (Range(0, NEAR_BYTES + 4 * KIB, 0),)),
    ([(0, 4 * KIB), (NEAR_BYTES + 4 * KIB, 1)], (Range(0, 4 * KIB, 0), Range(NEAR_BYTES + 4 * KIB, 1, 0))),
]


@pytest.mark.parametrize(("runs", "expected"), RUNS)
def test_runs_with_a_short_hole_between_them_are_one_range(
    runs: list[tuple[int, int]], expected: tuple[Range, ...]
) -> None:
    assert near(runs) == expected
