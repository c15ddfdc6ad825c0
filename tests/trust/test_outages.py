# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sample of tests/trust/outages.py: the long form has all faults, by chance, and 30 s of a disk that hangs."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.trust import outages
from tests.trust.outages import Fault, Place, Point, attempt, points


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


@pytest.mark.root
@pytest.mark.slow
def test_what_is_lost_is_found() -> None:
    """An archive that changed, one that is gone, a message that no file has."""
    with ExitStack() as stack:
        place = Place(stack, record_inside=False, quota=False)
        place.mark()
        changed, gone, _same = place.add(3)
        journal = place.journald.journal
        (journal / changed).chmod(0o600)
        (journal / gone).unlink()
        found = outages.lost(place, {"mark": outages.MARKS + 1})
    assert [line for line in found if line.startswith(f"{changed}: mode was")]
    others = [line for line in found if not line.startswith(f"{changed}: ")]  # its ACL shows the mode, too
    assert sorted(others) == sorted([f"{gone} is gone", f"mark {outages.MARKS} is gone"])


def test_a_seed_brings_its_points_back_and_tries_every_fault() -> None:
    first = points(12, 7, 30.0)
    assert first == points(20, 7, 30.0)[:12]
    assert first != points(12, 8, 30.0)
    assert {point.fault for point in first} == set(Fault)
    assert {point.lasts_s for point in first if point.fault is Fault.HANG} == {30.0}
