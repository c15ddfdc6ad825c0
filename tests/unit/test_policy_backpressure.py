# SPDX-License-Identifier: LGPL-2.1-or-later
"""The advice between two pieces: each kind of load, each boundary, and which load counts first."""

from __future__ import annotations

import pytest

from journalkeeper.config.directives import WindowSection
from journalkeeper.policy.backpressure import PATIENCE_US, Advice, Reading, advise

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
