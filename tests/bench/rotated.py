# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""Measure the disk usage of archives that a running journald rotated by itself, after they were compacted.

    sudo python -m tests.bench.rotated
    sudo python -m tests.bench.rotated --archives 200

On a scratch btrfs (datacow) for each SystemMaxFileSize=, with and without flushes, a private journald is written to
until it has archived files of its own accord, which it keeps open. `journalkeeper defrag --now` compacts half of them,
and `journalkeeper daemon` the other half, with all in memory and with nothing. compsize(8) counts disk bytes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from journalkeeper.history.store import Record
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.bed import ARCHIVED, Bed, bed, messages, read_state
from journalkeeper.probe.scratch_volume import run
from tests.bench.figures import Option, at_most, count_is, engine, parser, show, start
from tests.bench.service import DATACOW, INSIDE, STATE, serving
from tests.daemon import Daemon
from tests.patience import eventually
from tests.volumes import disk_bytes, drop_caches

LIMIT = 0.35
FLUSH_EVERY, AT_ONCE = 200, 50
PATIENCE_S = 120.0
CONFIG = f"{DATACOW}[Watch]\nSettleSec=2s\n[Window]\nPressureMax=100%\n[Budget]\nBytesPerDay=infinity\n"
"""The defaults, except that the service waits for less, and for no other load of this machine."""


class Case(NamedTuple):
    """One kind of archive: SystemMaxFileSize=, whether journald flushes, and whether the file is out of memory."""

    max_file_size: str
    flushes: bool
    cold: bool

    def __str__(self) -> str:
        flushes = "flushes" if self.flushes else "no flush"
        return f"{self.max_file_size}, {flushes}, {'cold' if self.cold else 'warm'}"


class Found(NamedTuple):
    """One archive: its disk bytes before and after, for each byte of its size, and its outcome in the history."""

    before: float
    after: float
    outcome: str


def list_archives(place: Bed) -> set[Path]:
    """Return the archives that journald has finished."""
    return {path for path in place.journald.journal.glob("system@*.journal") if read_state(path) == ARCHIVED}


def rotate(place: Bed, case: Case) -> Iterator[Path]:
    """Write messages without end; yield each archive as soon as journald has made it."""
    known = list_archives(place)
    for number, fields in enumerate(messages(), start=1):
        place.journald.log(fields.pop("MESSAGE"), **fields)
        if case.flushes and number % FLUSH_EVERY == 0:
            place.journald.sync()
        if number % AT_ONCE == 0:
            fresh = list_archives(place) - known
            known |= fresh
            yield from sorted(fresh)


def read_outcome(state: Path, path: str) -> str:
    """Return the last outcome of the file in the history; "" if there is none."""
    try:
        with Record(state, read_only=True) as record:
            entries = record.history([path])
    except KeeperError:  # the history does not exist yet
        return ""
    return f"{entries[-1].outcome.result} {entries[-1].outcome.detail}".strip() if entries else ""


def compact(place: Bed, case: Case, path: Path, *, service: Daemon | None = None) -> Found:
    """Compact one archive by a command, or wait for the `service`, and measure it before and after.

    If the service does not compact the archive in time, print its status and its log.
    """
    size_bytes, before = path.stat().st_size, disk_bytes(path)
    if case.cold:
        drop_caches()
    if service is not None:
        state, name = place.directory / STATE, f"{INSIDE}/{path.parent.name}/{path.name}"
        if not eventually(lambda: read_outcome(state, name).startswith("done"), PATIENCE_S, pause_s=0.2):
            print(f"{path.name} (state {read_state(path)}) is not done: {service.status}\n{service.log()[-2000:]}")
    else:
        state, name = place.volume.base / STATE, os.fspath(path)
        run(*engine("defrag", "--now", name))
    return Found(before / size_bytes, disk_bytes(path) / size_bytes, read_outcome(state, name))


def measure(case: Case, number: int) -> list[Found]:
    """Make so many archives of one kind; the command compacts one half, the service the other."""
    limit = f"SystemMaxFileSize={case.max_file_size}"
    with bed(limit, "SystemMaxUse=6G", "SystemKeepFree=1M", "SystemMaxFiles=1000", size="8G") as place:
        os.environ["STATE_DIRECTORY"] = os.fspath(place.volume.base / STATE)
        fresh = rotate(place, case)
        found = [compact(place, case, path) for path in itertools.islice(fresh, (number + 1) // 2)]
        with serving(place, CONFIG) as service:
            found += [compact(place, case, path, service=service) for path in itertools.islice(fresh, number // 2)]
    return found


OPTIONS = {
    "archives": Option(40, "in all, at least two of each kind"),
    "sizes": Option(["8M", "16M", "32M", "64M", "128M"], "SystemMaxFileSize=", kind=str, many=True),
}


def main() -> None:
    """Measure, and print the table."""
    asked = start(parser(__doc__, OPTIONS))
    cases = [Case(*one) for one in itertools.product(asked.sizes, (False, True), (False, True))]
    found: list[Found] = []
    notes = []
    for case in cases:
        some = measure(case, max(2, -(-asked.archives // len(cases))))
        found += some
        ratios = ", ".join(f"{one.after:.2f}" for one in some)
        notes.append(f"{case}: disk bytes / size before at most {max(one.before for one in some):.2f}, after {ratios}")
        notes += [f"  {one.outcome}" for one in some if one.outcome != "done"]
    figures = [
        at_most("disk bytes / size, worst", max(one.after for one in found), LIMIT),
        count_is("archives larger than before", sum(one.after > one.before for one in found), 0),
        count_is("archives not done", sum(not one.outcome.startswith("done") for one in found), 0),
    ]
    show(f"{len(found)} archives rotated by journald itself", notes, figures)


if __name__ == "__main__":
    main()
