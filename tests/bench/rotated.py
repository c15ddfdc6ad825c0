# SPDX-License-Identifier: LGPL-2.1-or-later
"""Archives that a running journald rotated by itself: what each occupies after it was compacted.

    sudo python -m tests.bench.rotated
    sudo python -m tests.bench.rotated --archives 200

On a scratch btrfs (datacow) for each SystemMaxFileSize=, with and without flushes, a private
journald is written to until it has archived files of its own accord, which it keeps open. Half
of them are compacted by `journalkeeper defrag --now`, half by `journalkeeper daemon` beside
it, with all in memory and with nothing. Disk bytes are compsize(8)'s.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from journalkeeper.history.record import Record
from journalkeeper.journald.header import STATE_OFFSET
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.bed import ARCHIVED, Bed, bed, messages
from tests.bench.figures import Figure, at_most, count_is, engine, mib, need_a_bed, parser, run, show
from tests.bench.service import DATACOW, INSIDE, STATE, serving
from tests.patience import eventually
from tests.volumes import disk_bytes, drop_caches

SIZES = ("8M", "16M", "32M", "64M", "128M")
LIMIT = 0.35
FLUSH_EVERY = 200
AT_ONCE = 50
PATIENCE_S = 120.0
CONFIG = f"{DATACOW}[Watch]\nSettleSec=2s\n[Window]\nPressureMax=100%\n[Budget]\nBytesPerDay=infinity\n"
"""The service as it is by default, but that it waits for less, and for no other load of this machine."""


class Case(NamedTuple):
    """How archives are made and found."""

    max_file_size: str
    flushes: bool
    cold: bool

    def __str__(self) -> str:
        flushes = "flushes" if self.flushes else "no flush"
        return f"{self.max_file_size}, {flushes}, {'cold' if self.cold else 'warm'}"


class Found(NamedTuple):
    """One archive; `by` is what compacted it, `outcome` what that said of it."""

    case: Case
    by: str
    size_bytes: int
    disk_before: int
    disk_after: int
    outcome: str

    @property
    def ratio(self) -> float:
        """Disk bytes for each byte of the file."""
        return self.disk_after / self.size_bytes


def archives(place: Bed) -> set[Path]:
    """The archives that journald has finished."""
    return {path for path in place.journald.journal.glob("system@*.journal") if finished(path)}


def finished(path: Path) -> bool:
    """Whether journald has marked the file as an archive."""
    with path.open("rb") as file:
        return os.pread(file.fileno(), 1, STATE_OFFSET)[0] == ARCHIVED


def rotations(place: Bed, case: Case) -> Iterator[Path]:
    """Write messages without end; each archive as soon as journald has made it."""
    known = archives(place)
    for number, fields in enumerate(messages(), start=1):
        place.journald.log(fields.pop("MESSAGE"), **fields)
        if case.flushes and number % FLUSH_EVERY == 0:
            place.journald.sync()
        if number % AT_ONCE == 0:
            fresh = archives(place) - known
            known |= fresh
            yield from sorted(fresh)


def by_command(place: Bed, case: Case, path: Path, _state: Path) -> str:
    """Compact the file as a person does."""
    if case.cold:
        drop_caches()
    run(*engine("defrag", "--now", os.fspath(path)))
    return outcome(place.volume.base / STATE, os.fspath(path))


def by_service(_place: Bed, case: Case, path: Path, state: Path) -> str:
    """Wait until the service has compacted the file; it may come to nothing first and be tried again."""
    if case.cold:
        drop_caches()
    known_as = f"{INSIDE}/{path.parent.name}/{path.name}"
    eventually(lambda: outcome(state, known_as).startswith("done"), PATIENCE_S, pause_s=0.2)
    return outcome(state, known_as) or "nothing"


def outcome(state: Path, path: str) -> str:
    """What the record says became of the file at last; "" if nothing."""
    try:
        with Record(state, read_only=True) as record:
            entries = record.history([path])
    except KeeperError:  # there is no record yet, or it is being made
        return ""
    return f"{entries[-1].outcome.result} {entries[-1].outcome.detail}".strip() if entries else ""


def trial(case: Case, number: int) -> list[Found]:
    """So many archives of one kind, one half compacted by each."""
    settings = (
        f"SystemMaxFileSize={case.max_file_size}",
        "SystemMaxUse=6G",
        "SystemKeepFree=1M",
        "SystemMaxFiles=1000",
    )
    found = []
    with bed(*settings, size="8G") as place:
        os.environ["STATE_DIRECTORY"] = os.fspath(place.volume.base / STATE)
        fresh = rotations(place, case)
        some = itertools.islice(fresh, (number + 1) // 2)
        found += [compacted(place, case, "command", path) for path in some]
        with serving(place, CONFIG):
            some = itertools.islice(fresh, number // 2)
            found += [compacted(place, case, "service", path) for path in some]
    return found


def compacted(place: Bed, case: Case, by: str, path: Path) -> Found:
    """Have one archive compacted, and weigh it before and after."""
    before = disk_bytes(path)
    work = by_command if by == "command" else by_service
    said = work(place, case, path, place.directory / STATE)
    return Found(case, by, path.stat().st_size, before, disk_bytes(path), said)


def rows(found: list[Found]) -> list[Figure]:
    """What came out."""
    figures = [
        at_most(
            f"disk bytes / size, worst, by {by}", max((one.ratio for one in found if one.by == by), default=0), LIMIT
        )
        for by in ("command", "service")
    ]
    return [
        *figures,
        count_is("archives above that", sum(one.ratio > LIMIT for one in found), 0),
        count_is("archives larger than before", sum(one.disk_after > one.disk_before for one in found), 0),
        count_is("archives not done", sum(not one.outcome.startswith("done") for one in found), 0),
    ]


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--archives", type=int, default=40, help="in all, at least two of each kind (default: 40)")
    words.add_argument("--sizes", nargs="+", default=SIZES, help="SystemMaxFileSize= (default: %(default)s)")
    asked = words.parse_args()
    need_a_bed(words)
    cases = [Case(*one) for one in itertools.product(asked.sizes, (False, True), (False, True))]
    found: list[Found] = []
    notes = []
    for case in cases:
        some = trial(case, max(2, -(-asked.archives // len(cases))))
        found += some
        sizes = f"{mib(min(one.size_bytes for one in some))} to {mib(max(one.size_bytes for one in some))}"
        ratios = ", ".join(f"{one.ratio:.2f}" for one in some)
        notes.append(f"{case}: {sizes}, disk bytes before / size at most "
                     f"{max(one.disk_before / one.size_bytes for one in some):.2f}, after {ratios}")  # fmt: skip
        notes += [f"  {one.by}: {one.outcome}" for one in some if one.outcome != "done"]
        sys.stderr.write(f"{case}: {ratios}\n{'; '.join({one.outcome for one in some if one.outcome != 'done'})}\n")
    show(f"{len(found)} archives rotated by journald itself", notes, rows(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
