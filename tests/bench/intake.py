# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long loggers wait for journald on a slow volume: with the service, without, and beside a plain defrag.

    sudo python -m tests.bench.intake                        # 6 minutes
    sudo python -m tests.bench.intake --minutes 1 --extents 1000
    sudo python -m tests.bench.intake --arms with,without --rate 30 --interval 60  # whole at each flush
    sudo python -m tests.bench.intake --arms with,without --starve 1 --iops 150    # a journald that hardly runs

Private journalds under the same load at the same time, each on a volume of its own whose device
is throttled to so many IOPS. Beside one runs the service, beside another `btrfs filesystem
defragment -f` of the active file, again and again. The intake delay is what journald itself
tells: its own time of an entry less that at which the kernel got it (_SOURCE_REALTIME_TIMESTAMP).
A logger waits longer: until the kernel takes it, which a full socket does not; so the delay is
also counted from the moment at which a message was planned.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from journalkeeper.journald.journalctl import plain, wait_us
from journalkeeper.lab.bed import Bed, bed
from journalkeeper.lab.load import Load
from journalkeeper.lab.volume import extents
from journalkeeper.probe.base import at_the_end
from journalkeeper.report.distribution import quantile
from tests.bench.archive import slowed
from tests.bench.figures import Figure, at_most, need_a_bed, parser, run, show
from tests.bench.service import DATACOW, Service, add_config, age, every_second

SETTINGS = ("SystemMaxFileSize=128M", "SystemMaxUse=2G")
SIZE = "12G"
STARVE = (sys.executable, "-m", "journalkeeper.probe.starve")


class IntakeDelays(NamedTuple):
    """Seconds that each message waited, in the order in which they were logged, and the file's extents.

    `last` is after the last flush, which leaves what it wrote; `least` what the file came down
    to in each interval of the second half.
    """

    journalds_s: list[float]
    planned_s: list[float]
    first: int
    last: int
    least: list[int]

    def half(self, number: int) -> IntakeDelays:
        """The first or the second half."""
        middle = len(self.journalds_s) // 2
        part = slice(middle * number, middle * (number + 1))
        return self._replace(journalds_s=self.journalds_s[part], planned_s=self.planned_s[part])


def rare(delays_s: list[float]) -> float:
    """The 99.9th percentile."""
    return quantile(sorted(delays_s), 999)


@contextmanager
def defragmenting(place: Bed) -> Iterator[None]:
    """btrfs-progs at the active file, again and again."""
    stop = threading.Event()
    words = ["btrfs", "filesystem", "defragment", "-f", str(place.journald.active)]

    def go_on() -> None:
        while not stop.is_set():
            subprocess.run(words, check=True, capture_output=True)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def live(asked: Namespace, beside: Callable[[Bed], AbstractContextManager[object]]) -> IntakeDelays:
    """One journal under load on a slow volume, and what is beside it."""
    with bed(*SETTINGS, size=SIZE, sync_interval=f"{asked.interval}s") as place:
        age(place, asked.extents)
        first = extents(place.journald.active)
        starved = at_the_end(*STARVE, str(place.journald.pid), str(asked.starve)) if asked.starve else nullcontext()
        with slowed(place.volume, asked.iops), Load(place, asked.rate) as load, beside(place), starved:
            counts = [extents(place.journald.active) for _ in every_second(asked.minutes * 60)]
        place.journald.sync()
        length, middle = max(1, round(asked.interval)), len(counts) // 2
        least = [min(counts[at : at + length]) for at in range(middle, len(counts), length)]
        return IntakeDelays(*delays(place, load.sent), first, extents(place.journald.active), least)


def delays(place: Bed, wanted: int) -> tuple[list[float], list[float]]:
    """What the entries tell.

    Raises: RuntimeError if one is missing.
    """
    words = ("--output=json", "--output-fields=LAB_PLANNED,_SOURCE_REALTIME_TIMESTAMP")
    lines = run("journalctl", "-D", place.journald.journal, "--quiet", *words).encode().splitlines()
    found = [entry for entry in map(plain, lines) if "LAB_PLANNED" in entry]
    if len(found) != wanted:
        raise RuntimeError(f"{wanted} messages were logged, {len(found)} are in the journal")
    return [(wait_us(entry) or 0) / 1e6 for entry in found], [
        (int(entry["__REALTIME_TIMESTAMP"]) - int(entry["LAB_PLANNED"])) / 1e6 for entry in found
    ]


