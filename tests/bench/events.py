# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measure what one event costs the service: a file that is created or deleted next to many others.

    sudo python -m tests.bench.events
    sudo python -m tests.bench.events --files 1000

A service on a private system bus watches a directory with so many archives that need no work, PER_DIRECTORY at most in
each instance's, the first of which is remote/. An archive is created there, and deleted. Each is one look, and the
service is idle when the next begins. CPU is that of the whole process, divided by the number of looks.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

from journalkeeper.probe.scratch_volume import ScratchVolume
from tests import bus as beds
from tests.bench.figures import Figure, Option, at_most, parser, show, start
from tests.bench.service import settle
from tests.bus import PrivateBus
from tests.daemon import Daemon, memory_kib
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put_empty
from tests.patience import eventually

PER_DIRECTORY = 7000
"""Fewer than the service looks at in one directory (layout.MOST_FILES)."""

EVENT_US = 15.0
"""The limit of CPU of an event for each file in the directory, in microseconds: 15 ms with 1,000 files."""

LEAST_MS = 10.0
"""The limit of CPU of an event with few files."""

MEMORY_MIB = 96

REST_S = 0.6
"""The signals of a look are sent within this time (signals.COALESCE_S)."""

PATIENCE_S = 600.0
SETTLE_S = 3
CONFIG = f"[Watch]\nSettleSec={SETTLE_S}s\nNocowSettleSec={SETTLE_S}s\n"


def fill(top: Path, files: int) -> Path:
    """Make so many archives, and return the directory of the first."""
    remote = top / "remote"
    for number in range(files):
        place = number // PER_DIRECTORY
        directory = top / f"{MACHINE}.n{place}" if place else remote
        directory.mkdir(parents=True, exist_ok=True)
        put_empty(directory / archive_name(number, "remote-host"))
    return remote


def make_events(service: Daemon, events: int, files: int, path: Path) -> float:
    """Create and delete the file `path` in turn, and return the milliseconds of CPU for each event.

    Raises: RuntimeError if a look does not find the change.
    """
    before_s = service.cpu_s()
    for number in range(events):
        (partial(put_empty, path), path.unlink)[number % 2]()
        wanted = files + 1 - number % 2
        if not eventually(lambda: service.file_count() == wanted, PATIENCE_S):  # noqa: B023 - called in this turn only
            raise RuntimeError(f"no look saw {wanted} files: {service.log()}")
        time.sleep(REST_S)
    return (service.cpu_s() - before_s) * 1000 / events


def measure(files: int, events: int, bus: PrivateBus) -> tuple[float, float]:
    """Run a service next to so many files, and return its CPU in ms for each event, and its peak memory in MiB."""
    with ScratchVolume("4G") as volume:
        top = volume.mountpoint / "journal"
        path = fill(top, files) / archive_name(files, "remote-host")
        os.sync()
        time.sleep(SETTLE_S)
        with Daemon(volume.base / "service", top, bus, CONFIG) as service:
            service.ready()
            settle(service)
            make_events(service, 2, files, path)
            return make_events(service, events, files, path), memory_kib(service.pid, "VmHWM") / 1024


OPTIONS = {
    "files": Option([100, 1000, 10_000], "in the directory", kind=int, many=True),
    "events": Option(20, "of each number of files"),
}


def main() -> None:
    """Measure, and print the table."""
    asked = start(parser(__doc__, OPTIONS), beds.missing)
    figures: list[Figure] = []
    with PrivateBus() as bus:
        for files in asked.files:
            event_ms, peak_mib = measure(files, asked.events, bus)
            figures += [
                at_most(f"{files:,} files: CPU of an event, ms", event_ms, max(LEAST_MS, files * EVENT_US / 1000)),
                at_most(f"{files:,} files: most resident, MiB", peak_mib, MEMORY_MIB),
            ]
    show("What an event costs", [f"{asked.events} events"], figures)


if __name__ == "__main__":
    main()
