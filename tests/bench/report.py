# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long `explain` and `report` take on a large journal with a long record.

    sudo python -m tests.bench.report
    sudo python -m tests.bench.report --keep /tmp/page.html      # and look at the page

The journal has 200,000 entries in torn files; the record holds five years of notes, one an hour of each of so many
files that it is about 50 MiB. `explain` is timed beside `check-config`, which starts as much and looks at nothing.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from journalkeeper.history.database import Database
from journalkeeper.history.record import NAME
from journalkeeper.history.schema import MIGRATIONS
from journalkeeper.model.units import HOUR_US
from journalkeeper.probe.bed import Bed, bed
from tests.bench.figures import Figure, at_most, engine, in_turn, mib, ms, need_a_bed, parser, run, show, spawn

if TYPE_CHECKING:
    from journalkeeper.history.database import Connection

ENTRIES = 200_000
YEARS = 5
RECORD_BYTES = 50 << 20
FILES = 5
"""Active files that are noted each hour: with so many the record is about RECORD_BYTES."""

ACTIONS_A_DAY = 4


def fill(place: Bed, entries: int) -> None:
    """Log so many messages, the first ones with a flush after every 40."""
    place.journald.age(100)
    place.journald.rotate()
    place.journald.age(100)
    for number in range(entries - 200 * 40):
        place.journald.log(f"message {number}", UNIT=f"unit{number % 50}.service")
    place.journald.sync()


def write_record(directory: Path, journal: Path) -> int:
    """Five years of notes and actions; returns the record's size."""
    path = os.path.join(directory, NAME)
    hours = YEARS * 365 * 24
    first_us = time.time_ns() // 1000 - hours * HOUR_US
    with closing(Database(path, MIGRATIONS, read_only=False)) as database:

        def rows(connection: Connection) -> None:
            samples, totals, outcomes = [], [], []
            for hour in range(hours):
                when_us, torn = first_us + hour * HOUR_US, round(600 + 500 * math.sin(hour / 12))
                names = [os.fsencode(journal / f"user-{1000 + number}.journal") for number in range(FILES)]
                samples += [(None, when_us, name, torn, 1, 16 << 20, 16 << 20) for name in names]
                totals.append((None, when_us, journal.name, 40, torn + 900, 700, torn, 900 << 20, 300 << 20))
                if hour % (24 // ACTIONS_A_DAY) == 0:
                    numbers = (torn, 60, 40 << 20, 5 << 20, 8 << 20, 900_000)
                    outcomes.append((None, 1, when_us, names[0], "compress", "done", "fragmented", *numbers, "", 0))
            for table, some in (("samples", samples), ("totals", totals), ("outcomes", outcomes)):
                places = ", ".join("?" * len(some[0]))
                connection.executemany(f"INSERT INTO {table} VALUES ({places})", some)  # noqa: S608 - our tables

        database.write(rows)
    return os.path.getsize(path)


def measure(place: Bed, page: Path, rounds: int) -> list[Figure]:
    """The table's rows."""
    files = sorted(map(str, place.journald.journal.iterdir()))
    works = {
        "check-config": engine("check-config", "--config", "/dev/null", "-j"),
        "explain, an archive": engine("explain", files[1]),
        "explain, the active file": engine("explain", files[0]),
    }
    times = in_turn(rounds, {name: partial(spawn, *words) for name, words in works.items()})
    words = engine("report", "-D", str(place.directory), "-o", str(page), "--force")
    pages = in_turn(max(1, rounds // 7), {"report": partial(spawn, *words)})
    least = min(times["check-config"])
    return [
        *(Figure(what, ms(values)) for what, values in itertools.chain(times.items(), pages.items())),
        at_most("explain beyond the start, s", min(times["explain, the active file"]) - least, 0.2),
        at_most("report, s", min(pages["report"]), 10),
        at_most("the page, KiB", page.stat().st_size / 1024, 500),
    ]


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--rounds", type=int, default=7, help="that are timed (default: %(default)s)")
    words.add_argument("--entries", type=int, default=ENTRIES, help="in the journal (default: %(default)s)")
    words.add_argument("--keep", type=Path, metavar="FILE", help="copy the page there")
    asked = words.parse_args()
    need_a_bed(words)
    with bed("SystemMaxFileSize=128M", "SystemMaxUse=1G", "RateLimitBurst=0", size="4G") as place:
        fill(place, asked.entries)
        state = place.volume.mountpoint / "state"
        state.mkdir()
        os.environ["STATE_DIRECTORY"] = str(state)
        size = write_record(state, place.journald.journal)
        page = place.volume.mountpoint / "page.html"
        figures = measure(place, page, asked.rounds)
        counted = run("journalctl", "-D", str(place.directory), "--quiet", "-o", "cat", "--output-fields=PRIORITY")
        notes = [f"{counted.count(chr(10)):,} entries, a record of {mib(size)}, {asked.rounds} rounds"]
        if asked.keep:
            shutil.copy(page, asked.keep)
    show("explain and report", notes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
