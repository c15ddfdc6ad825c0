# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long loggers wait at one flush of a slow volume: of a torn file, and of one that the service has made whole.

    sudo python -m tests.bench.oneflush                      # 10 minutes
    sudo python -m tests.bench.oneflush --rounds 2 --extents 1000

In each round two private journalds, each on a volume of its own, have an active file that
flushes tore; beside one runs the service, and has made it whole. Then, both at once, their
devices are throttled to so many IOPS and they are under the same load for one interval of
journald's flushes and half of another. The intake delay is journald's own, as in the bench `intake`.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from journalkeeper.lab.bed import bed
from journalkeeper.lab.load import Load
from journalkeeper.lab.volume import extents
from tests.bench.archive import slowed
from tests.bench.figures import Figure, at_most, need_a_bed, parser, ratio, show
from tests.bench.intake import SETTINGS, delays, rare
from tests.bench.service import DATACOW, PATIENCE_S, Service, add_config, age, every_second

SIZE = "4G"
WHOLE = 0.1
"""A file with at most this part of the extents that it had counts as made whole."""


class Waits(NamedTuple):
    """A file's extents before the flush, and the 99.9th percentile and the worst of the delays, in seconds."""

    extents: int
    rare_s: float
    worst_s: float


def flush(asked: Namespace, *, served: bool) -> Waits:
    """One journal, aged, then under load for one flush.

    Raises: RuntimeError if the service did not make its file whole.
    """
    with bed(*SETTINGS, size=SIZE, sync_interval=f"{asked.interval}s") as place, ExitStack() as stack:
        age(place, asked.extents)
        place.journald.sync()
        active = place.journald.active
        torn = extents(active)
        if served:
            stack.enter_context(Service(place, DATACOW + asked.config))
            wait_until_whole(active, torn)
        before = extents(active)
        with slowed(place.volume, asked.iops), Load(place, asked.rate) as load:
            for _ in every_second(asked.interval * 1.5):
                pass
        stack.close()
        place.journald.sync()
        waited_s = delays(place, load.sent)[0]
        return Waits(before, rare(waited_s), max(waited_s))


def wait_until_whole(active: Path, torn: int) -> None:
    """Wait until the service has mended a file that had `torn` extents.

    Raises: RuntimeError if it does not.
    """
    deadline = time.monotonic() + PATIENCE_S
    while extents(active) > torn * WHOLE:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the service left {extents(active)} of {torn} extents")
        time.sleep(1)


def rows(whole: list[Waits], torn: list[Waits]) -> list[Figure]:
    """The medians of the rounds, and of the rounds' ratios."""
    found = []
    for name, some in (("whole", whole), ("torn", torn)):
        found.append(
            Figure(f"{name}: extents before the flush", f"{statistics.median(one.extents for one in some):.0f}")
        )
        found.append(Figure(f"{name}: worst, ms", f"{statistics.median(one.worst_s for one in some) * 1000:.1f}"))
    return [
        *found,
        at_most("p99.9, whole / torn", ratio([one.rare_s for one in whole], [one.rare_s for one in torn]), 1),
        at_most("worst, whole / torn", ratio([one.worst_s for one in whole], [one.worst_s for one in torn]), 1),
    ]


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--rounds", type=int, default=7, help="of which the medians are shown (default: %(default)s)")
    words.add_argument("--rate", type=float, default=30, help="messages a second (default: %(default)s)")
    words.add_argument("--interval", type=float, default=30, help="SyncIntervalSec= in seconds (default: %(default)s)")
    words.add_argument("--iops", type=int, default=500, help="of each device; 0 for as many as it has")
    words.add_argument("--extents", type=int, default=4400, help="of a torn file (default: %(default)s)")
    add_config(words)
    asked = words.parse_args()
    need_a_bed(words)
    whole, torn = [], []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(asked.rounds):
            one, other = pool.map(lambda served: flush(asked, served=served), (True, False))
            whole.append(one)
            torn.append(other)
    notes = [f"{asked.rate:g} messages/s, {asked.iops} IOPS, SyncIntervalSec={asked.interval:g}s, one flush a round"]
    for name, some in (("whole", whole), ("torn", torn)):
        notes.append(f"{name}, worst of each round: {', '.join(f'{one.worst_s:.2f}' for one in some)} s")
    show("One flush", notes, rows(whole, torn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
