# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sample of tests/trust/soak.py: the long form takes eight minutes and sees whether the figures stay flat."""

from __future__ import annotations

import pytest

from tests import bus
from tests.trust import soak as long
from tests.trust.soak import Figures, growth, soak


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.long
def test_a_little_of_everything_loses_nothing_and_ends_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    """It takes long because it soaks for 9 s."""
    if reason := bus.missing():
        pytest.skip(reason)
    verdict, figures = soak(1, 0.15)
    assert (verdict.lost, verdict.unclean) == (0, 0), capsys.readouterr().out
    assert verdict.points > 100
    assert figures[-1].rows > 0, "it did no work"


def figures(count: int, **grows: int) -> list[Figures]:
    """As many, each more by what grows than the one before it."""
    rows = []
    for number in range(count):
        row = Figures(3.0 * number, 40_000, 12, 3, 10 * number, 60_000)
        rows.append(row._replace(**{field: getattr(row, field) + step * number for field, step in grows.items()}))
    return rows


def test_flat_figures_are_no_growth() -> None:
    assert growth(figures(60)) == []


@pytest.mark.parametrize("field", ["rss_kib", "descriptors", "threads"])
def test_a_leak_is_found(field: str) -> None:
    (line,) = growth(figures(60, **{field: 200 if field == "rss_kib" else 1}))
    assert line.startswith(f"{field} grew from")


def test_too_few_figures_tell_nothing() -> None:
    assert growth(figures(3 * long.LEAST - 1, descriptors=9)) == []
    assert growth(figures(3 * long.LEAST, descriptors=9)) != []
