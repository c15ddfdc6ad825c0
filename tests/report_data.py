# SPDX-License-Identifier: LGPL-2.1-or-later
"""Made-up evidence for the page and its charts: torn files, slow boots before the installation, and past actions."""

from __future__ import annotations

from typing import Any

from journalkeeper.health.evidence import Evidence, Journal, Recorded, Unknown
from journalkeeper.model import JournalFile, Kind, State
from journalkeeper.model.run import Counters, HistoryEntry, Totals
from journalkeeper.model.units import DAY_US, HOUR_US
from tests import evidence as healthy
from tests import hosts
from tests.hosts import NOW_US

ACTIVE = f"{hosts.DIRECTORY}/system.journal"
ARCHIVE = f"{hosts.DIRECTORY}/system@1.journal"


def file(path: str = ACTIVE, **words: Any) -> JournalFile:
    """Return an active file of 32 MiB in 5,992 extents."""
    torn = hosts.file(Kind.ACTIVE, path=path, state=State.ONLINE, disk_bytes=51 << 20, extents=hosts.extents(5992))
    return torn._replace(head_time_us=NOW_US - 9 * DAY_US, tail_time_us=NOW_US - HOUR_US)._replace(**words)


def entry(when_us: int, path: str = ACTIVE, **words: Any) -> HistoryEntry:
    """Return the compaction of an archive."""
    done = hosts.outcome(path, disk_bytes_before=40 << 20, disk_bytes_after=5 << 20, extents_before=2110)
    return HistoryEntry(when_us, "daemon", done._replace(bytes_written=8 << 20)._replace(**words))


def journal() -> Journal:
    """Return a journal with one boot a day: eleven slow boots, then nine fast ones, one of them without times."""
    known = list(healthy.boots(20, userspace_s=1.8, flush_s=0.8))
    known[:11] = healthy.boots(20, userspace_s=20, flush_s=15)[:11]
    known[17] = known[17]._replace(userspace_us=None, flush_us=None)
    return healthy.journal(boots=tuple(known), complete=False)


def recorded(days: int = 10) -> Recorded:
    """Return a history of so many days, with extents that grow and are removed each morning."""
    times = range(NOW_US - days * DAY_US + HOUR_US, NOW_US, HOUR_US)
    totals = []
    for number, when_us in enumerate(times):
        torn = number % 24 * 55
        totals.append(Totals(when_us, "main", 20, 940 + torn, 600, torn, 200 << 20, 170 << 20))
    entries = tuple(map(entry, times[::24]))
    return healthy.recorded(entries=entries, totals=tuple(totals), counters=Counters(since_us=times[0]))


def evidence(**changes: Any) -> Evidence:
    """Return the evidence of a host whose journal has been kept for ten of its twenty days."""
    files = healthy.look(file(), file(ARCHIVE, kind=Kind.ARCHIVED))
    return healthy.evidence(look=files, record=recorded(), journal=journal())._replace(**changes)


def nothing() -> Evidence:
    """Return evidence of which no part could be collected."""
    why = Unknown("only root may read it")
    return Evidence(NOW_US, why, why, why, why, why, why, why, why)
