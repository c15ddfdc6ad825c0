# SPDX-License-Identifier: LGPL-2.1-or-later
"""Made-up evidence of a host that was examined completely and on which no rule finds anything."""

from __future__ import annotations

from typing import Any

from journalkeeper.config import Config
from journalkeeper.health.evidence import Boot, Evidence, Intake, Journal, Look, Present, Recorded, Storage, Unit
from journalkeeper.model import GIB, Extents, Instance, JournalFile, Kind
from journalkeeper.model.manager import Manager
from journalkeeper.model.run import Counters
from journalkeeper.model.units import DAY_US, MINUTE_US, SECOND_US
from tests.hosts import DIRECTORY, NOW_US, file, host, instance, volume

UNITS = (
    Unit("journalkeeper.service", "active", "running", "enabled", "success"),
    Unit("journalkeeper.timer", "active", "elapsed", "enabled"),
    Unit("journalkeeper-defrag.timer", "inactive", "dead", "disabled"),
)
STORAGE = Storage("auto", persistent_directory=True, flushed=True)


def look(*files: JournalFile, foreign: tuple[str, ...] = (), **words: Any) -> Look:
    """Return a look at these files on a volume with free space; `words` are fields of the Host."""
    return Look(host(*files, volumes=(volume(unallocated_bytes=10 * GIB),))._replace(**words), foreign=foreign)


def intake(number: int = 1000, wait_us: int = 500, unit: str = "cron.service") -> tuple[Intake, ...]:
    """Return messages at intervals of a second, all with the same wait."""
    return tuple(Intake(NOW_US - (number - n) * SECOND_US, wait_us, unit) for n in range(number))


def boots(number: int = 5, userspace_s: float = 10, flush_s: float | None = 0.1) -> tuple[Boot, ...]:
    """Return the last boots, one a day."""
    flush_us = None if flush_s is None else round(flush_s * 1e6)
    return tuple(
        Boot(f"{n:032x}", NOW_US - (number - n) * DAY_US, round(userspace_s * 1e6), flush_us) for n in range(number)
    )


def journal(**words: Any) -> Journal:
    """Return a journal of 1,000 entries that was read to its beginning; `words` replace fields."""
    oldest_us = NOW_US - 10 * DAY_US
    plain = Journal(1000, oldest_us, complete=True, intake=intake(), boots=boots())
    return plain._replace(**words)


def recorded(**words: Any) -> Recorded:
    """Return the history of a host without work; `words` replace fields."""
    return Recorded((), (), None, (), counters=Counters(since_us=NOW_US - 30 * DAY_US))._replace(**words)


def archives(number: int = 8, ratio: float = 6.0, hours: float = 24, **words: Any) -> tuple[JournalFile, ...]:
    """Return an active file, and compacted archives of 32 MiB of which each covers `hours`."""
    plain = file()
    found = [file(Kind.ACTIVE, head_time_us=NOW_US - MINUTE_US, tail_time_us=NOW_US)]
    for n in range(number):
        head_us = NOW_US - round((number - n) * hours * 60) * MINUTE_US
        archive = plain._replace(
            path=f"{DIRECTORY}/system@{'0' * 32}-{n:016x}-{n:016x}.journal",
            inode=1000 + n,
            disk_bytes=round(plain.allocated_bytes / ratio),
            extents=Extents(256, plain.size_bytes, encoded_bytes=plain.size_bytes),
            head_time_us=head_us,
            tail_time_us=head_us + round(hours * 60) * MINUTE_US,
        )
        found.append(archive._replace(**words))
    return tuple(found)


def limits(**words: Any) -> Instance:
    """Return the main instance of this machine, with 512 MiB for its journal; `words` replace fields."""
    sizes = {"system_max_use_bytes": GIB // 2, "system_keep_free_bytes": GIB, "system_max_file_size_bytes": GIB // 16}
    return instance(rotatable=True, available_bytes=100 * GIB, **sizes)._replace(**words)


def evidence(**words: Any) -> Evidence:
    """Return the evidence of a healthy host; `words` replace whole parts."""
    seen = look(*archives(ratio=1.05), instances=(limits(),))
    parts = (seen, Config(), recorded(), journal(), UNITS, STORAGE)
    live = Manager(state="idle", state_reason="", health="ok", health_reasons=[])
    plain = Evidence(NOW_US, *parts, live, Present(), unwritable=(), silent=(), full=())
    return plain._replace(**words)
