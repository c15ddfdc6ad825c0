# SPDX-License-Identifier: LGPL-2.1-or-later
"""The time that messages waited for journald, from messages that carry the time when they were sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from journalkeeper.health.evidence import Evidence, Intake, Unknown
from journalkeeper.health.finding import Facts, Finding, Severity, list_names, require
from journalkeeper.model.units import format_span, quantile

ENOUGH: Final = 100
"""A smaller number of messages has no meaningful 99th percentile."""

LATE_US: Final = 500_000
"""Programs that log notice a wait of this length at every hundredth message; one flush every five minutes does not
cause it.
"""

STALLED_US: Final = 3_000_000
"""A wait beyond that of an ordinary flush, which took 0.8 to 2.3 s at 500 IOPS (measured)."""

WORST_UNITS: Final = 3


class Waits(NamedTuple):
    """The waits of `messages` messages: 99 of 100 waited at most `p99_us`, the longest `worst_us`.

    `worst_units` are the units with the longest single waits, each with that wait.
    """

    messages: int
    p99_us: int
    worst_us: int
    worst_units: tuple[tuple[str, int], ...]


def summarize_waits(intake: Sequence[Intake]) -> Waits | None:
    """Return statistics of the intake delays in `intake`, or None if it is empty."""
    if not intake:
        return None
    longest: dict[str, int] = {}
    for one in intake:
        longest[one.unit] = max(one.wait_us, longest.get(one.unit, 0))
    worst = sorted(longest.items(), key=lambda pair: (-pair[1], pair[0]))[:WORST_UNITS]
    delays = sorted(one.wait_us for one in intake)
    return Waits(len(delays), quantile(delays, 990), delays[-1], tuple(worst))


def waits(evidence: Evidence) -> Finding | Unknown | None:
    """Messages wait long for journald, and with them, once its queue is full, the programs that send them."""
    journal = require(evidence.journal)
    found = summarize_waits(journal.intake)
    if found is None or found.messages < ENOUGH:
        messages = 0 if found is None else found.messages
        return Unknown(f"needs {ENOUGH} messages with the time when they were sent; the journal has {messages}")
    if found.p99_us < LATE_US and found.worst_us < STALLED_US:
        return None
    units = [f"{unit or 'no unit'} {format_span(us, 1000)}" for unit, us in found.worst_units]
    sentence = (
        f"Intake delay p99 {format_span(found.p99_us, 1000)}, worst {format_span(found.worst_us, 1000)}, of"
        f" {found.messages:,} messages; longest: {list_names(units)}."
    )
    facts: Facts = {
        "messages": found.messages,
        "p99_us": found.p99_us,
        "worst_us": found.worst_us,
        "units": [unit for unit, _ in found.worst_units],
        "units_worst_us": [str(us) for _, us in found.worst_units],
    }
    severity = Severity.PROBLEM if found.p99_us >= LATE_US else Severity.ADVICE
    return Finding("waits", severity, facts, sentence, ("journalkeeper scan", "journalkeeper plan"))
