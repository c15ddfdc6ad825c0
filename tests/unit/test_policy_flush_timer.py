# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is known of a journald's sync timer, event by event: times are seconds from an arbitrary zero."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from journalkeeper.model import State
from journalkeeper.model.units import INFINITY_US
from journalkeeper.policy.flush_timer import FlushTimer, Generations, Span

S = 1_000_000
COALESCED_US, SLACK_US, LATE_US = 400_000, 250_000, S
LOOK_EVERY_US, RARELY_US, ASK_EVERY_US = 50_000, 60 * S, 3600 * S
"""Those of the module, as numbers, so that a change of one is noticed."""

FILE, OTHER = 257, 258
MINUTES_5 = 300 * S
MARGIN = S


def timer(interval_us: int = MINUTES_5) -> FlushTimer:
    made = FlushTimer()
    made.interval_us = interval_us
    return made


def note_offline(made: FlushTimer, at_us: int, *present: int) -> bool:
    return made.note_offline(frozenset(present or (FILE,)), at_us)


def note_unsynced(made: FlushTimer, at_us: int, block: int | None, file: int = FILE, number: int = 7) -> bool:
    return made.note_unsynced({file: block}, at_us, Generations(number, number))


def flushed(interval_us: int = MINUTES_5, at_us: int = 1000 * S) -> FlushTimer:
    """A timer whose flush is over at `at_us`: nothing is unsynced."""
    made = timer(interval_us)
    note_offline(made, at_us)
    return made


def begun(interval_us: int = MINUTES_5, at_us: int = 1000 * S) -> FlushTimer:
    """A timer that was seen to start at `at_us`, within no time."""
    made = flushed(interval_us, at_us)
    made.note_append(at_us)
    assert made.since == Span(at_us, at_us)
    return made


# The first append


def test_finding_nothing_unsynced_is_news_once() -> None:
    made = timer()
    assert note_offline(made, 10 * S)
    assert not note_offline(made, 20 * S)
    assert made.get_closing_us(MARGIN) is None


@pytest.mark.parametrize(
    ("heard_us", "since"),
    [
        (1010 * S, Span(1010 * S - COALESCED_US, 1010 * S)),
        (1000 * S + 1, Span(1000 * S, 1000 * S + 1)),  # it did not come before the look that saw nothing
        (1000 * S - 1, None),  # it was flushed: the event can wait for the thread that looks
    ],
)
def test_an_append_begins_an_interval_up_to_the_coalescing_earlier(heard_us: int, since: Span | None) -> None:
    made = flushed(at_us=1000 * S)
    made.note_append(heard_us)
    assert made.since == since


def test_a_timer_says_whether_an_append_is_news() -> None:
    """Each of these gets two appends."""
    untimed, unheard = timer(INFINITY_US), flushed()
    note_unsynced(unheard, 1001 * S, 5)
    for made in (timer(), flushed(), begun(), unheard, untimed):
        for _ in range(2):
            awaited, before = made.awaits_append, vars(made).copy()
            made.note_append(1002 * S)
            assert awaited == (vars(made) != before)


def test_a_look_that_is_quicker_than_inotify_is_mended_by_it() -> None:
    made = flushed(at_us=1000 * S)
    note_unsynced(made, 2000 * S, block=1)
    assert made.since == Span(1000 * S, 2000 * S)
    made.note_append(2000 * S + 100_000)
    assert made.since == Span(2000 * S + 100_000 - COALESCED_US, 2000 * S)
    made.note_append(2010 * S)
    assert made.since.earliest_us < 2000 * S, "only the first append tells"


# Until the flush


def test_looks_are_named_before_the_flush_when_it_is_due_and_until_it_was_seen() -> None:
    made = begun(at_us=1000 * S)
    assert made.get_next_look_us(MARGIN) == 1000 * S, "which file it is shows a rotation later"
    note_unsynced(made, 1000 * S, block=1)
    assert made.get_next_look_us(MARGIN) == 1300 * S - MARGIN
    assert [made.is_due(MARGIN, 1300 * S - MARGIN - early_us) for early_us in (1, 0)] == [False, True]
    note_unsynced(made, 1300 * S - MARGIN, block=1)
    assert made.get_next_look_us(MARGIN) == 1300 * S
    note_unsynced(made, 1300 * S, block=1)
    assert made.get_next_look_us(MARGIN) == 1300 * S + LOOK_EVERY_US


