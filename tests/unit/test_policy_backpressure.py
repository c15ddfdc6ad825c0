# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is done between two pieces: each rule, each boundary, and which rule comes first."""

from __future__ import annotations

from typing import Any

import pytest

from journalkeeper.config import Config
from journalkeeper.policy.backpressure import PATIENCE_US, RULES, Advice, Reading, advice
from tests.hosts import configured

MOST_US = Config().window.intake_delay_max_us
SHARE = Config().window.pressure_max_percent
CALM = Reading(Config())


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        (CALM, Advice.GO_ON),
        (CALM._replace(flush_due=True), Advice.PAUSE),
        (CALM._replace(maintenance="scrub"), Advice.GIVE_UP),
        (CALM._replace(paused_us=PATIENCE_US), Advice.GO_ON),
        (CALM._replace(paused_us=PATIENCE_US + 1), Advice.GIVE_UP),
        (CALM._replace(intake_delay_us=0), Advice.GO_ON),
        (CALM._replace(intake_delay_us=MOST_US // 2), Advice.GO_ON),
        (CALM._replace(intake_delay_us=MOST_US // 2 + 1), Advice.SLOW_DOWN),
        (CALM._replace(intake_delay_us=MOST_US), Advice.SLOW_DOWN),
        (CALM._replace(intake_delay_us=MOST_US + 1), Advice.PAUSE),
        (CALM._replace(others_busy_percent=0), Advice.GO_ON),
        (CALM._replace(others_busy_percent=SHARE // 2), Advice.GO_ON),
        (CALM._replace(others_busy_percent=SHARE // 2 + 1), Advice.SLOW_DOWN),
        (CALM._replace(others_busy_percent=SHARE), Advice.SLOW_DOWN),
        (CALM._replace(others_busy_percent=SHARE + 1), Advice.PAUSE),
        # the stronger comes first
        (CALM._replace(flush_due=True, maintenance="balance"), Advice.GIVE_UP),
        (CALM._replace(flush_due=True, paused_us=PATIENCE_US + 1), Advice.GIVE_UP),
        (CALM._replace(intake_delay_us=MOST_US, others_busy_percent=100), Advice.SLOW_DOWN),
        (CALM._replace(intake_delay_us=MOST_US + 1, others_busy_percent=SHARE // 2 + 1), Advice.PAUSE),
    ],
)
def test_a_reading_is_answered_by_the_first_rule(reading: Reading, expected: Advice) -> None:
    assert advice(reading) is expected


@pytest.mark.parametrize(("share", "expected"), [(100, Advice.GO_ON), (51, Advice.GO_ON)])
def test_who_never_waits_for_others_does_not(share: int, expected: Advice) -> None:
    config = configured("window", pressure_max_percent=100)
    assert advice(Reading(config, others_busy_percent=share)) is expected


def test_every_rule_has_answered_something() -> None:
    telling: tuple[dict[str, Any], ...] = (
        {"maintenance": "scrub"},
        {"paused_us": PATIENCE_US + 1},
        {"flush_due": True},
        {"intake_delay_us": MOST_US + 1},
        {"others_busy_percent": 100},
    )
    answering = [[rule for rule in RULES if rule(CALM._replace(**words)) is not None] for words in telling]
    assert [rules for rules in answering if len(rules) != 1] == []
    assert {rules[0] for rules in answering} == set(RULES)
