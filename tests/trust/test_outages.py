# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sample of tests/trust/outages.py: the long form has all faults, by chance, and 30 s of a disk that hangs."""

from __future__ import annotations

import pytest

from tests.trust.outages import Fault, Point, attempt


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        Point(0, Fault.HANG, defrag=False, record_inside=True, delay_s=0.3, lasts_s=2.5, stop_s=0.5),
        Point(1, Fault.WRITE_ERRORS, defrag=False, record_inside=False, delay_s=0.3, lasts_s=1.0, stop_s=None),
        Point(2, Fault.FULL, defrag=False, record_inside=True, delay_s=0.3, lasts_s=1.0, stop_s=None),
        Point(3, Fault.UNMOUNT, defrag=False, record_inside=False, delay_s=0.3, lasts_s=1.0, stop_s=None),
    ],
    ids=str,
)
def test_nothing_is_lost_and_the_service_is_at_work_again(point: Point) -> None:
    """It takes as long as the outage, and until the service tries again."""
    tried = attempt(point)
    assert (tried.lost, tried.unclean) == ([], [])
    assert tried.outage_s > 0
