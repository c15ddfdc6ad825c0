# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long messages waited for journald, of those that bear the time at which they were sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from journalkeeper.health.evidence import Evidence, Intake, Unknown
from journalkeeper.health.finding import Facts, Finding, Severity, known, named
from journalkeeper.model.units import counted, format_span, quantile

ENOUGH: Final = 100
"""With fewer messages one in a hundred is none."""

LATE_US: Final = 500_000
"""Loggers that wait so long at every hundredth message feel it; a flush every five minutes alone does not do that."""

STALLED_US: Final = 3_000_000
"""An ordinary flush at 500 IOPS kept loggers for 0.8 to 2.3 s (measured)."""

WORST_UNITS: Final = 3


class Waits(NamedTuple):
    """How long `messages` waited: one in a hundred longer than `p99_us`, one `worst_us`; and the units that waited
    longest at one time, with that time."""

    messages: int
    p99_us: int
    worst_us: int
    worst_units: tuple[tuple[str, int], ...]


def waited(intake: Sequence[Intake]) -> Waits | None:
    """What is to be said of these messages, None of none."""
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
    journal = known(evidence.journal)
    found = waited(journal.intake)
    if found is None or found.messages < ENOUGH:
        messages = counted(0 if found is None else found.messages, "message")
        return Unknown(f"only {messages} of those that are kept bear the time at which they were sent")
    if found.p99_us < LATE_US and found.worst_us < STALLED_US:
        return None
    units = [f"{unit or 'no unit'} {format_span(us, 1000)}" for unit, us in found.worst_units]
    sentence = (
        f"Of {found.messages:,} messages one in a hundred waited {format_span(found.p99_us, 1000)} or more for"
        f" journald, one {format_span(found.worst_us, 1000)}; longest {named(units)}."
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
