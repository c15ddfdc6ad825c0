# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the service uses while nothing happens, and while much is logged.

    sudo python -m tests.bench.quiet                # 20 minutes: 10 idle, 10 under load
    sudo python -m tests.bench.quiet --minutes 1

A wakeup is a thread that went to sleep of its own accord (voluntary_ctxt_switches): one that
never does has not been awake. The watchdog is fed by systemd's rules for WatchdogSec=3min, and
each time it is fed is counted here and taken off. Processor time is that of the scheduler, to
the nanosecond (schedstat); memory is what is resident, read every second.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from typing import NamedTuple

from journalkeeper.lab.bed import Bed, bed
from journalkeeper.lab.load import Load
from journalkeeper.lab.volume import extents
from journalkeeper.model.units import parse_span_us
from tests.bench.figures import MIB, Figure, at_most, count_is, mib, need_a_bed, parser, show
from tests.bench.service import DATACOW, Service, add_config, age, every_second, settled, use

SETTINGS = ("SystemMaxFileSize=128M", "SystemMaxUse=2G")
SIZE = "12G"
IDLE_CPU_MS = 10
LOADED_CPU_PERCENT = 0.5
RESIDENT_BYTES = 48 * MIB
GROWTH_BYTES = 256 * 1024
"""Less than this is the allocator's business: a leak of a hundred bytes a message would be 9 MiB in 5 min."""


class Phase(NamedTuple):
    """What the service used in a while: wakeups beside the watchdog's, CPU, and its memory each second."""

    wakes: int
    cpu_s: float
    resident_bytes: list[int]


PAST_S = 3.0
"""How long after a flush is due it has been looked for."""


def observe(service: Service, seconds: float) -> Phase:
    """Watch the service for so long."""
    before, alive = use(service.pid), service.alive
    each = [use(service.pid).resident_bytes for _ in every_second(seconds)]
    after = use(service.pid)
    return Phase(after.wakes - before.wakes - (service.alive - alive), after.cpu_s - before.cpu_s, each)


def measure(asked: Namespace, place: Bed) -> tuple[Phase, Phase, Load]:
    """Idle, then under load."""
    with Service(place, DATACOW + asked.config) as service:
        age(place, asked.extents)
        settled(service)
        # The service's last line is a message, too: until its flush is past, the host is not idle.
        time.sleep(parse_span_us(asked.interval) / 1e6 + PAST_S)
        idle = observe(service, asked.minutes * 60)
        with Load(place, asked.rate) as load:
            loaded = observe(service, asked.minutes * 60)
    return idle, loaded, load


def growth_bytes(resident_bytes: list[int]) -> int:
    """By how much the last tenth of the second half is above its first tenth, by their medians."""
    half = resident_bytes[len(resident_bytes) // 2 :]
    tenth = max(1, len(half) // 10)
    return round(statistics.median(half[-tenth:]) - statistics.median(half[:tenth]))


def figures(asked: Namespace, idle: Phase, loaded: Phase) -> list[Figure]:
    """The rows that were asked for."""
    seconds = asked.minutes * 60
    return [
        count_is("idle: wakeups other than the watchdog", idle.wakes, 0),
        at_most("idle: CPU, ms", idle.cpu_s * 1000, IDLE_CPU_MS),
        Figure("loaded: wakeups a second", f"{loaded.wakes / seconds:.2f}"),
        at_most("loaded: CPU, % of one core", 100 * loaded.cpu_s / seconds, LOADED_CPU_PERCENT),
        at_most("loaded: resident at most, MiB", max(loaded.resident_bytes) / MIB, RESIDENT_BYTES / MIB),
        at_most(
            "loaded: growth in the second half, KiB", growth_bytes(loaded.resident_bytes) / 1024, GROWTH_BYTES / 1024
        ),
    ]


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--minutes", type=float, default=10, help="of each (default: %(default)s)")
    words.add_argument("--rate", type=float, default=300, help="messages a second under load (default: %(default)s)")
    words.add_argument("--extents", type=int, default=1000, help="of the file before (default: %(default)s)")
    words.add_argument("--interval", default="5min", help="SyncIntervalSec= (default: %(default)s, as journald's)")
    add_config(words)
    asked = words.parse_args()
    need_a_bed(words)
    with bed(*SETTINGS, size=SIZE, sync_interval=asked.interval) as place:
        idle, loaded, load = measure(asked, place)
        found = extents(place.journald.active)
    notes = [
        f"{asked.minutes:g} min idle: {mib(max(idle.resident_bytes))} resident",
        f"{asked.minutes:g} min of {asked.rate:g} messages/s, SyncIntervalSec={asked.interval}: {load.sent} logged, "
        f"{mib(load.sent_bytes)}; {found} extents at the end",
    ]
    show("Quiet", notes, figures(asked, idle, loaded))
    return 0


if __name__ == "__main__":
    sys.exit(main())
