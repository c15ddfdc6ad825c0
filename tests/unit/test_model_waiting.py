# SPDX-License-Identifier: LGPL-2.1-or-later
"""What has waited for long is reported, whatever it waits for."""

from __future__ import annotations

import pytest

from journalkeeper.model import Action, Plan, Reason, Result, Skip, Verb
from journalkeeper.model.waiting import LONG_US, RESTS, Wait, find_waits, long
from tests.hosts import NOW_US, file, outcome


def plan(*skipped: Skip) -> Plan:
    return Plan((), (), skipped)


@pytest.mark.parametrize(
    "reason", [Reason.PRESSURE, Reason.SETTLING, Reason.WINDOW_CLOSED, Reason.BUDGET, Reason.FREE_SPACE, Reason.IN_USE]
)
def test_a_postponed_file_waits_since_the_first_time_and_for_its_newest_reason(reason: Reason) -> None:
    before = find_waits({}, plan(Skip("/a", Reason.CHANGED, "", puts_off=True)), (), NOW_US)
    assert before == {"/a": Wait("/a", NOW_US, "changed")}
    after = find_waits(before, plan(Skip("/a", reason, "", puts_off=True)), (), NOW_US + 5)
    assert after == {"/a": Wait("/a", NOW_US, str(reason))}


def test_an_action_that_did_not_begin_waits_and_is_no_outcome() -> None:
    begun, left = (Action(path, Verb.COMPRESS, Reason.FRAGMENTED, file()) for path in ("/a", "/b"))
    ended = Plan((), (begun, left), (Skip("/c", Reason.SHARED, ""),)).end_after(1)
    assert ended.actions == (begun,)
    assert find_waits({}, ended, (outcome("/a"),), NOW_US) == {"/b": Wait("/b", NOW_US, "not-begun")}


def test_a_file_that_needs_nothing_does_not_wait() -> None:
    before = {"/a": Wait("/a", 1, "budget")}
    assert find_waits(before, plan(Skip("/a", Reason.SHARED, "")), (), NOW_US) == {}


@pytest.mark.parametrize(
    ("result", "reason", "goes_on"),
    [
        (Result.DONE, Reason.FRAGMENTED, False),
        (Result.FAILED, Reason.IO_ERROR, True),
        (Result.SKIPPED, Reason.PRESSURE, True),
    ],
)
def test_a_wait_ends_with_a_successful_action_only(result: Result, reason: Reason, goes_on: bool) -> None:
    after = find_waits({"/a": Wait("/a", 1, "budget")}, plan(), (outcome("/a", result=result, reason=reason),), NOW_US)
    assert after == ({"/a": Wait("/a", 1, str(reason))} if goes_on else {})


@pytest.mark.parametrize("reason", [one for one in Reason if one in RESTS])
@pytest.mark.parametrize(("was", "stays"), [("budget", False), ("interrupted", True), ("not-begun", True)])
def test_a_rest_counts_as_no_wait_and_what_a_run_left_stays_first(reason: Reason, was: str, *, stays: bool) -> None:
    rests = plan(Skip("/a", reason, "", puts_off=True))
    assert find_waits({"/a": Wait("/a", 1, was)}, rests, (), NOW_US) == {
        "/a": Wait("/a", NOW_US, was if stays else str(reason))
    }


def test_a_clock_that_was_set_back_makes_no_wait_begin_in_the_future() -> None:
    after = find_waits(
        {"/a": Wait("/a", NOW_US + 1, "budget")}, plan(Skip("/a", Reason.BUDGET, "", puts_off=True)), (), NOW_US
    )
    assert after["/a"].since_us == NOW_US


def test_a_wait_of_more_than_a_day_is_long() -> None:
    day, more = Wait("/a", NOW_US - LONG_US, "budget"), Wait("/b", NOW_US - LONG_US - 1, "pressure")
    assert long([day, more], NOW_US) == [more]
