# SPDX-License-Identifier: LGPL-2.1-or-later
"""The text for given facts. tests/adapters/test_metrics_prometheus.py shows it to Prometheus."""

from __future__ import annotations

import pytest

from journalkeeper import __version__
from journalkeeper.metrics.prometheus import Facts, render
from journalkeeper.model.run import Counters
from tests import figures


def samples(facts: Facts) -> dict[str, str]:
    """Return the value of each sample, by its name with its labels."""
    return dict(line.rsplit(" ", 1) for line in render(facts).splitlines() if not line.startswith("#"))


SAMPLES = {
    f'build_info{{version="{__version__}"}}': "1",
    "healthy": "1",
    "by_service": "1",
    "last_run_success": "1",
    "last_run_timestamp_seconds": "1700000000.000001",
    'actions_total{result="done"}': "5",
    'actions_total{result="failed"}': "2",
    'actions_total{result="skipped"}': "4",
    "written_bytes_total": "1000",
    "reclaimed_bytes": "800",
    "removed_extents_total": "600",
    "files": "7",
    "problem_files": "1",
    "fragmented_files": "2",
    'skipped_files{reason="shared"}': "2",
    'skipped_files{reason="budget"}': "1",
    "extents": "5040",
    "ideal_extents": "300",
    "active_extents": "40",
    "size_bytes": "11",
    "allocated_bytes": "12",
    "shared_bytes": "13",
    "disk_bytes": "14",
    "budget_bytes": "15",
    "budget_left_bytes": "0",
    "window_open": "1",
    "intake_delay_seconds": "0.250000",
    "unhealthy_since_timestamp_seconds": "0.000000",
}


def test_every_number_has_its_sample() -> None:
    assert samples(figures.FACTS) == {f"journalkeeper_{name}": value for name, value in SAMPLES.items()}


SUMS = {**figures.STATUS.sums, "disk_bytes": None}
FEWER = figures.FACTS._replace(status=figures.STATUS._replace(skipped=(), sums=SUMS, budget_left_bytes=None))


@pytest.mark.parametrize(
    ("facts", "gone"),
    [
        (figures.FACTS._replace(counters=None), "journalkeeper_actions_total"),
        (figures.FACTS._replace(counters=Counters()), "journalkeeper_reclaimed_bytes"),
        (figures.FACTS._replace(status=None), "journalkeeper_files"),
        (FEWER, "journalkeeper_skipped_files"),
        (FEWER, "journalkeeper_disk_bytes"),
        (FEWER, "journalkeeper_budget_left_bytes"),
        (figures.FACTS._replace(last_run_timestamp_us=None), "journalkeeper_last_run_timestamp_seconds"),
        (figures.FACTS._replace(intake_delay_us=None), "journalkeeper_intake_delay_seconds"),
    ],
)
def test_an_unknown_number_has_neither_sample_nor_help(facts: Facts, gone: str) -> None:
    assert gone in render(figures.FACTS)
    assert gone not in render(facts)


def test_counters_and_states_are_there_from_the_first_run_on() -> None:
    """Prometheus sees an increase only after a first value."""
    found = samples(Facts(last_run_success=False, counters=Counters()))
    assert found["journalkeeper_last_run_success"] == "0"
    for result in ("done", "failed", "skipped"):
        assert found[f'journalkeeper_actions_total{{result="{result}"}}'] == "0"
