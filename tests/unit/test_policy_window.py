# SPDX-License-Identifier: LGPL-2.1-or-later
"""When work on active files is in nobody's way: each row of the window's table, each boundary."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.model import JournalFile, Kind, Reason, State, Window
from journalkeeper.model.units import INFINITY_US, MINUTE_US, SECOND_US
from journalkeeper.policy.window import at, next_flush_us, windows
from tests.hosts import DIRECTORY, NAME, NOW_US, file, instance

MARGIN_US = SECOND_US
INTERVAL_US = 5 * MINUTE_US


def online(changed_us: int = NOW_US, **words: Any) -> JournalFile:
    return file(Kind.ACTIVE, state=State.ONLINE, mtime_ns=changed_us * 1000, **words)


def look(*files: JournalFile, now: bool = False, **words: Any) -> Window:
    return windows((instance(**words),), files, NOW_US, margin_us=MARGIN_US, now=now)[DIRECTORY]


def opened(reason: str, closes_at_us: int | None = None) -> Window:
    return Window(NAME, open=True, closes_at_us=closes_at_us, reason=reason)


def closed(reason: str, opens_at_us: int | None = None) -> Window:
    return Window(NAME, open=False, closes_at_us=None, reason=reason, opens_at_us=opens_at_us)


def test_now_does_not_look() -> None:
    assert look(online(), now=True) == opened("now")


@pytest.mark.parametrize("state", [State.OFFLINE, State.ARCHIVED])
def test_with_nothing_unsynced_it_is_open(state: State) -> None:
    assert look(file(Kind.ACTIVE, state=state)) == opened("flushed")


def test_nothing_is_said_of_entries_in_a_format_that_is_unknown() -> None:
    unknown = file(Kind.ACTIVE, state=State.UNKNOWN, problem=Reason.UNKNOWN_FORMAT)
    assert look(unknown, file(Kind.ACTIVE)) == opened("unknown-format")
    assert look(unknown, online()) == closed("unsynced", NOW_US + INTERVAL_US + 1)


@pytest.mark.parametrize("kind", [Kind.ARCHIVED, Kind.UNCLEAN])
def test_an_online_file_without_a_writer_leaves_the_window_open(kind: Kind) -> None:
    """An unclean file stays ONLINE for ever: its journald was killed."""
    assert look(online()._replace(kind=kind)) == opened("flushed")


def test_one_unsynced_file_of_many_closes_it() -> None:
    assert look(file(Kind.ACTIVE), online(), file(Kind.ACTIVE)) == closed("unsynced", NOW_US + INTERVAL_US + 1)


@pytest.mark.parametrize("interval_us", [0, INFINITY_US])
def test_without_a_timer_no_flush_is_due(interval_us: int) -> None:
    assert look(online(), sync_interval_us=interval_us) == opened("no-timer")


# nobody saw when it became ONLINE


def test_unsynced_is_open_only_when_nobody_writes_any_more() -> None:
    assert look(online(NOW_US - INTERVAL_US)) == closed("unsynced", NOW_US + 1)
    assert look(online(NOW_US - INTERVAL_US - 1)) == opened("stale")


def test_the_file_that_changed_last_counts() -> None:
    assert look(online(NOW_US - INTERVAL_US - 1), online(NOW_US - INTERVAL_US)) == closed("unsynced", NOW_US + 1)


def test_a_change_in_the_future_is_no_stale_file() -> None:
    assert look(online(NOW_US + INTERVAL_US)) == closed("unsynced", NOW_US + 2 * INTERVAL_US + 1)


# somebody did


def since(age_us: int, **words: Any) -> Window:
    return look(online(), online_since_us=NOW_US - age_us, **words)


def test_it_is_open_until_the_margin_before_the_flush() -> None:
    deadline_us = INTERVAL_US - MARGIN_US
    assert since(0) == opened("online", NOW_US + deadline_us)
    assert since(deadline_us - 1) == opened("online", NOW_US + 1)
    assert since(deadline_us) == closed("flush-due")


def test_it_stays_closed_until_the_flush_was_seen() -> None:
    assert since(10 * INTERVAL_US) == closed("flush-due")


def test_the_slowest_piece_adds_to_the_margin() -> None:
    slow = 3 * SECOND_US
    deadline_us = INTERVAL_US - MARGIN_US - slow
    assert since(deadline_us - 1, slowest_piece_us=slow).open
    assert not since(deadline_us, slowest_piece_us=slow).open


def test_all_instances_have_one_margin() -> None:
    """A piece on one device can hold up the flush of each of them, and `execute` stops for all."""
    age_us = INTERVAL_US - MARGIN_US - SECOND_US
    fast, slow = instance(online_since_us=NOW_US - age_us), instance(directory="/j/b", slowest_piece_us=3 * SECOND_US)
    found = windows([fast, slow], [online()], NOW_US, margin_us=MARGIN_US)
    assert found[fast.directory] == closed("flush-due")


def test_a_window_of_which_the_margins_leave_nothing_is_too_short() -> None:
    assert since(0, sync_interval_us=2 * MARGIN_US) == closed("too-short")
    assert since(0, sync_interval_us=2 * MARGIN_US + 1).open


def test_a_flip_in_the_future_is_not_believed() -> None:
    """The clock was set back: the deadline that it gives could lie behind the flush."""
    assert since(-1) == closed("unsynced", NOW_US + 1)
    assert since(0).open


@pytest.mark.parametrize(
    ("seen", "later_us", "expected"),
    [
        (opened("flushed"), NOW_US, opened("flushed")),
        (opened("online", NOW_US + 1), NOW_US, opened("online", NOW_US + 1)),
        (opened("online", NOW_US), NOW_US, closed("flush-due")),
        (closed("unsynced", NOW_US + 1), NOW_US, closed("unsynced", NOW_US + 1)),
        (closed("unsynced", NOW_US), NOW_US, opened("stale")),
        (closed("too-short"), NOW_US, closed("too-short")),
    ],
)
def test_a_window_seen_before_opens_and_closes_by_time_alone(seen: Window, later_us: int, expected: Window) -> None:
    assert at(seen, later_us) == expected


def test_the_next_flush_is_the_earliest_that_is_known() -> None:
    timeless = [instance(online_since_us=0, sync_interval_us=interval_us) for interval_us in (0, INFINITY_US)]
    timeless.append(instance(online_since_us=NOW_US, sync_interval_us=INFINITY_US - 1))
    assert next_flush_us((instance(), *timeless)) == 0
    later, sooner = (instance(online_since_us=since_us) for since_us in (NOW_US + 1, NOW_US))
    assert next_flush_us((*timeless, later, sooner)) == NOW_US + INTERVAL_US
