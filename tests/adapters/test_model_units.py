# SPDX-License-Identifier: LGPL-2.1-or-later
"""Time spans as systemd itself reads and prints them."""

from __future__ import annotations

import re
import shutil

import pytest

from journalkeeper.model.units import format_span, parse_span_us
from tests.adapters.command import ran

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")

TABLE = [
    "0", "1", "300", "5min", "1h 30min", "1h30", "90m", "500ms", "1.5ms", ".5", "1.5h", "12.34 .56", "12.34s.56",
    "12 34", "12us", "12\u03bcs", "12\u00b5s", "1y 2month 3w 4d 5h 6min 7s 8ms 9us", "1M", "1m", "2months", "infinity",
    " infinity ", "0.0000019s", "59.999999s", "1min 0.5s", "+5", "+5min", "1h\t5m", "3 hr", "3 hour", "2days 1week",
    "5m", "2 seconds", "1month", "1w 2d", "7us", "  3s  ", "9223372036854775807us", "584541y", "0.5us",
    "1.99us", "1.0000005s", "3sec 2second 1seconds",
    # and what is refused
    "", "  ", "s", "-1", "-0", "5parsecs", "5S", "12.34.56", "3.", "3.s", "3. 1", "3.+1", "+.5", "+ 5", "infinityx",
    "1h infinity", "18446744073709551615", "584543y", "1 h 2 x", "1,5s", "--5", "5 -", "1e3",
    "infinite", "600000y", "0x10", "\u0661s", "5min;", "1..5s", ".", "5.min", "1 . 5",
]  # fmt: skip


def systemd(text: str) -> tuple[int, str] | None:
    """Return how systemd-analyze reads a time span, in microseconds, and how it prints the span, cut after two units.

    The text is "" for a span that systemd prints with decimals. Return None if systemd refuses `text`.
    """
    done = ran("systemd-analyze", "timespan", "--", text, env={"LC_ALL": "C.UTF-8"})
    if done.returncode != 0:
        return None
    number = re.search(r"s: (\d+)$", done.stdout, re.MULTILINE)
    human = re.search(r"Human: (.*)$", done.stdout, re.MULTILINE)
    assert number is not None
    assert human is not None
    return int(number[1]), "" if "." in human[1] else " ".join(human[1].split()[:2])


@pytest.mark.parametrize("text", TABLE)
def test_a_span_is_read_as_systemd_reads_it(text: str) -> None:
    expected = systemd(text)
    try:
        span_us = parse_span_us(text)
    except ValueError:
        assert expected is None
        return
    assert expected is not None
    assert (span_us, format_span(span_us, 1) if expected[1] else "") == expected
    assert parse_span_us(format_span(span_us, 1)) <= span_us
