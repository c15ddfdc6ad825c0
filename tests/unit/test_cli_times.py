# SPDX-License-Identifier: LGPL-2.1-or-later
"""Times as systemd.time(7) has them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from journalkeeper.cli.times import format_time, parse_time_us

S = 1_000_000
NOW = 1_795_255_201 * S + 5
"""Saturday 2026-11-21 10:00:01 UTC, 11:00:01 in Berlin."""


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "expected_us"),
    [
        ("now", NOW),
        ("today", 1_795_215_600 * S),
        (" yesterday ", 1_795_129_200 * S),
        ("tomorrow", 1_795_302_000 * S),
        ("yesterday UTC", 1_795_132_800 * S),
        ("2026-11-21", 1_795_215_600 * S),
        ("2026-11-21 10:00", 1_795_251_600 * S),
        ("2026-11-21 10:00:07", 1_795_251_607 * S),
        ("2026-11-21T10:00:07", 1_795_251_607 * S),
        ("2026-11-21 10:00:07.25", 1_795_251_607 * S + 250_000),
        ("2026-11-21 10:00:07 UTC", 1_795_255_207 * S),
        ("2026-11-21T10:00:07Z", 1_795_255_207 * S),
        ("10:00", 1_795_251_600 * S),
        ("10:00:07", 1_795_251_607 * S),
        ("2026-07-01 00:00", 1_782_856_800 * S),
        ("@1395716396", 1_395_716_396 * S),
        ("@1395716396.5", 1_395_716_396 * S + 500_000),
        ("@0", 0),
        ("-3d", NOW - 3 * 86_400 * S),
        ("-1h 30min", NOW - 5_400 * S),
        ("- 5", NOW - 5 * S),
        ("+1s", NOW + S),
        ("3 days ago", NOW - 3 * 86_400 * S),
        ("1h30min ago", NOW - 5_400 * S),
        ("2min left", NOW + 120 * S),
        ("-100y", 0),
    ],
)
def test_a_time_is_what_systemd_takes_it_for(text: str, expected_us: int) -> None:
    assert parse_time_us(text, NOW) == expected_us


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "foo", "2026-13-01", "2026-02-30", "2026-11-21 25:00", "2026-11-21 10", "2026-11-21 10:0"),
        *("10", "3d"),
        *("ago", "days ago", "-", "@", "@x", "@-5", "x2026-11-21", "today yesterday", "+infinity", "Z"),
        *("2026-11-2110:00", "T10:00", "0000-01-01", "99999-01-01", "٢٠٢٦-11-21"),
    ],
)
def test_what_is_no_time_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed are 2026-11-21"):
        parse_time_us(text, NOW)


def test_yesterday_begins_at_midnight_although_the_clocks_changed() -> None:
    monday_noon = 1_793_012_400 * S  # 2026-10-26 12:00 +01:00, the day after summer time ended
    sunday_midnight = 1_792_879_200 * S  # 2026-10-25 00:00 +02:00, 25 hours before Monday's
    assert parse_time_us("yesterday", monday_noon) == sunday_midnight


def test_a_time_is_shown_local_to_the_second() -> None:
    assert format_time(NOW) == "2026-11-21 11:00:01"