def test_a_due_flush_shows_by_a_moved_block_once_the_timers_slack_is_over() -> None:
    made = begun(at_us=1000 * S)
    note_unsynced(made, 1299 * S, block=1)
    assert not note_unsynced(made, 1300 * S + 50_000, block=2)
    assert made.get_next_look_us(MARGIN) == 1300 * S + SLACK_US
    assert not note_unsynced(made, 1300 * S + SLACK_US - 1, block=2)
    assert note_unsynced(made, 1300 * S + SLACK_US, block=2)
    assert made.since == Span(1299 * S, 1300 * S + 50_000)


def test_the_kernel_moved_it_first_and_the_flush_came_after() -> None:
    made = begun(at_us=1000 * S)
    note_unsynced(made, 1299 * S, block=1)
    note_unsynced(made, 1300 * S, block=2)
    assert not note_unsynced(made, 1300 * S + SLACK_US, block=3), "it may go on just now"
    assert note_unsynced(made, 1300 * S + SLACK_US + LOOK_EVERY_US, block=3)
    assert made.since == Span(1299 * S, 1300 * S + SLACK_US)


def test_a_late_flush_was_taken_back_and_the_timer_began_anew_about_then() -> None:
    made = begun(at_us=1000 * S)
    note_unsynced(made, 1299 * S, block=1)
    assert not note_unsynced(made, 1300 * S + LATE_US - 1, block=1)
    assert note_unsynced(made, 1300 * S + LATE_US, block=1)
    assert made.since == Span(1300 * S, 1300 * S + SLACK_US)


def test_unseen_flushes_make_the_timer_vaguer_until_it_is_unknown() -> None:
    interval_us = 10 * S
    made, now_us = begun(interval_us, 1000 * S), 1000 * S
    intervals = 0
    while made.since is not None:
        now_us = made.get_next_look_us(MARGIN) or 0
        width_us = made.since.latest_us - made.since.earliest_us
        closes_us = made.get_closing_us(MARGIN)
        assert closes_us is not None
        assert closes_us <= made.since.earliest_us + interval_us - MARGIN
        intervals += note_unsynced(made, now_us, block=1)
        if made.since is not None:
            assert made.since.latest_us - made.since.earliest_us in {width_us, width_us + SLACK_US}
    assert intervals == interval_us // 2 // SLACK_US
    assert made.get_closing_us(MARGIN) == 0


def test_looks_that_came_far_too_late_leave_nothing_known() -> None:
    made = begun(at_us=1000 * S)
    note_unsynced(made, 1001 * S, block=1)
    assert not note_unsynced(made, 1700 * S, block=1)
    assert made.state is State.UNKNOWN


# What else moves a block, and rotation


Step = Callable[[FlushTimer], object]


def seen(at_s: int, block: int, **words: int) -> Step:
    """A look that finds unsynced data."""
    return lambda made: note_unsynced(made, at_s * S, block, **words)


def quiet(at_us: int, *present: int) -> Step:
    """A look that finds none."""
    return lambda made: note_offline(made, at_us, *present)


def heard(at_s: int) -> Step:
    """An append."""
    return lambda made: made.note_append(at_s * S)