ARMS: dict[str, Callable[[Namespace], Callable[[Bed], AbstractContextManager[object]]]] = {
    "with": lambda asked: lambda place: Service(place, DATACOW + asked.config),
    "without": lambda _: lambda _: nullcontext(),
    "defrag": lambda _: defragmenting,
}


def figures(found: dict[str, IntakeDelays]) -> list[Figure]:
    """The rows that were asked for, as far as they were measured, and what loggers felt."""
    rows = []
    for name, one in found.items():
        rows += [
            Figure(f"{name}: intake delay p99.9, ms", f"{rare(one.journalds_s) * 1000:.1f}"),
            Figure(f"{name}: worst, ms", f"{max(one.journalds_s) * 1000:.1f}"),
            Figure(f"{name}: from the planned moment, p99.9, ms", f"{rare(one.planned_s) * 1000:.1f}"),
            Figure(f"{name}: from the planned moment, worst, ms", f"{max(one.planned_s) * 1000:.1f}"),
        ]
    ours, theirs, plain = (found.get(name) for name in ARMS)
    if ours and theirs:
        rows += [
            at_most("p99.9, with / without", rare(ours.journalds_s) / rare(theirs.journalds_s), 1.1),
            at_most("worst, with / without", max(ours.journalds_s) / max(theirs.journalds_s), 1.1),
        ]
        late, theirs_late = ours.half(1), theirs.half(1)
        rows += [
            at_most(
                "p99.9 of the second half, with / without", rare(late.journalds_s) / rare(theirs_late.journalds_s), 1
            ),
            at_most(
                "worst of the second half, with / without", max(late.journalds_s) / max(theirs_late.journalds_s), 1
            ),
        ]
    if ours and plain:
        rows += [Figure("worst, with / defrag in a loop", f"{max(ours.journalds_s) / max(plain.journalds_s):.3g}")]
    return rows


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--minutes", type=float, default=5, help="of load (default: %(default)s)")
    words.add_argument("--rate", type=float, default=100, help="messages a second (default: %(default)s)")
    words.add_argument("--iops", type=int, default=500, help="of each device; 0 for as many as it has")
    words.add_argument("--extents", type=int, default=3000, help="of the file at first (default: %(default)s)")
    words.add_argument("--starve", type=float, metavar="PERCENT", help="journald runs so much of each 100 ms only")
    words.add_argument("--interval", type=float, default=10, help="SyncIntervalSec= in seconds (default: %(default)s)")
    add_config(words)
    words.add_argument("--arms", default=",".join(ARMS), help="of the comparison (default: %(default)s)")
    words.add_argument("--jobs", type=int, default=len(ARMS), help="arms at a time; 1: pressure is the machine's, "
                       "and who waits beside one arm makes the service of another wait, too")  # fmt: skip
    asked = words.parse_args()
    names = asked.arms.split(",")
    if not set(names) <= ARMS.keys():
        words.error(f"--arms knows {', '.join(ARMS)}")
    need_a_bed(words)
    with ThreadPoolExecutor(asked.jobs) as pool:
        found = dict(zip(names, pool.map(lambda name: live(asked, ARMS[name](asked)), names), strict=True))
    notes = [
        f"{asked.rate:g} messages/s for {asked.minutes:g} min, {asked.iops} IOPS, SyncIntervalSec={asked.interval:g}s"
        + (f", journald runs {asked.starve:g}% of each 100 ms" if asked.starve else ""),
        *(
            f"{name}: {one.first} extents at first, {one.last} after the last flush, "
            f"in each interval of the second half down to {', '.join(map(str, one.least))}"
            for name, one in found.items()
        ),
    ]
    show("Intake", notes, figures(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
