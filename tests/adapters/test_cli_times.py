# SPDX-License-Identifier: LGPL-2.1-or-later
"""Times as systemd.time(7) has them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import pytest

from journalkeeper.cli.parser import parse_time_us
from journalkeeper.report.text import format_moment

S = 1_000_000


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
        ("2026-11-21", 1_795_215_600 * S),
        ("2026-11-21 10:00:07.25", 1_795_251_607 * S + 250_000),
        ("2026-11-21 10:00 UTC", 1_795_255_200 * S),
        ("@1395716396", 1_395_716_396 * S),
    ],
)
def test_a_time_is_local_unless_it_says_otherwise(text: str, expected_us: int) -> None:
    assert parse_time_us(text) == expected_us
    assert [format_moment(at) for at in (1_795_255_201 * S + 5, 0)] == ["2026-11-21 11:00:01", "unknown"]


@pytest.mark.parametrize("text", ["", "soon", "3d", "2026-13-01", "--help", "\0", "\udcff", "now\n UNIX seconds: @5"])
def test_text_that_is_no_time_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="allowed are 2026-11-21"):
        parse_time_us(text)
