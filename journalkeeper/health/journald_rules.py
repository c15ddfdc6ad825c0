# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rules on journald and on the machine below it: every public function is a rule.

They are about lost messages, a journald that ended by itself, waits for journald, and versions with known faults.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from shlex import quote
from typing import Final

from journalkeeper.health.evidence import SERVICE, Evidence, Journal, Unknown, is_up
from journalkeeper.health.finding import Answer, Facts, advice, list_names, problem, require
from journalkeeper.model.units import DAY_US, SECOND_US, counted, format_span, quantile

ZEROING: Final = frozenset({252, 253})
"""systemd versions whose copy of a NOCOW archive can hold zeros: systemd #24150 and #31222."""

QUEUE: Final = 512
"""The value of net.unix.max_dgram_qlen that PID 1 sets on a host (systemd, bump_unix_max_dgram_qlen())."""

RECENT_US: Final = 7 * DAY_US
"""Older events are ignored: they are over, or they happen again."""

KERNEL: Final = "kernel"
"""The unit name for missed kernel messages."""

JOURNALD: Final = "systemd-journald"

ENOUGH: Final = 100
"""A smaller number of messages has no meaningful 99th percentile."""

LATE_US: Final = 500_000
"""Programs that log notice a wait of this length at every hundredth message; one flush every five minutes does not
cause it.
"""

STALLED_US: Final = 3_000_000
"""A wait beyond that of an ordinary flush, which took 0.8 to 2.3 s at 500 IOPS (measured)."""

WORST_UNITS: Final = 3

KEEPERS: Final = (SERVICE, "journalkeeper-shutdown.service")
"""The units that shorten boots."""

BOOTS: Final = 5
SLOW_BOOTS: Final = 3
SLOW_SHARE: Final = 0.2
SLOW_US: Final = SECOND_US
"""A flush of less than a second does not delay a boot noticeably, whatever its share of the boot."""


def faulty_systemd(evidence: Evidence) -> Iterator[Answer]:
    """This version of systemd can archive a NOCOW file as zeros."""
    version = require(require(evidence.system).systemd)
    major = re.match(r"\d+", version)
    if major is None:
        yield Unknown(f"systemd's version {version!r} is not understood")
    elif int(major[0]) in ZEROING and any(one.nocow for one in require(evidence.look).host.instances):
        yield advice(
            {"systemd": version},
            f"systemd {version} copies a NOCOW file when it archives it, and after a crash at that moment the copy"
            " can hold zeros (systemd #24150, #31222); 254 has it mended.",
            "journalctl --verify",
        )


def dropped(evidence: Evidence) -> Iterator[Answer]:
    """Messages of the last week never reached the journal, because of a unit's rate limit or a full kernel buffer."""
    journal = require(evidence.journal)
    lost: Counter[str] = Counter()
    for one in journal.dropped:
        if one.when_us >= evidence.now_us - RECENT_US:
            lost[one.unit] += one.messages
    if lost:
        worst = lost.most_common()
        units = [f"{unit} {number:,}" for unit, number in worst]
        remedy = [
            f"systemctl edit {quote(unit)}   # [Service] LogRateLimitBurst={max(10_000, 2 * number)}"
            for unit, number in worst[:3]
            if unit != KERNEL
        ]
        if KERNEL in lost:
            remedy.append("dmesg --buffer-size 4194304   # for good: log_buf_len=4M on the kernel's command line")
        by_unit = [str(number) for _, number in worst]
        yield problem(
            {"messages": lost.total(), "units": [unit for unit, _ in worst], "by_unit": by_unit},
            f"{counted(lost.total(), 'message')} of the last week never reached the journal: {list_names(units)}.",
            *remedy,
        )
    yield from _find_unread_events(evidence, journal)


def journald_ended(evidence: Evidence) -> Iterator[Answer]:
    """journald crashed or was killed, for example by its watchdog: messages that it had not written are lost."""
    journal = evidence.journal
    ended = () if isinstance(journal, Unknown) else journal.ended
    recent = [one for one in ended if one.when_us >= evidence.now_us - RECENT_US]
    units = () if isinstance(evidence.units, Unknown) else evidence.units
    journalds = [unit for unit in units if unit.name.startswith(JOURNALD)]
    restarts = sum(unit.restarts for unit in journalds)
    if number := max(len(recent), restarts):
        results = sorted({one.result for one in recent} | {unit.result for unit in journalds} - {"success"})
        why = f" ({list_names(results)})" if results else ""
        times = "once" if number == 1 else f"{number} times"
        yield problem(
            {"ended": number, "results": results, "restarts_this_boot": restarts},
            f"journald ended by itself {times} {'in the last week' if recent else 'in this boot'}{why}: messages"
            " that it had not written are lost, and programs that log had to wait.",
            "journalctl -u systemd-journald -p warning --since=-7d",
            "coredumpctl info systemd-journald",
        )
    require(evidence.units)
    yield from _find_unread_events(evidence, require(journal))


