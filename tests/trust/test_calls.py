# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sample of what tests/trust/calls.py tries, and that it finds what is lost."""

from __future__ import annotations

import random
import shutil

import pytest

from journalkeeper.btrfs import mtime_note
from tests.trust import calls
from tests.trust.calls import Point
from tests.trust.tally import Tally

SEED = 14

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]


@pytest.mark.long
def test_whatever_call_fails_nothing_is_lost_and_the_next_run_leaves_nothing() -> None:
    dice, tally = random.Random(SEED), Tally("calls", SEED)  # noqa: S311 - repeatable is the point
    calls.attempts(calls.FLOWS, tally, lambda found: dice.sample(found, 4))
    assert tally.points >= 3 * len(calls.FLOWS)
    assert tally.lost == {}
    assert tally.unclean == {}


def test_a_time_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the time were not noted before a hole is punched."""
    monkeypatch.setattr(mtime_note, "make", lambda *_: None)
    tally = Tally("calls", SEED)
    calls.attempts(["archive"], tally, lambda _: [Point("archive", "fallocate", 2, "SIGKILL")])
    assert [line.split(": ")[1].split()[0] for line in tally.lost.values()] == ["mtime_ns"]
