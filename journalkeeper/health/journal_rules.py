# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rules on journald's own messages: lost messages, a journald that ended by itself, boots that waited for it."""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import Final

from journalkeeper.health.evidence import Boot, Evidence, Journal, Unknown
from journalkeeper.health.finding import Facts, Finding, Severity, list_names, require
from journalkeeper.health.service_rules import is_up
from journalkeeper.model.units import DAY_US, SECOND_US, counted, format_span

RECENT_US: Final = 7 * DAY_US
"""Older events are ignored: they are over, or they happen again."""

KERNEL: Final = "kernel"
"""The unit name for missed kernel messages."""

JOURNALD: Final = "systemd-journald"

KEEPERS: Final = ("journalkeeper.service", "journalkeeper-shutdown.service")
"""The units that shorten boots."""

BOOTS: Final = 5
SLOW_BOOTS: Final = 3
SLOW_SHARE: Final = 0.2
SLOW_US: Final = SECOND_US
"""A flush of less than a second does not delay a boot noticeably, whatever its share of the boot."""


def dropped(evidence: Evidence) -> Finding | Unknown | None:
    """Messages of the last week never reached the journal, because of a unit's rate limit or a full kernel buffer."""
    journal = require(evidence.journal)
    lost: Counter[str] = Counter()
    for one in journal.dropped:
        if one.when_us >= evidence.now_us - RECENT_US:
            lost[one.unit] += one.messages
    if not lost:
        return _check_reach(evidence, journal)
    worst = lost.most_common()
    units = [f"{unit} {number:,}" for unit, number in worst]
    sentence = f"{counted(lost.total(), 'message')} of the last week never reached the journal: {list_names(units)}."
    remedy = [
        f"systemctl edit {quote(unit)}   # [Service] LogRateLimitBurst={max(10_000, 2 * number)}"
        for unit, number in worst[:3]
        if unit != KERNEL
    ]
    if KERNEL in lost:
        remedy.append("dmesg --buffer-size 4194304   # for good: log_buf_len=4M on the kernel's command line")
    facts: Facts = {
        "messages": lost.total(),
        "units": [unit for unit, _ in worst],
        "by_unit": [str(n) for _, n in worst],
    }
    return Finding("dropped", Severity.PROBLEM, facts, sentence, tuple(remedy))


def journald_ended(evidence: Evidence) -> Finding | Unknown | None:
    """journald crashed or was killed, for example by its watchdog: messages that it had not written are lost."""
    journal, units = evidence.journal, evidence.units
    ended = [] if isinstance(journal, Unknown) else journal.ended
    recent = [one for one in ended if one.when_us >= evidence.now_us - RECENT_US]
    journalds = [] if isinstance(units, Unknown) else [unit for unit in units if unit.name.startswith(JOURNALD)]
    restarts = sum(unit.restarts for unit in journalds)
    if not recent and not restarts:
        journal = require(journal)
        require(units)
        return _check_reach(evidence, journal)
    results = sorted({one.result for one in recent} | {unit.result for unit in journalds if unit.result != "success"})
    number = max(len(recent), restarts)
    why = f" ({list_names(results)})" if results else ""
    times = "once" if number == 1 else f"{number} times"
    sentence = (
        f"journald ended by itself {times} {'in the last week' if recent else 'in this boot'}{why}: messages"
        " that it had not written are lost, and programs that log had to wait."
    )
    remedy = ("journalctl -u systemd-journald -p warning --since=-7d", "coredumpctl info systemd-journald")
    facts: Facts = {"ended": number, "results": results, "restarts_this_boot": restarts}
    return Finding("journald-ended", Severity.PROBLEM, facts, sentence, remedy)


def slow_boot(evidence: Evidence) -> Finding | Unknown | None:
    """Boots since the installation wait for the journal: its flush takes more than a fifth of them."""
    journal, counters = require(evidence.journal), require(evidence.record).counters
    since_us = None if counters is None else counters.since_us
    boots = [boot for boot in journal.boots if since_us is not None and boot.first_us >= since_us]
    timed = [boot for boot in boots if boot.userspace_us and boot.waited_us is not None][-BOOTS:]
    slow = [boot for boot in timed if _is_slow(boot)]
    if len(slow) < SLOW_BOOTS:
        if len(timed) < SLOW_BOOTS:
            return Unknown(f"needs {SLOW_BOOTS} boots with known times since the installation; there are {len(timed)}")
        return None
    worst_us = max(boot.waited_us or 0 for boot in slow)
    sentence = (
        f"{len(slow)} of the last {counted(len(timed), 'boot')} waited for the journal, up to"
        f" {format_span(worst_us, 100_000)} and more than {SLOW_SHARE:.0%} of the time that they took."
    )
    facts: Facts = {
        "boots": len(timed),
        "slow_boots": len(slow),
        "worst_flush_us": worst_us,
        "its_userspace_us": max((boot.waited_us or 0, boot.userspace_us or 0) for boot in slow)[1],
    }
    units = () if isinstance(evidence.units, Unknown) else evidence.units
    idle = [unit.name for unit in units if unit.name in KEEPERS and unit.active != "active"]
    idle = idle[is_up(units) and KEEPERS[0] in idle :]
    remedy = f"systemctl enable --now {' '.join(idle)}" if idle else "journalkeeper plan"
    return Finding("slow-boot", Severity.PROBLEM, facts, sentence, (remedy,))


def _is_slow(boot: Boot) -> bool:
    flush_us, userspace_us = boot.waited_us or 0, boot.userspace_us or 0
    return flush_us >= SLOW_US and flush_us > SLOW_SHARE * userspace_us


def _check_reach(evidence: Evidence, journal: Journal) -> Unknown | None:
    """Return Unknown if journald's own entries that were read do not cover the time since RECENT_US, else None."""
    oldest_us = journal.events_oldest_us
    if journal.events_complete or oldest_us is None or oldest_us <= evidence.now_us - RECENT_US:
        return None
    reach = format_span(evidence.now_us - oldest_us)
    return Unknown(f"only the last {journal.events:,} entries of journald itself were read, {reach}")
