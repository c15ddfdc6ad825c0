# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sample of each attack, and the commands that journalkeeper-trust(7) names."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.daemon import CHECKOUT
from tests.trust import table
from tests.trust.__main__ import KINDS, TABLE

SEED = 20261122
KERNEL = ("powercuts", "outages")
"""Attacks that need FUSE."""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.may_skip] if name in KERNEL else []) for name in KINDS]
)
def test_a_sample_of_each_attack_loses_nothing_and_leaves_nothing(name: str) -> None:
    """It takes as long as the sample, up to two minutes."""
    words = [sys.executable, "-m", f"tests.trust.{KINDS[name].module}", *KINDS[name].sample.split()]
    done = subprocess.run([*words, "--seed", f"{SEED}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    row = table.parse(done.stdout)
    if row.skipped:
        pytest.skip(row.skipped)
    assert row.points > 0
    assert row.seed == SEED


def test_the_results_in_the_man_page_are_of_the_kinds_and_nothing_was_lost() -> None:
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()]
    assert [command for *_, command in rows] == [KINDS[name].command for name, *_ in rows]
    assert all(int(points) > 0 and (lost, unclean) == ("0", "0") for _, points, lost, unclean, *_ in rows)


def test_every_attempt_in_the_man_page_names_its_test() -> None:
    page = (CHECKOUT / "configs/man/journalkeeper-trust.7.in").read_text()
    named = re.findall(r"python -m pytest (\S+)[\s\\]+-k (\w+)", page)
    assert len(named) > 5
    for file, words in named:
        assert re.search(rf"def test_\w*{words}", (CHECKOUT / file).read_text()), f"{file} has no {words}"
