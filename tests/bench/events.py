# SPDX-License-Identifier: LGPL-2.1-or-later
"""What one event costs the service: a file that comes or goes next to 100, 1,000 and 10,000 others.

    sudo python -m tests.bench.events
    sudo python -m tests.bench.events --files 1000

A service on a private system bus watches a directory with so many archives that are as they should
be, PER_DIRECTORY at most in each instance's, the first of which is remote/. An archive is made there,
and deleted; each is one look, and the service is idle when the next begins. Beside it what a look at
everything takes: a directory that is moved in or out, one look each. CPU is that of the whole process,
divided by the number of looks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from journalkeeper.probe.scratch_volume import ScratchVolume
from tests import bus as beds
from tests.bench.figures import Figure, at_most, need_a_bed, parser, show
from tests.bus import PrivateBus
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put_empty
from tests.trust.services import Quiet, quiet

PER_DIRECTORY = 7000
"""Fewer than are looked at in one directory (layout.MOST_FILES)."""

EVENT_US = 15.0
"""CPU of an event for each file that is there, in microseconds: 15 ms with 1,000 files, 150 ms with 10,000."""

LEAST_MS = 10.0
"""What an event may take however few files are there."""

MEMORY_MIB = 96

REST_S = 0.6
"""Until the signals of a look are sent (signals.COALESCE_S)."""

CALM_S = 0.02
PATIENCE_S = 600.0
SETTLE_S = 3
CONFIG = f"[Watch]\nSettleSec={SETTLE_S}s\nNocowSettleSec={SETTLE_S}s\n"


class Cost(NamedTuple):
    """What the service used with so many files: CPU for each event and each whole look, and its peak of memory."""

    files: int
    event_ms: float
    whole_ms: float
    peak_mib: float


def fill(top: Path, files: int) -> Path:
    """Make so many archives; the directory of the first."""
    remote = top / "remote"
    for number in range(files):
        place = number // PER_DIRECTORY
        directory = top / f"{MACHINE}.n{place}" if place else remote
        directory.mkdir(parents=True, exist_ok=True)
        put_empty(directory / archive_name(number, "remote-host"))
    return remote


def cpu_ms(service: Quiet, looks: int, here: int, steps: tuple[Callable[[], object], ...]) -> float:
    """CPU for each of so many looks: by turns, one step makes a file more than `here`, and the other takes it away."""
    before_s = service.cpu_s()
    for number in range(looks):
        more = 1 - number % 2
        steps[number % 2]()
        if not service.eventually(partial(_sees, service, here + more), PATIENCE_S):
            raise RuntimeError(f"no look saw {here + more} files: {service.lines}")
        time.sleep(REST_S)
    return (service.cpu_s() - before_s) * 1000 / looks


def calm(service: Quiet) -> None:
    """Until it does nothing: the first look is followed by a signal for each file."""
    before_s = -1.0
    while service.cpu_s() - before_s > CALM_S:
        before_s = service.cpu_s()
        time.sleep(1)


def _sees(service: Quiet, files: int) -> bool:
    return service.files() == files


def measure(files: int, events: int, wholes: int, bus: PrivateBus) -> Cost:
    """One service beside so many files."""
    with ScratchVolume("4G") as volume:
        top = volume.mountpoint / "journal"
        remote = fill(top, files)
        new, away, there = (
            remote / archive_name(files, "remote-host"),
            volume.mountpoint / "away",
            top / f"{MACHINE}.late",
        )
        away.mkdir()
        put_empty(away / archive_name(files + 1, "remote-host"))
        os.sync()
        time.sleep(SETTLE_S)
        with quiet(volume.base, top, config=CONFIG, bus=bus.address) as service:
            comes_and_goes = partial(put_empty, new), new.unlink
            calm(service)
            cpu_ms(service, 2, files, comes_and_goes)
            event_ms = cpu_ms(service, events, files, comes_and_goes)
            whole_ms = cpu_ms(service, wholes, files, (partial(away.rename, there), partial(there.rename, away)))
            return Cost(files, event_ms, whole_ms, service.peak_kib() / 1024)


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--files", type=int, nargs="+", default=[100, 1000, 10_000], help="(default: %(default)s)")
    words.add_argument("--events", type=int, default=20, help="of each number of files (default: %(default)s)")
    words.add_argument("--wholes", type=int, default=2, help="looks at everything (default: %(default)s)")
    asked = words.parse_args()
    need_a_bed(words)
    if reason := beds.missing():
        words.exit(1, f"{words.prog}: {reason}\n")
    with PrivateBus() as bus:
        costs = [measure(files, asked.events, asked.wholes, bus) for files in asked.files]
    figures: list[Figure] = []
    for cost in costs:
        limit_ms = max(LEAST_MS, cost.files * EVENT_US / 1000)
        figures += [
            at_most(f"{cost.files:,} files: CPU of an event, ms", cost.event_ms, limit_ms),
            Figure(f"{cost.files:,} files: CPU of a look at everything, ms", f"{cost.whole_ms:.3g}"),
            at_most(f"{cost.files:,} files: most resident, MiB", cost.peak_mib, MEMORY_MIB),
        ]
    show("What an event costs", [f"{asked.events} events, {asked.wholes} looks at everything"], figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
