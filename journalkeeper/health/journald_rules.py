# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rules on journald and on the machine below it: every public function is a rule.

They are about waits for journald, and boots that wait for it. They judge the past, so they give advice only.
"""

from __future__ import annotations

from typing import Final

from journalkeeper.health.evidence import RECENT_US, Journal, Recorded, Unknown
from journalkeeper.health.finding import Answers, advice, list_names
from journalkeeper.model.manager import Facts
from journalkeeper.model.units import SECOND_US, format_span, pluralize, quantile

ENOUGH: Final = 100
"""A smaller number of messages has no meaningful 99th percentile."""

LATE_US: Final = 500_000
"""Programs that log notice a wait of this length at every hundredth message; one flush every five minutes does not
cause it.
"""

STALLED_US: Final = 3_000_000
"""A wait beyond that of an ordinary flush, which took 0.8 to 2.3 s at 500 IOPS (measured)."""

WORST_UNITS: Final = 3

BOOTS: Final = 5
SLOW_BOOTS: Final = 3
SLOW_SHARE: Final = 0.2
SLOW_US: Final = SECOND_US
"""A flush of less than a second does not delay a boot noticeably, whatever its share of the boot."""


def waits(journal: Journal, now_us: int) -> Answers:
    """Messages wait long for journald, and with them, once its queue is full, the programs that send them.

    Advice from a 99th percentile of 0.5 s or a wait of 3 s. Unknown below 100 messages with a time of sending.
    """
    recent = sorted((one for one in journal.intake if one.when_us >= now_us - RECENT_US), key=lambda one: one.wait_us)
    number = len(recent)
    if number < ENOUGH:
        span = format_span(RECENT_US)
        yield Unknown(f"needs {ENOUGH} messages with the time when they were sent; the last {span} have {number}")
        return
    longest = {one.unit: one.wait_us for one in recent}
    worst = sorted(longest.items(), key=lambda pair: (-pair[1], pair[0]))[:WORST_UNITS]
    delays = [one.wait_us for one in recent]
    p99_us, worst_us = quantile(delays, 990), delays[-1]
    if p99_us >= LATE_US or worst_us >= STALLED_US:
        names = list_names(f"{unit or 'no unit'} {format_span(wait_us, 1000)}" for unit, wait_us in worst)
        spans = f"p99 {format_span(p99_us, 1000)}, worst {format_span(worst_us, 1000)}"
        sentence = f"Messages wait long for journald: {spans}, of {number:,} messages; longest: {names}."
        units, waits_us = [unit for unit, _ in worst], [str(wait_us) for _, wait_us in worst]
        facts: Facts = {"messages": number, "p99_us": p99_us, "worst_us": worst_us}
        yield advice(
            sentence, "journalkeeper scan", "journalkeeper plan", **facts, units=units, units_worst_us=waits_us
        )


def slow_boot(journal: Journal, record: Recorded) -> Answers:
    """Boots since the installation wait for the journal: its flush takes more than a fifth of them.

    Advice if 3 or more of the last 5 boots were slow in userspace. Unknown below 3 boots with known times.
    """
    since_us = None if record.counters is None else record.counters.since_us
    boots = [boot for boot in journal.boots if since_us is not None and boot.first_us >= since_us]
    timed = [(boot.flush_us, boot.userspace_us) for boot in boots if boot.userspace_us and boot.flush_us is not None]
    timed = timed[-BOOTS:]
    slow = [one for one in timed if one[0] >= SLOW_US and one[0] > SLOW_SHARE * one[1]]
    if len(slow) >= SLOW_BOOTS:
        flush_us, whole_us = max(slow)
        waited = f"{len(slow)} of the last {pluralize(len(timed), 'boot')} waited for the journal"
        sentence = f"{waited}, up to {format_span(flush_us, 1000)} and more than {SLOW_SHARE:.0%} of the boot."
        remedy = ("systemctl status journalkeeper-shutdown.service", "journalkeeper plan")
        facts: Facts = {"boots": len(timed), "slow_boots": len(slow)}
        yield advice(sentence, *remedy, **facts, worst_flush_us=flush_us, its_userspace_us=whole_us)
    elif len(timed) < SLOW_BOOTS:
        yield Unknown(f"it needs {SLOW_BOOTS} boots since the installation (so far: {len(timed)})")
