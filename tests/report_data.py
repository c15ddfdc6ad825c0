# SPDX-License-Identifier: LGPL-2.1-or-later
"""Evidence as a host would give it, for the page and its charts: small, large, hostile, and with nothing known."""

from __future__ import annotations

import random
from typing import Any

from journalkeeper.health.evidence import Boot, Evidence, Intake, Journal, Look, Recorded, Unknown
from journalkeeper.model import Action, Host, JournalFile, Kind, Plan, Reason, Skip, State, Verb
from journalkeeper.model.recorded import Counters, Entry, Totals
from journalkeeper.model.units import DAY_US, HOUR_US
from tests import hosts

NOW_US = 1_795_348_800_000_000
"""2026-11-22 12:00 UTC."""

ACTIVE = "/var/log/journal/4f3a0c2d9e8b4f1d8f6b2f0a1c3d5e7f/system.journal"


def file(path: str = ACTIVE, **words: Any) -> JournalFile:
    """An active file of 32 MiB in 5,992 extents."""
    plain = {
        "kind": Kind.ACTIVE,
        "path": path,
        "instance": "4f3a0c2d9e8b4f1d8f6b2f0a1c3d5e7f",
        "state": State.ONLINE,
        "disk_bytes": 51 << 20,
        "extents": hosts.extents(5992),
        "head_time_us": NOW_US - 9 * DAY_US,
        "tail_time_us": NOW_US - HOUR_US,
        "mtime_ns": (NOW_US - HOUR_US) * 1000,
        "ctime_ns": (NOW_US - HOUR_US) * 1000,
    }
    return hosts.file(**{**plain, **words})


def entry(when_us: int, path: str = ACTIVE, **words: Any) -> Entry:
    """A rotated file's archive, compacted."""
    plain = {
        "extents_before": 2110,
        "disk_bytes_before": 40 << 20,
        "disk_bytes_after": 5 << 20,
        "bytes_written": 8 << 20,
    }
    return Entry(when_us, "daemon", hosts.outcome(path, **{**plain, **words}))


def journal(boots: int = 20, kept_from: int = 11, messages: int = 3000) -> Journal:
    """Boots a day apart, slower each until one is kept; the third from the end has no finish message."""
    random_ = random.Random(7)  # noqa: S311 - the same numbers each time
    known = []
    for number in range(boots):
        kept = number >= kept_from
        userspace_us = 1_700_000 + random_.randrange(200_000) if kept else 4_000_000 + 2_400_000 * number
        boot = Boot(
            boot_id=f"{number:032x}",
            first_us=NOW_US - (boots - number) * DAY_US,
            userspace_us=userspace_us,
            flush_us=userspace_us * 6 // 10 - 300_000,
        )
        known.append(boot if number != boots - 3 else boot._replace(userspace_us=None, flush_us=None))
    intake = tuple(
        Intake(
            NOW_US - int(random_.random() * 30 * HOUR_US),
            int(random_.lognormvariate(5.5, 1.6)),
            random_.choice(["sshd.service", "cron.service", "nginx.service"]),
        )
        for _ in range(messages)
    )
    return Journal(
        entries=messages * 2,
        oldest_us=NOW_US - 30 * HOUR_US,
        complete=False,
        intake=tuple(sorted(intake)),
        boots=tuple(known),
    )


def recorded(days: int = 10, every_us: int = HOUR_US) -> Recorded:
    """A record of so many days: extents that grow and are taken back each morning."""
    times = range(NOW_US - days * DAY_US + HOUR_US, NOW_US, every_us)
    totals, entries = [], []
    for number, when_us in enumerate(times):
        torn = 40 + number % 24 * 55
        size = (200 << 20) + number * (300 << 10)
        totals.append(Totals(when_us, "main", 20 + number // 24, 900 + torn, 600, torn, size, size - (30 << 20)))
        if number % 24 == 0:
            entries.append(entry(when_us, bytes_written=(6 + number % 5) << 20))
    counters = Counters(since_us=times[0] if times else NOW_US)
    return Recorded(tuple(entries), tuple(totals), None, (), counters=counters)


def plan() -> Plan:
    """One action and some files that are fine."""
    archive = file(f"{ACTIVE[:-8]}@1.journal", kind=Kind.ARCHIVED, state=State.ARCHIVED)
    action = Action(
        archive.path,
        Verb.COMPRESS,
        Reason.FRAGMENTED,
        archive,
        (),
        32 << 20,
        5992,
        256,
        "zstd",
        read_seconds_saved=38.2,
    )
    fine = [Skip(f"{ACTIVE[:-8]}@{number}.journal", Reason.RECORDED, "rewritten before") for number in range(2, 9)]
    return Plan((), (action,), (*fine, Skip(ACTIVE, Reason.WINDOW_CLOSED, "", NOW_US + 60_000_000, now=True)))


def evidence(**changes: object) -> Evidence:
    """A host whose journal is kept since ten days, of twenty."""
    host = Host(NOW_US, (file(), file(f"{ACTIVE[:-8]}@1.journal", kind=Kind.ARCHIVED)), (), (), {}, 0)
    why = Unknown("not looked at here")
    whole = Evidence(NOW_US, Look(host), plan(), why, recorded(), journal(), why, why, why)
    return whole._replace(**changes)  # type: ignore[arg-type]


def nothing() -> Evidence:
    """Nothing could be looked at."""
    why = Unknown("only root may read it")
    return Evidence(NOW_US, why, why, why, why, why, why, why, why)
