# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long a look at many journal files takes, against filefrag(8) over the same files.

    sudo python -m tests.bench.scan
    sudo nice -n -20 python -m tests.bench.scan --rounds 41      # on a busy machine
    sudo python -m tests.bench.scan --every-form 500             # counts alone

The files have the bytes of one real archive, each written whole and then every second
block once more, so that each has as many extents as was asked for. "A look" is what
`journalkeeper scan` does inside: Observer.look, without and with the bytes that files
really occupy (which only root learns, and filefrag never). The last rows are the whole
command: what 1,000 files cost it beyond one, which leaves the interpreter's start out.

With --every-form so many files are made that lie in every way that journal files do (tests/forms.py),
and `journalkeeper scan` counts their extents beside filefrag.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from journalkeeper.observe.observer import Observer
from journalkeeper.probe.bed import Bed, bed
from journalkeeper.probe.scratch_volume import filefrag
from tests.bench.figures import (
    Figure,
    at_least,
    at_most,
    count_is,
    engine,
    in_turn,
    ms,
    need_a_bed,
    parser,
    ratio,
    run,
    show,
    spawn,
)
from tests.forms import FORMS, every_form

BLOCK = 4096
SECOND_NS = 1_000_000_000


def real_archive(place: Bed, blocks: int) -> bytes:
    """The bytes of an archive of at least so many blocks, by journald itself."""
    messages, data = 100, b""
    while len(data) < blocks * BLOCK:
        place.journald.age(1, messages)
        data = place.journald.rotate().read_bytes()
        messages *= 2
    return data


def make_files(directory: Path, data: bytes, files: int, extents: int) -> list[str]:
    """So many archives of `data` in so many extents each; one more where that number is even."""
    paths = [str(directory / f"system@{number:032x}-{1:016x}-{number:016x}.journal") for number in range(files)]
    with ExitStack() as stack:
        opened = [stack.enter_context(open(path, "wb", buffering=0)) for path in paths]
        for file in opened:
            file.write(data)
        os.sync()
        for file in opened:
            for number in range(1, extents, 2):
                os.pwrite(file.fileno(), data[number * BLOCK : (number + 1) * BLOCK], number * BLOCK)
        os.sync()
    return paths


def look(directory: Path, *, with_disk_bytes: bool = False) -> Observer:
    """One look by an observer that knows nothing yet."""
    observer = Observer(with_disk_bytes=with_disk_bytes)
    observer.look([str(directory)], now_us=time.time_ns() // 1000)
    return observer


def look_again(observer: Observer, directory: Path, changed: str) -> Callable[[], object]:
    """A look after one file was changed."""

    def again() -> None:
        stamp = os.stat(changed).st_mtime_ns - SECOND_NS
        os.utime(changed, ns=(stamp, stamp))
        observer.look([str(directory)], now_us=time.time_ns() // 1000 + 2_000_000)

    return again


def measure(directory: Path, paths: list[str], rounds: int) -> list[Figure]:
    """The table's rows."""
    theirs_once = functools.partial(spawn, "filefrag", "-s", *paths)
    scan = engine("scan", "--no-pager", "-D", str(directory))
    observer = look(directory)
    opened = observer.opened
    changed = look_again(observer, directory, paths[len(paths) // 2])
    times = in_turn(
        rounds,
        {
            "filefrag -s": theirs_once,
            "a look": functools.partial(look, directory),
            "a look with disk bytes": functools.partial(look, directory, with_disk_bytes=True),
            "compsize": functools.partial(spawn, "compsize", str(directory)),
            "a second look, one file changed": changed,
            "scan": functools.partial(spawn, *scan),
            "scan of one": functools.partial(spawn, *scan, paths[0]),
        },
    )
    theirs = times["filefrag -s"]
    both = [one + other for one, other in zip(theirs, times["compsize"], strict=True)]
    beyond = [many - one for many, one in zip(times["scan"], times["scan of one"], strict=True)]
    return [
        *(Figure(what, ms(values)) for what, values in times.items()),
        at_most("a look / filefrag -s", ratio(times["a look"], theirs), 1),
        Figure("a look with disk bytes / filefrag -s", f"{ratio(times['a look with disk bytes'], theirs):.3g}"),
        Figure("the same / (filefrag -s + compsize)", f"{ratio(times['a look with disk bytes'], both):.3g}"),
        Figure("(scan - scan of one) / filefrag -s", f"{ratio(beyond, theirs):.3g}"),
        Figure("(scan - scan of one) / (filefrag -s + compsize)", f"{ratio(beyond, both):.3g}"),
        count_is("files opened by a first look", opened, len(paths)),
        count_is("files opened by each second look", (observer.opened - opened) // (rounds + 1), 1),
    ]


def counts(files: int) -> None:
    """Count the extents of so many files of every form beside filefrag, and print how far apart the counts are."""
    with every_form(-(-files // (len(FORMS) + 3))) as (place, forms):
        paths = sorted(forms)
        rows = json.loads(run(*engine("scan", "-j", "-D", os.fspath(place.volume.mountpoint))))
        rows += json.loads(run(*engine("scan", "-j", "-D", os.fspath(place.volume.mountpoint / "stock"))))
        ours = {row["path"]: row["extents"] for row in rows}
        theirs = dict(zip(paths, filefrag(*paths, sync=True), strict=True))
    apart = {path: abs(ours[str(path)] - count) / count for path, count in theirs.items()}
    notes = [
        f"{form}: {len(those)} files of up to {max(map(theirs.__getitem__, those)):,} extents, "
        f"at most {max(map(apart.__getitem__, those)):.2%} apart"
        for form in dict.fromkeys(forms.values())
        if (those := [path for path in paths if forms[path] == form])
    ]
    worst = 100 * max(apart.values())
    figures = [at_least("files", len(paths), files), at_most("counts apart from filefrag's, worst, %", worst, 1)]
    show("Extents of files of every form", notes, figures)


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--files", type=int, default=1000, help="(default: %(default)s)")
    words.add_argument("--extents", type=int, default=100, help="of each file (default: %(default)s)")
    words.add_argument("--rounds", type=int, default=21, help="that are timed (default: %(default)s)")
    words.add_argument("--every-form", type=int, metavar="FILES", help="count the extents of so many files instead")
    asked = words.parse_args()
    need_a_bed(words)
    if asked.every_form:
        counts(asked.every_form)
        return 0
    with bed("SystemMaxFileSize=8M", size="8G") as place:
        data = real_archive(place, asked.extents + 1)
        place.journald.stop()
        directory = place.journald.journal
        for path in directory.iterdir():
            path.unlink()
        paths = make_files(directory, data, asked.files, asked.extents)
        counted = set(filefrag(*paths, sync=True))
        time.sleep(1.1)  # a file changed within the last second is opened again at the next look
        notes = [f"{len(paths)} files of {len(data):,} bytes in {counted} extents, {asked.rounds} rounds"]
        figures = measure(directory, paths, asked.rounds)
    show("A look at many files", notes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
