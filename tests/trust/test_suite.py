# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sample of each attack that has no test of its own, by the runner of all: python -m tests.trust."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trust import table
from tests.trust.__main__ import KINDS, TABLE

SEED = 20261122
SAMPLED = ("fuzz", "remote", "bus", "races", "threads")


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLED)
def test_a_sample_loses_nothing_and_leaves_nothing(name: str) -> None:
    """It takes as long as the sample: 20,000 inputs, 2,000 messages or 12 rotations."""
    words = [sys.executable, "-m", "tests.trust", "--sample", "--kinds", name, "--seed", f"{SEED}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    row = table.parse(done.stdout)
    if row.skipped:
        pytest.skip(row.skipped)
    assert row.points > 0
    assert row.seed == SEED


def test_the_table_of_the_page_is_of_kinds_that_there_are_and_nothing_was_lost() -> None:
    commands = {kind.name: kind.command() for kind in KINDS}
    for line in TABLE.read_text().splitlines():
        kind, points, lost, unclean, _, command = line.split("\t")
        assert (command, int(points) > 0, lost, unclean) == (commands[kind], True, "0", "0")


def test_every_attempt_of_the_page_names_its_test() -> None:
    checkout = Path(__file__).parents[2]
    page = (checkout / "configs/man/journalkeeper-trust.7.in").read_text()
    named = re.findall(r"python -m pytest (\S+)[\s\\]+-k (\w+)", page)
    assert len(named) > 5
    for file, words in named:
        assert re.search(rf"def test_\w*{words}", (checkout / file).read_text()), f"{file} has no {words}"