@pytest.mark.parametrize(
    ("interval_us", "steps", "since"),
    [
        (MINUTES_5, [seen(1010, 1), seen(1040, 2)], Span(1000 * S, 1000 * S)),
        (10 * S, [seen(1003, 1), seen(1004, 2)], Span(1000 * S, 1004 * S)),
        (MINUTES_5, [seen(1001, 1), quiet(1100 * S), heard(1100)], Span(1100 * S, 1100 * S)),
        (10 * S, [seen(1003, 1, number=7), seen(1004, 2, number=8)], Span(1000 * S, 1000 * S)),
        (10 * S, [seen(1003, 1, file=FILE), seen(1004, 2, file=OTHER)], Span(1000 * S, 1000 * S)),
        (10 * S, [seen(1003, 1), FlushTimer.forget_blocks, seen(1004, 2)], Span(1000 * S, 1000 * S)),
        (MINUTES_5, [seen(1299, 1), seen(1300, 2), seen(1301, 2), seen(1310, 3, number=8)], Span(1299 * S, 1300 * S)),
        (MINUTES_5, [seen(1001, 1), quiet(1100 * S, OTHER), heard(1150)], Span(1000 * S, 1150 * S)),
        (
            MINUTES_5,
            [seen(1001, 1), quiet(1100 * S, OTHER), quiet(1300 * S + LATE_US + 1, OTHER), heard(1400)],
            Span(1400 * S - COALESCED_US, 1400 * S),
        ),
    ],
    ids=[
        "the kernel's write-back before it is due is no flush",
        "a crit sync within a short interval may have restarted the timer or not",
        "a crit sync that leaves it offline stops the timer",
        "a sync of everything says nothing of the timer",
        "two files have two blocks: another that is first is no move",
        "where we moved it to is no flush",
        "nor does one after a flush that was seen when it was due",
        "a rotation does not stop the timer",
        "after the old timer's time a rotation is forgotten",
    ],
)
def test_the_timers_state_after(interval_us: int, steps: list[Step], since: Span) -> None:
    made = begun(interval_us, 1000 * S)
    for step in steps:
        step(made)
    assert made.since == since
    assert made.get_closing_us(MARGIN) == since.earliest_us + interval_us - MARGIN


# Searching


def search(made: FlushTimer, moves: list[int], until_us: int, step_us: int, numbers: dict[int, int]) -> None:
    """Look every `step_us` from 0; the block is another from each of the moments `moves` on."""
    for at_us in range(0, until_us + 1, step_us):
        number = max((value for when, value in numbers.items() if when <= at_us), default=1)
        note_unsynced(made, at_us, block=sum(move <= at_us for move in moves), number=number)