def _find_unread_events(evidence: Evidence, journal: Journal) -> Iterator[Unknown]:
    """Yield Unknown if journald's own entries that were read do not cover the time since RECENT_US."""
    oldest_us = journal.events_oldest_us
    if not journal.events_complete and oldest_us is not None and oldest_us > evidence.now_us - RECENT_US:
        reach = format_span(evidence.now_us - oldest_us)
        yield Unknown(f"only the last {journal.events:,} entries of journald itself were read, {reach}")


def waits(evidence: Evidence) -> Iterator[Answer]:
    """Messages wait long for journald, and with them, once its queue is full, the programs that send them."""
    intake = require(evidence.journal).intake
    if len(intake) < ENOUGH:
        found = f"the journal has {len(intake)}"
        yield Unknown(f"needs {ENOUGH} messages with the time when they were sent; {found}")
    longest: Counter[str] = Counter()
    for one in intake:
        longest[one.unit] = max(one.wait_us, longest[one.unit])
    units = sorted(longest.items(), key=lambda pair: (-pair[1], pair[0]))[:WORST_UNITS]
    delays = sorted(one.wait_us for one in intake)
    p99_us, worst_us = quantile(delays, 990), delays[-1]
    names = [f"{unit or 'no unit'} {format_span(us, 1000)}" for unit, us in units]
    facts: Facts = {
        "messages": len(delays),
        "p99_us": p99_us,
        "worst_us": worst_us,
        "units": [unit for unit, _ in units],
        "units_worst_us": [str(us) for _, us in units],
    }
    if p99_us >= LATE_US or worst_us >= STALLED_US:
        yield (problem if p99_us >= LATE_US else advice)(
            facts,
            f"Intake delay p99 {format_span(p99_us, 1000)}, worst {format_span(worst_us, 1000)}, of"
            f" {len(delays):,} messages; longest: {list_names(names)}.",
            "journalkeeper scan",
            "journalkeeper plan",
        )


def short_queue(evidence: Evidence) -> Iterator[Answer]:
    """The queue of journald's sockets is short: loggers block while journald waits for the disk."""
    length = require(evidence.system).max_dgram_qlen
    if length is None:
        yield Unknown("the kernel does not show net.unix.max_dgram_qlen")
    elif length < QUEUE:
        setting = f"net.unix.max_dgram_qlen={QUEUE}"
        yield advice(
            {"max_dgram_qlen": length},
            f"Only {length} messages queue at each of journald's sockets: while it waits for the disk, programs block."
            f" systemd sets {QUEUE} on a host. A socket that is open keeps its queue until the next boot.",
            f"echo {setting} > /etc/sysctl.d/50-journal-queue.conf",
            f"sysctl {setting}",
        )


def slow_boot(evidence: Evidence) -> Iterator[Answer]:
    """Boots since the installation wait for the journal: its flush takes more than a fifth of them."""
    journal, counters = require(evidence.journal), require(evidence.record).counters
    since_us = None if counters is None else counters.since_us
    boots = [boot for boot in journal.boots if since_us is not None and boot.first_us >= since_us]
    timed = [(boot.waited_us, boot.userspace_us) for boot in boots if boot.userspace_us and boot.waited_us is not None]
    timed = timed[-BOOTS:]
    slow = [one for one in timed if one[0] >= SLOW_US and one[0] > SLOW_SHARE * one[1]]
    if len(slow) >= SLOW_BOOTS:
        worst_us, whole_us = max(slow)
        units = () if isinstance(evidence.units, Unknown) else evidence.units
        idle = [unit.name for unit in units if unit.name in KEEPERS and unit.active != "active"]
        if is_up(units) and SERVICE in idle:
            idle.remove(SERVICE)
        yield problem(
            {
                "boots": len(timed),
                "slow_boots": len(slow),
                "worst_flush_us": worst_us,
                "its_userspace_us": whole_us,
            },
            f"{len(slow)} of the last {counted(len(timed), 'boot')} waited for the journal, up to"
            f" {format_span(worst_us, 100_000)} and more than {SLOW_SHARE:.0%} of the time that they took.",
            f"systemctl enable --now {' '.join(idle)}" if idle else "journalkeeper plan",
        )
    elif len(timed) < SLOW_BOOTS:
        yield Unknown(f"needs {SLOW_BOOTS} boots with known times since the installation; there are {len(timed)}")
