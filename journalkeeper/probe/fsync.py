# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe fsync`: how long an fsync takes next to the journal, or who syncs what.

Writes 4 KiB at a time to its own file next to the journal and syncs it: first alone, then while
another writer keeps the volume busy for 5 and for 20 percent of the time.
With --who it lets the kernel trace fsync, fdatasync and msync of all processes instead, and shows
for each process and file the calls, their mean and worst duration, and their share of the time.

examples:
  sudo journalkeeper probe fsync --seconds=1   one second each
  sudo journalkeeper probe fsync --who --seconds=2
  sudo journalkeeper probe fsync --rate=100 -j
"""

# The synced file has a name, and is NOCOW if new files in that directory are. btrfs logs no inode without a name, so
# the fsync of an unnamed file would look cheap.

from __future__ import annotations

import itertools
import os
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from journalkeeper.journald.layout import read_machine_id
from journalkeeper.probe import who
from journalkeeper.probe.base import Measurement, Steps, sample, schedule, scratch
from journalkeeper.probe.distribution import Series

BLOCK: Final = b"x" * 4096
BUSY: Final = (0.0, 0.05, 0.20)
"""The shares of the time in which the writer is busy; they are measured one after another."""

CHUNK: Final = b"y" * (64 << 10)
LENGTH: Final = 16 << 20


def journal_directory(asked: Namespace) -> str:
    """Return the directory of this machine's journal below the chosen one, or the chosen one where there is none."""
    directory = str(asked.directory or "/var/log/journal")
    own = f"{directory}/{read_machine_id()}"
    return own if os.path.isdir(own) else directory


def measure(asked: Namespace) -> Steps:
    """Measure fsyncs of a file in the journal's directory for --seconds each, beside a writer of each share in BUSY.

    With --who, only watch the calls of others.

    Raises: FileError for an OSError of these files, such as ENOSPC; KeeperError as `scratch` and `who.measure`.
    """
    if asked.who:
        yield from who.measure(asked)
        return
    with scratch(journal_directory(asked)) as place, open(f"{place}/synced", "wb", buffering=0) as file:
        names = [f"fsync, {share:.0%} write load" if share else "fsync alone" for share in BUSY]
        found = Measurement([Series(name, planned=True) for name in names])
        fd = file.fileno()
        _write_and_sync(fd)  # the first one logs the new directory, too
        found.notes.append(f"Each wait is for a write of {len(BLOCK):,} bytes and its fsync, in {place}.")
        yield found
        for share, series in zip(BUSY, found.series, strict=True):
            count, began_s = max(1, round(asked.rate * asked.seconds)), time.monotonic()
            with writer(f"{place}/written", share) as took_s:
                for _ in sample(series, schedule(asked.rate, count), lambda: _write_and_sync(fd)):
                    yield found
                if share:
                    busy = sum(took_s) / (time.monotonic() - began_s)
                    found.notes.append(f"{series.name}: another writer of the probe was busy {busy:.1%} of the time")


def _write_and_sync(fd: int) -> None:
    os.pwrite(fd, BLOCK, 0)
    os.fsync(fd)


@contextmanager
def writer(path: str, share: float) -> Iterator[list[float]]:
    """Write and sync the new or emptied file `path` in a thread for `share` of the block (0: never, and no file).

    Yield the list to which the thread adds each write's seconds.

    Raises: OSError if the file cannot be opened; the thread's OSError (ENOSPC) at the end, unless the block raised.
    """
    stop, took_s = threading.Event(), list[float]()
    if not share:
        yield took_s
        return

    def write(fd: int) -> None:
        for offset in itertools.cycle(range(0, LENGTH, len(CHUNK))):
            began_s = time.monotonic()
            os.pwrite(fd, CHUNK, offset)
            os.fdatasync(fd)
            took_s.append(time.monotonic() - began_s)
            if stop.wait(took_s[-1] / share - took_s[-1]):
                return

    with open(path, "wb", buffering=0) as file, ThreadPoolExecutor(1) as pool:
        done = pool.submit(write, file.fileno())
        try:
            yield took_s
        finally:
            stop.set()
        done.result()
