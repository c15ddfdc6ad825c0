# SPDX-License-Identifier: LGPL-2.1-or-later
"""When work on active files is in nobody's way: each row of the window's table, each boundary, each kind of load."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.config import Config
from journalkeeper.config.directives import WindowSection
from journalkeeper.model import JournalFile, Kind, Reason, Request, State, Window
from journalkeeper.model.units import INFINITY_US, MINUTE_US, SECOND_US
from journalkeeper.policy.case import Cases
from journalkeeper.policy.window import PATIENCE_US, Advice, Reading, advise, find_windows, next_flush_us, update_window
from tests.hosts import DIRECTORY, NAME, NOW_US, file, host, instance

MARGIN_US = SECOND_US
INTERVAL_US = 5 * MINUTE_US


def online(changed_us: int = NOW_US, **words: Any) -> JournalFile:
    return file(Kind.ACTIVE, state=State.ONLINE, mtime_ns=changed_us * 1000, **words)


def opened(reason: str, closes_at_us: int | None = None) -> Window:
    return Window(NAME, open=True, closes_at_us=closes_at_us, reason=reason)


def closed(reason: str, opens_at_us: int | None = None) -> Window:
    return Window(NAME, open=False, closes_at_us=None, reason=reason, opens_at_us=opens_at_us)


OFFLINE = file(Kind.ACTIVE, state=State.OFFLINE)
UNKNOWN = file(Kind.ACTIVE, state=State.UNKNOWN, problem=Reason.UNKNOWN_FORMAT)
CLOSED = closed("unsynced", NOW_US + INTERVAL_US + 1)
OLD = online(NOW_US - INTERVAL_US - 1)
DEADLINE_US = INTERVAL_US - MARGIN_US


def since(age_us: int, **words: Any) -> dict[str, Any]:
    """An instance that was seen to become ONLINE so long ago."""
    return {"online_since_us": NOW_US - age_us, **words}


@pytest.mark.parametrize(
    ("files", "words", "expected"),
    [
        ([OFFLINE], {}, opened("flushed")),
        # an unclean file stays ONLINE for ever: its journald was killed
        *(([online()._replace(kind=kind)], {}, opened("flushed")) for kind in (Kind.ARCHIVED, Kind.UNCLEAN)),
        ([UNKNOWN, OFFLINE], {}, opened("unknown-format")),
        ([UNKNOWN, online()], {}, CLOSED),
        ([OFFLINE, online(), OFFLINE], {}, CLOSED),
        *(([online()], {"sync_interval_us": interval_us}, opened("no-timer")) for interval_us in (0, INFINITY_US)),
        # nobody saw when it became ONLINE: it is open only when nobody writes any more
        ([online(NOW_US - INTERVAL_US)], {}, closed("unsynced", NOW_US + 1)),
        ([OLD], {}, opened("stale")),
        ([OLD, online(NOW_US - INTERVAL_US)], {}, closed("unsynced", NOW_US + 1)),  # the file that changed last counts
        # somebody did: it is open until the margin before the flush, and then closed until the flush was seen
        ([online()], since(0), opened("online", NOW_US + DEADLINE_US)),
        ([online()], since(DEADLINE_US - 1), opened("online", NOW_US + 1)),
        ([online()], since(DEADLINE_US), closed("flush-due")),
        # two margins leave nothing of the interval
        ([online()], since(0, sync_interval_us=2 * MARGIN_US), closed("too-short")),
        ([online()], since(0, sync_interval_us=2 * MARGIN_US + 1), opened("online", NOW_US + MARGIN_US + 1)),
        # the clock was set back: the deadline that it gives could lie behind the flush
        ([online()], since(-1), closed("unsynced", NOW_US + 1)),
    ],
)
def test_a_window_is_open_or_closed(files: list[JournalFile], words: dict[str, Any], expected: Window) -> None:
    for now, window in ((False, expected), (True, opened("now"))):
        assert find_windows((instance(**words),), files, NOW_US, margin_us=MARGIN_US, now=now)[DIRECTORY] == window


@pytest.mark.parametrize(
    ("age_us", "expected"),
    [
        (DEADLINE_US - 3 * SECOND_US - 1, opened("online", NOW_US + 1)),
        (DEADLINE_US - 3 * SECOND_US, closed("flush-due")),
    ],
)
def test_the_slowest_piece_adds_to_the_margin(age_us: int, expected: Window) -> None:
    seen = host(online(), instances=(instance(**since(age_us)),), slowest_piece_us=3 * SECOND_US)
    assert Cases(seen, Request(), Config()).windows[DIRECTORY] == expected


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
    assert update_window(seen, later_us) == expected


def test_the_next_flush_is_the_earliest_that_is_known() -> None:
    timeless = [instance(online_since_us=0, sync_interval_us=interval_us) for interval_us in (0, INFINITY_US)]
    timeless.append(instance(online_since_us=NOW_US, sync_interval_us=INFINITY_US - 1))
    assert next_flush_us((instance(), *timeless)) == 0
    later, sooner = (instance(online_since_us=since_us) for since_us in (NOW_US + 1, NOW_US))
    assert next_flush_us((*timeless, later, sooner)) == NOW_US + INTERVAL_US


LIMITS = WindowSection()
MOST_US, SHARE = LIMITS.intake_delay_max_us, LIMITS.pressure_max_percent


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (Reading(), Advice.GO_ON),
        (Reading(flush_due=True), Advice.PAUSE),
        (Reading(paused_us=PATIENCE_US), Advice.GO_ON),
        (Reading(paused_us=PATIENCE_US + 1), Advice.GIVE_UP),
        (Reading(intake_delay_us=MOST_US // 2), Advice.GO_ON),
        (Reading(intake_delay_us=MOST_US // 2 + 1), Advice.SLOW_DOWN),
        (Reading(intake_delay_us=MOST_US), Advice.SLOW_DOWN),
        (Reading(intake_delay_us=MOST_US + 1), Advice.PAUSE),
        (Reading(others_busy_percent=SHARE // 2), Advice.GO_ON),
        (Reading(others_busy_percent=SHARE // 2 + 1), Advice.SLOW_DOWN),
        (Reading(others_busy_percent=SHARE), Advice.SLOW_DOWN),
        (Reading(others_busy_percent=SHARE + 1), Advice.PAUSE),
        # the strongest counts
        (Reading(flush_due=True, maintenance="balance"), Advice.GIVE_UP),
        (Reading(intake_delay_us=MOST_US, others_busy_percent=100), Advice.PAUSE),
    ],
)
def test_the_strongest_load_decides(reading: Reading, expected: Advice) -> None:
    assert advise(reading, LIMITS) is expected


def test_with_100_percent_other_programs_slow_nothing_down() -> None:
    limits = LIMITS.model_copy(update={"pressure_max_percent": 100})
    assert advise(Reading(others_busy_percent=100), limits) is Advice.GO_ON
