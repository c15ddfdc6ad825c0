# SPDX-License-Identifier: LGPL-2.1-or-later
"""Journal files that lie on the disk in every way that a count of extents has to see through."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from journalkeeper.btrfs.kernel import fallocate
from journalkeeper.btrfs.writeback import FALLOC_FL_KEEP_SIZE, punch_hole
from journalkeeper.probe.bed import ONLINE, Bed, PrivateJournald, bed
from journalkeeper.probe.scratch_volume import run
from tests.journal_files import PAGE, archive_name, scatter, unclean_name

STEP = 8 << 20
"""journald(8) allocates so many bytes ahead."""

Make = Callable[[Path, Path, int], None]
"""Make a file out of a torn archive; the number tells files of one form apart."""


def torn(source: Path, target: Path, number: int) -> None:
    """A copy, of which every second to sixth block is written once more."""
    run("cp", "--reflink=never", source, target)
    os.sync()
    scatter(target, every=2 + number % 5)


def alternating(target: Path, number: int, *, nocow: bool) -> None:
    """One contiguous run in which written blocks alternate with unwritten ones, as journald's flushes leave it."""
    target.touch()
    run("chattr", "+C" if nocow else "-C", target)
    with open(target, "r+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, STEP)
        os.fsync(file.fileno())
        for offset in range(0, STEP, (2 + number % 7) * PAGE):
            os.pwrite(file.fileno(), os.urandom(PAGE), offset)
        os.fsync(file.fileno())


def compressed(source: Path, target: Path, number: int) -> None:
    """All of it compressed, and of every second file some blocks written over."""
    run("cp", "--reflink=never", source, target)
    run("btrfs", "filesystem", "defragment", "-czstd", "-f", target)
    os.sync()
    if number % 2:
        scatter(target, every=50)


def shared(source: Path, target: Path, _number: int) -> None:
    """The same extents, in two files."""
    run("cp", "--reflink=always", source, target)


def with_holes(source: Path, target: Path, number: int) -> None:
    """Holes of one block to seven, in extents and between them."""
    torn(source, target, number)
    with open(target, "r+b", buffering=0) as file:
        for offset in range(0, target.stat().st_size, 16 * PAGE):
            punch_hole(file.fileno(), offset, (1 + number % 7) * PAGE)
        os.fsync(file.fileno())


def with_tail(source: Path, target: Path, number: int) -> None:
    """Space allocated ahead, within the file's size or behind it."""
    torn(source, target, number)
    with open(target, "r+b", buffering=0) as file:
        mode = FALLOC_FL_KEEP_SIZE if number % 2 else 0
        fallocate(file.fileno(), mode, target.stat().st_size, STEP)
        os.fsync(file.fileno())


def inline(_source: Path, target: Path, number: int) -> None:
    """So small that it is in its metadata."""
    target.write_bytes(os.urandom(1 + number % 2000))


FORMS: dict[str, Make] = {
    "torn": torn,
    "alternating datacow": lambda _, target, number: alternating(target, number, nocow=False),
    "alternating nocow": lambda _, target, number: alternating(target, number, nocow=True),
    "compressed": compressed,
    "shared": shared,
    "holes": with_holes,
    "tail": with_tail,
    "inline": inline,
}


def _stock(place: Bed, files: int, flushes: int) -> Iterator[tuple[Path, str]]:
    """What journald makes of a NOCOW directory, as Debian sets it up."""
    directory = place.volume.mountpoint / "stock"
    directory.mkdir()
    run("chattr", "+C", directory)
    with PrivateJournald(directory) as journald:
        for number in range(files):
            journald.age(flushes + number % 5)
            journald.stop()
            yield journald.active.rename(journald.journal / archive_name(number)), "stock nocow"
            journald.start()


def _flushed(place: Bed, files: int, flushes: int) -> Iterator[tuple[Path, str]]:
    """Datacow archives that flushes tore, and unclean files that a killed journald leaves."""
    for number in range(files):
        place.journald.age(flushes + number % 5)
        yield place.journald.rotate(), "flushed"
    for number in range(files):
        place.journald.age(flushes)
        place.journald.log("never synced")
        while place.journald.state() != ONLINE:
            time.sleep(0.001)
        place.journald.kill()
        place.journald.start()
        while len(unclean := list(place.journald.journal.glob("*.journal~"))) <= number:
            time.sleep(0.001)
    yield from ((path, "unclean") for path in unclean)


@contextmanager
def every_form(each: int, *, flushes: int = 6) -> Iterator[tuple[Bed, dict[Path, str]]]:
    """A bed with so many files of each form, all written back, and each file's form."""
    with bed("SystemMaxUse=2G", "SystemMaxFileSize=128M", "SystemMaxFiles=1000", size="12G") as place:
        forms = dict(_flushed(place, each, flushes))
        place.journald.stop()
        source = next(path for path, form in forms.items() if form == "flushed")
        forms |= dict(_stock(place, each, flushes))
        for number, (form, make) in enumerate((form, make) for form, make in FORMS.items() for _ in range(each)):
            target = place.journald.journal / (archive_name if number % 3 else unclean_name)(number)
            make(source, target, number)
            forms[target] = form
        os.sync()
        yield place, forms