@pytest.mark.parametrize(("interval_us", "wait_us"), [(MINUTES_5, S), (10 * S, S // 2)])
def test_an_unknown_timer_is_searched_for_every_second_or_20_times_an_interval(interval_us: int, wait_us: int) -> None:
    made = timer(interval_us)
    note_unsynced(made, 10 * S, block=1)
    assert made.get_next_look_us(MARGIN) == 10 * S + wait_us


@pytest.mark.parametrize(
    ("interval_us", "moves", "until_us", "step_us", "numbers", "since"),
    [
        (MINUTES_5, [31 * S, 51 * S], 53 * S, S, {}, Span(50 * S, 51 * S)),
        (MINUTES_5, [31 * S, 62 * S, 93 * S], 120 * S, S, {}, None),
        (10 * S, [4 * S], 5 * S, S // 2, {}, Span(3 * S + S // 2, 4 * S)),
        (10 * S, [4 * S], 8 * S, S // 2, {4 * S: 2}, None),
        (10 * S, [4 * S], 8 * S, S // 2, {5 * S: 2}, None),
    ],
    ids=[
        "a move that comes too soon for the kernel is a flush",
        "moves as far apart as the kernel's find nothing",
        "a short interval leaves the kernel no time",
        "a sync that ends the transaction with the move is not found",
        "nor one that ends it after the move",
    ],
)
def test_a_timer_is_found_by_its_flushes(
    interval_us: int, moves: list[int], until_us: int, step_us: int, *, numbers: dict[int, int], since: Span | None
) -> None:
    made = timer(interval_us)
    search(made, moves, until_us, step_us, numbers)
    assert made.since == since
    assert made.state is (State.ONLINE if since else State.UNKNOWN)


def test_a_file_whose_blocks_never_move_is_looked_at_once_an_interval() -> None:
    """NOCOW: all that can be seen of it is that it is OFFLINE."""
    made = timer()
    note_unsynced(made, 10 * S, block=None)
    assert made.get_next_look_us(MARGIN) == 10 * S + MINUTES_5


# Timers that leave nothing to follow


@pytest.mark.parametrize("interval_us", [0, INFINITY_US])
def test_without_a_timer_nothing_but_a_look_a_minute_after_an_append_is_awaited(interval_us: int) -> None:
    """Else a file of systemd-journal-remote's is looked at when it is new, and never again."""
    made = flushed(interval_us)
    assert made.get_next_look_us(MARGIN) is None
    made.note_append(1001 * S)
    assert made.get_closing_us(MARGIN) is None
    assert not made.is_due(MARGIN, 10**15)
    made.note_append(1002 * S)
    assert made.get_next_look_us(MARGIN) == 1061 * S
    assert not made.note_untimed_look(1060 * S)
    assert made.note_untimed_look(1061 * S)
    assert made.get_next_look_us(MARGIN) is None, "the next append plans the next look"
    made.note_append(1062 * S)
    assert made.get_next_look_us(MARGIN) == 1122 * S


def test_a_window_that_the_margins_leave_nothing_of_is_only_looked_at_for_its_end() -> None:
    made = begun(2 * MARGIN, 1000 * S)
    assert made.get_next_look_us(MARGIN) == 1000 * S + RARELY_US
    assert made.get_closing_us(MARGIN) == 0
    assert not made.is_due(MARGIN, 1002 * S)
    longer = begun(2 * MARGIN + 1, 1000 * S)
    assert longer.get_closing_us(MARGIN) == 1000 * S + MARGIN + 1


# Files that nobody will flush


def test_a_file_left_online_by_a_killed_journald_is_nobodys_unless_it_is_followed() -> None:
    """A clock that was set forward does not make a followed file old."""
    made = timer()
    assert made.may_be_live(FILE, MINUTES_5 + LATE_US, now_us=10 * S)
    assert not made.may_be_live(FILE, MINUTES_5 + LATE_US + 1, now_us=10 * S)
    made = begun(at_us=1000 * S)
    note_unsynced(made, 1001 * S, block=1)
    years_us = 10**14
    assert made.may_be_live(FILE, years_us, now_us=1300 * S + LATE_US - 1)
    assert not made.may_be_live(FILE, years_us, now_us=1300 * S + LATE_US)
    assert not made.may_be_live(OTHER, years_us, now_us=1002 * S)


# Asking for a sync


def unknown(interval_us: int = MINUTES_5, at_us: int = 1000 * S, block: int | None = 5) -> FlushTimer:
    """A timer of which nothing is known at `at_us` but that something is unsynced."""
    made = timer(interval_us)
    note_unsynced(made, at_us, block)
    return made


@pytest.mark.parametrize(
    ("made", "after_us", "worth"),
    [
        (unknown(), MINUTES_5 + LATE_US, False),
        (unknown(), MINUTES_5 + LATE_US + 1, True),
        (unknown(25 * S), 26 * S + 1, True),
        (unknown(24 * S), 100 * S, False),  # found by its flushes
        (unknown(INFINITY_US), MINUTES_5 * 9, False),  # there is no timer
        (unknown(block=None), MINUTES_5 * 9, False),  # NOCOW
        (begun(), MINUTES_5 * 9, False),
        (timer(), MINUTES_5 * 9, False),  # nobody looked yet
    ],
)
def test_a_sync_is_worth_it_where_a_timer_stays_unknown_too_long(made: FlushTimer, after_us: int, worth: bool) -> None:
    assert made.needs_sync(1000 * S + after_us) is worth


def test_a_sync_is_asked_for_once_an_hour_and_began_the_timer_between_the_question_and_the_answer() -> None:
    made = unknown()
    made.note_request(2000 * S)
    assert not made.needs_sync(2000 * S + ASK_EVERY_US - 1)
    assert made.needs_sync(2000 * S + ASK_EVERY_US)
    made.note_sync(2000 * S, 2005 * S)
    assert made.since == Span(2000 * S, 2005 * S)
    assert made.get_closing_us(MARGIN) == 2000 * S + MINUTES_5 - MARGIN
    assert not made.needs_sync(2000 * S + ASK_EVERY_US)


def test_a_requested_sync_leaves_no_doubt() -> None:
    """A timer was found by its flush, then lost because sync(2) may have moved the block."""
    made = timer(10 * S)
    search(made, [4 * S], 8 * S, S // 2, {5 * S: 2})
    assert made.state is State.UNKNOWN
    made.note_sync(9 * S, 9 * S)
    note_unsynced(made, 10 * S, block=3, number=3)
    assert (made.state, made.since) == (State.ONLINE, Span(9 * S, 9 * S))
