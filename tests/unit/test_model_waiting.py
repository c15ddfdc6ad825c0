# SPDX-License-Identifier: LGPL-2.1-or-later
"""What has waited for long is reported, whatever it waits for."""

from __future__ import annotations

import pytest

from journalkeeper.model import Action, Outcome, Plan, Reason, Result, Skip, Verb
from journalkeeper.model.run import LONG_US, RESTS, Wait, find_waits, list_long_waits
from tests.hosts import NOW_US, file, outcome

RESTED = [(reason, was) for reason in Reason if reason in RESTS for was in ("budget", "interrupted", "not-begun")]


def left(reason: Reason, *, puts_off: bool = True) -> Skip:
    return Skip("/a", reason, "", puts_off=puts_off)


@pytest.mark.parametrize(
    ("before", "given", "after"),
    [
        (None, left(Reason.CHANGED), (NOW_US, "changed")),
        ((1, "changed"), left(Reason.BUDGET), (1, "budget")),
        ((1, "budget"), left(Reason.SHARED, puts_off=False), None),  # it needs nothing
        ((NOW_US + 1, "budget"), left(Reason.BUDGET), (NOW_US, "budget")),  # the clock was set back
        # only an action that is done ends the wait
        ((1, "budget"), outcome("/a"), None),
        ((1, "budget"), outcome("/a", result=Result.FAILED, reason=Reason.IO_ERROR), (1, "io-error")),
        ((1, "budget"), outcome("/a", result=Result.SKIPPED, reason=Reason.PRESSURE), (1, "pressure")),
        # a rest counts as no wait, and what a run left stays first
        *(((1, was), left(reason), (NOW_US, reason if was == "budget" else was)) for reason, was in RESTED),
    ],
)
def test_a_wait_begins_once_has_the_newest_reason_and_ends_when_all_is_done(
    before: tuple[int, str] | None, given: Skip | Outcome, after: tuple[int, str] | None
) -> None:
    known = {"/a": Wait("/a", *before)} if before else {}
    skips, outcomes = ((given,), ()) if isinstance(given, Skip) else ((), (given,))
    found = find_waits(known, Plan({}, (), skips), outcomes, NOW_US)
    assert found == ({"/a": Wait("/a", *after)} if after else {})


def test_an_action_that_did_not_begin_waits_and_is_no_outcome() -> None:
    begun, left = (Action(path, Verb.COMPRESS, Reason.FRAGMENTED, file()) for path in ("/a", "/b"))
    ended = Plan({}, (begun, left), (Skip("/c", Reason.SHARED, ""),)).end_after(1)
    assert ended.actions == (begun,)
    assert find_waits({}, ended, (outcome("/a"),), NOW_US) == {"/b": Wait("/b", NOW_US, "not-begun")}


def test_a_wait_of_more_than_a_day_is_long() -> None:
    day, more = Wait("/a", NOW_US - LONG_US, "budget"), Wait("/b", NOW_US - LONG_US - 1, "pressure")
    assert list_long_waits([day, more], NOW_US) == [more]
