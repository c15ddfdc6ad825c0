# SPDX-License-Identifier: LGPL-2.1-or-later
"""The benches that need a guest run, in a tiny size, and print the rows that were asked for.

A test takes long because hosts are made, booted and aged.
"""

from __future__ import annotations

import re

import pytest

from tests.bench.test_bench_smoke import printed
from tests.guest.host import missing

pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(autouse=True)
def guests() -> None:
    if reason := missing():
        pytest.skip(reason)


def test_boots_takes_snapshots_between_flushes_and_compares_with_rotation_and_with_the_untouched_host() -> None:
    said = printed("boots", "--snapshots=2", "--boots=2", "--flushes=3", "--rest=0", "--iops=0", "untouched", "rotate")
    assert "a disk of 64G, 2 snapshots a round" in said
    rows = {
        (row[0], row[1].split("  ")[0]): row[1].split()
        for line in said.splitlines()[2:]
        if (row := line.split(maxsplit=1))
    }
    assert rows["rotate", "x rotate"][2:] == ["1.00", "1.00"]
    assert float(rows["untouched", "disk, MiB"][2]) > 0
    assert rows["rotate", "younger by"][-1] == "0"


def test_day_tells_what_was_written_for_what_was_logged() -> None:
    said = printed("day", "--flushes=3", "--parts=1", "--quiet=0", "--interval=1s", "stock")
    assert {"stock: logged, MiB", "stock: written by us / logged, %"} <= {
        line.split("  ")[0] for line in said.splitlines()
    }


def test_week_has_snapper_and_btrbk_clean_up_and_says_what_each_tool_did() -> None:
    said = printed("week", "--days=1", "--flushes=1", "--rest=0", "--iops=0")
    taken, left = map(int, re.findall(r"service: (\d+) snapshots taken, (\d+) left", said)[0])
    assert taken == 24 + 2 + 1
    assert left < taken
    assert "service: files rewritten twice" in said
