# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe fsync`: how long an fsync takes next to the journal, or who syncs what.

Writes 4 KiB at a time to its own file next to the journal and syncs it.
With --who it lets the kernel trace fsync, fdatasync and msync of all processes instead, and shows
for each process and file the calls, their mean and worst duration, and their share of the time.

examples:
  sudo journalkeeper probe fsync --seconds=2
  sudo journalkeeper probe fsync --who --seconds=2
  sudo journalkeeper probe fsync --rate=100 -j
"""

# The synced file has a name, and is NOCOW if new files in that directory are. btrfs logs no inode without a name, so
# the fsync of an unnamed file would look cheap.

from __future__ import annotations

import os
import time
from argparse import Namespace
from typing import Final

from journalkeeper.journald.layout import read_machine_id
from journalkeeper.probe import who
from journalkeeper.probe.base import Measurement, Series, schedule, scratch

BLOCK: Final = b"x" * 4096


def find_journal_directory(asked: Namespace) -> str:
    """Return this machine's directory below `asked.directory` (None: /var/log/journal), or that itself without one."""
    directory = str(asked.directory or "/var/log/journal")
    own = f"{directory}/{read_machine_id()}"
    return own if os.path.isdir(own) else directory


def measure(asked: Namespace, found: Measurement) -> None:
    """Overwrite and sync a new file in the journal's directory at --rate for --seconds. With --who, only watch others.

    A wait begins when its fsync was due. The fsync of the new file before the first wait is not measured.

    Raises: FileError for an OSError of this file, such as ENOSPC; KeeperError as `scratch` and `who.measure`.
    """
    if asked.who:
        who.measure(asked, found)
        return
    with scratch(find_journal_directory(asked)) as place, open(f"{place}/synced", "wb", buffering=0) as file:
        _write_and_sync(file.fileno())  # the first one logs the new directory, too
        found.series.append(series := Series("fsync"))
        for planned_ns in schedule(asked.rate, max(1, round(asked.rate * asked.seconds))):
            _write_and_sync(file.fileno())
            series.waits_ns.append(time.monotonic_ns() - planned_ns)


def _write_and_sync(fd: int) -> None:
    """Write BLOCK at the beginning of the file, and call fsync(2)."""
    os.pwrite(fd, BLOCK, 0)
    os.fsync(fd)
