# SPDX-License-Identifier: LGPL-2.1-or-later
"""That a reader who follows the journal misses nothing while archives change places under it.

    sudo python -m tests.bench.follower
    sudo python -m tests.bench.follower --archives 30 --rate 500

`journalctl --follow --no-tail` reads a private journal from its beginning, NOCOW archives
among its files, while numbered messages are logged and `journalkeeper defrag --now` rewrites
the archives and defragments the active file. Then every message, from before, during and
after, must have been read.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from journalkeeper.probe.bed import Bed, bed
from tests.bench.figures import Figure, at_least, count_is, engine, need_a_bed, parser, run, show
from tests.patience import eventually
from tests.repeated import repeated

WORD = "numbered message"
PATIENCE_S = 30.0


class Logger:
    """Logs numbered messages."""

    def __init__(self, place: Bed) -> None:
        self._place = place
        self.sent = 0

    def log(self, messages: int = 1) -> None:
        """Log so many."""
        for _ in range(messages):
            self._place.journald.log(f"{WORD} {self.sent}")
            self.sent += 1


def nocow_archives(place: Bed, logger: Logger, archives: int, messages: int) -> list[Path]:
    """Archives of numbered messages, turned into NOCOW ones as journald before 250 left them."""
    made = []
    for _ in range(archives):
        logger.log(messages)
        place.journald.sync()
        archive = place.journald.rotate()
        nocow = archive.with_name("nocow.new")
        nocow.touch()
        run("chattr", "+C", nocow)
        run("cp", "--reflink=never", "--preserve=mode,ownership,timestamps", archive, nocow)
        nocow.replace(archive)
        made.append(archive)
    os.sync()
    return made


@contextmanager
def following(place: Bed, output: Path) -> Iterator[None]:
    """journalctl follows the journal into `output`."""
    directory = f"--directory={place.journald.journal}"
    words = ["journalctl", directory, "--follow", "--no-tail", "--output=cat", "--quiet"]
    with output.open("wb") as file, subprocess.Popen(words, stdout=file) as reader:
        try:
            yield
        finally:
            reader.terminate()


def read(output: Path) -> collections.Counter[int]:
    """How often each number was read."""
    lines = output.read_text().splitlines()
    return collections.Counter(int(line.rpartition(" ")[2]) for line in lines if line.startswith(WORD))


def wait_for(output: Path, wanted: int) -> None:
    """Wait until the reader has so many messages, or does not get there in time."""
    eventually(lambda: len(read(output)) >= wanted, PATIENCE_S, pause_s=0.1)


def follow(place: Bed, logger: Logger, rate: int, output: Path) -> list[dict[str, Any]]:
    """Have the journal followed while everything in it is rewritten; the outcomes."""
    defrag = engine("defrag", "--now", "-j", "-D", os.fspath(place.directory))
    with following(place, output):
        wait_for(output, 1)  # and no more: some archives are rewritten while they are read
        with repeated(logger.log, lambda: 1 / rate):
            time.sleep(0.2)
            outcomes = list(json.loads(run(*defrag))["outcomes"])
            time.sleep(0.2)
        wait_for(output, logger.sent)
    return outcomes


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument("--archives", type=int, default=10, help="that are rewritten (default: %(default)s)")
    words.add_argument("--messages", type=int, default=500, help="in each (default: %(default)s)")
    words.add_argument("--rate", type=int, default=200, help="messages a second meanwhile (default: %(default)s)")
    asked = words.parse_args()
    need_a_bed(words)
    for tool in ("chattr", "lsattr"):
        if shutil.which(tool) is None:
            words.exit(1, f"{words.prog}: {tool} is not installed\n")
    with bed("SystemMaxFileSize=16M", "SystemMaxUse=800M") as place:
        os.environ["STATE_DIRECTORY"] = os.fspath(place.volume.base / "state")
        logger = Logger(place)
        archives = nocow_archives(place, logger, asked.archives, asked.messages)
        place.journald.age(30)
        before = logger.sent
        outcomes = follow(place, logger, asked.rate, place.volume.base / "read")
        seen = read(place.volume.base / "read")
        nocow = sum("C" in run("lsattr", path).split()[0] for path in archives)
    became = collections.Counter(f"{outcome['action']} {outcome['result']}" for outcome in outcomes)
    figures = [
        at_least("messages logged while it worked", logger.sent - before, 1),
        count_is("archives rewritten", became["rewrite done"], len(archives)),
        count_is("archives still NOCOW (lsattr)", nocow, 0),
        count_is("messages that the reader missed", len(set(range(logger.sent)) - set(seen)), 0),
        Figure("messages that it got more than once", str(sum(times > 1 for times in seen.values()))),
    ]
    notes = [f"{logger.sent} messages, {before} before the reader began", f"became: {dict(became)}"]
    show("A reader that follows", notes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
