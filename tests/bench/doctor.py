# SPDX-License-Identifier: LGPL-2.1-or-later
# ruff: noqa: T201 - a bench prints
"""How long doctor takes, and which programs it takes for ones whose output comes in blocks.

    sudo unshare --mount python -m tests.bench.doctor [--files 1000] [--entries 50000] [--runs 20]

The journal has so many archives, copies of a small one, and so many entries besides; the part without the journal is
timed by reading none of it. Of each kind of program, buffered or not, so many run at once, each at 20 lines a second.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from journalkeeper.probe import bed as lab
from journalkeeper.probe.bed import Bed
from tests.journal_files import archive_name
from tests.programs import Talkers

TIMES = 3
STARTED = "import sys; from journalkeeper.cli import main; {}sys.exit(main(sys.argv[1:]))"
WITHOUT = "import journalkeeper.cli.doctor as command; command.DOCTOR_ENTRIES = 0; "


def seconds(code: str, directory: Path) -> str:
    """The least time of doctor, started anew each time, and the processor's."""
    taken, busy = [], []
    for _ in range(TIMES):
        began, before = time.monotonic(), os.times()
        words = [sys.executable, "-c", STARTED.format(code), "doctor", "-j", "-D", str(directory)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        taken.append(time.monotonic() - began)
        busy.append(sum(after[2:4]) - sum(before[2:4]))
    return f"{min(taken):.2f} s, {min(busy):.2f} s of the processor"


def fill(bed: Bed, files: int, entries: int) -> None:
    """Make so many archives, and so many entries in the newest one."""
    bed.journald.age(2)
    small = bed.journald.rotate()
    for number in range(files - 2):
        shutil.copy(small, bed.journald.journal / archive_name(number + 1))
    for number in range(entries):
        bed.journald.log(f"message {number} of a program that talks all day")
    bed.journald.sync()


def judged(bed: Bed, runs: int) -> Callable[[str], tuple[int, int]]:
    """How many of each kind were found within four bursts, and how many there were."""
    with Talkers(bed.journald, {"buffered": runs, "unbuffered": runs, "shell": runs}) as talkers:
        found = talkers.judged_when(
            lambda said: all(one.bursts >= 4 for name, one in said.items() if name.startswith("buffered")),
            patience_s=300,
        )
    return lambda kind: (sum(one.buffered for name, one in found.items() if name.startswith(kind)), runs)


def main() -> int:
    """Print the figures."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--files", type=int, default=1000)
    words.add_argument("--entries", type=int, default=50_000)
    words.add_argument("--runs", type=int, default=20)
    asked = words.parse_args()
    if reason := lab.missing():
        raise SystemExit(reason)
    with lab.bed("SystemMaxFileSize=128M", "SystemMaxUse=2G", "SystemMaxFiles=2000", size="16G") as bed:
        fill(bed, asked.files, asked.entries)
        print(f"{asked.files} files, {asked.entries} entries: without the journal {seconds(WITHOUT, bed.directory)}")
        print(f"with it {seconds('', bed.directory)}")
    with lab.bed("SystemMaxFileSize=128M", "SystemMaxUse=2G") as bed:
        found = judged(bed, asked.runs)
        for kind in ("buffered", "unbuffered", "shell"):
            print("{}: found {} of {}".format(kind, *found(kind)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
