# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe writes`: how many bytes journald and the disks write for each byte that is logged.

Counts for --seconds what the host's journald logs, dirties in memory and flushes, and what the
disks of the journal's filesystem write. The disks also write for other programs. What journald
dirties lacks the metadata of btrfs. It writes nothing.

examples:
  sudo journalkeeper probe writes --seconds=3600   an hour of this host
  sudo journalkeeper probe writes -j
"""

# The kernel counts the pages of files that journald dirties, without the metadata that btrfs writes for them. What
# the disks write includes the metadata, and the writes of all other programs.

from __future__ import annotations

import subprocess
import time
from argparse import Namespace
from pathlib import Path
from typing import Final

import psutil

from journalkeeper.btrfs import volume
from journalkeeper.journald import opening
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.units import format_size
from journalkeeper.probe import who
from journalkeeper.probe.base import Measurement, Writes
from journalkeeper.probe.fsync import find_journal_directory
from journalkeeper.probe.scratch_volume import SECTOR_BYTES, run

SAVING: Final = "`journalkeeper lab compare DIR` measures what SyncIntervalSec=, SystemMaxFileSize= and NOCOW save."


def measure(asked: Namespace, found: Measurement, pid: int | None = None) -> None:
    """Count for --seconds what the journald `pid` (None: the host's) logs, dirties and flushes, and its disks write.

    `found` has them in `writes` and `causes`, and what `who.measure` adds, also after an interrupt.

    Raises: KeeperError if no journald runs, if it or journalctl fails, or as `who.measure`; OSError if the directory is
    not on btrfs or cannot be opened.
    """
    pid = pid or int(run("systemctl", "show", "--property=MainPID", "--value", "systemd-journald.service"))
    directory = find_journal_directory(asked)
    with opening.open_directory(directory) as fd:
        uuid = volume.read_fs_info(fd)[0]
    began_s, dirtied_before, disk_before = time.time(), _count_dirtied(pid), _count_written(uuid)
    try:
        who.measure(asked, found, pid)
    finally:
        syncs = [len(row.waits_ns) for row in found.series if not row.name.startswith(who.JOURNALD)]
        found.writes = Writes(
            count_logged(f"--since=@{began_s:.6f}", directory=directory),
            _count_dirtied(pid) - dirtied_before,
            _count_written(uuid) - disk_before,
            sum(syncs) // 2,  # a thread syncs before and after it stores OFFLINE
        )
        found.causes.insert(0, describe(found.writes))


def describe(writes: Writes) -> str:
    """Return the figures as sentences, with the bytes for each logged byte if there is one, and SAVING."""
    dirtied, written = (
        f"{format_size(size)}{f' ({size / writes.logged_bytes:.3g} for each byte)' if writes.logged_bytes else ''}"
        for size in (writes.dirtied_bytes, writes.disk_bytes)
    )
    logged = f"journald logged {format_size(writes.logged_bytes)} and dirtied {dirtied}, flushes: {writes.flushes}"
    return f"{logged}. The disks wrote {written} for all programs. {SAVING}"


def count_logged(*options: str, directory: str) -> int:
    """Return the bytes, in the Journal Export Format, of the entries in `directory` that journalctl's `options` select.

    Raises: KeeperError with the exit status if journalctl fails; OSError if it cannot be started.
    """
    words = ["journalctl", "--quiet", "--no-pager", "--output=export", f"--directory={directory}", *options]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as journalctl:
        size_bytes = sum(map(len, journalctl.stdout or ()))
    if journalctl.returncode:
        raise KeeperError(f"journalctl failed: exit status {journalctl.returncode}")
    return size_bytes


def _count_dirtied(pid: int) -> int:
    """Return the bytes of the pages that a process dirtied so far. Raises: KeeperError if it has ended."""
    try:
        return int(psutil.Process(pid).io_counters().write_bytes)
    except psutil.NoSuchProcess as error:
        raise KeeperError("no systemd-journald runs here, or it ended meanwhile") from error


def _count_written(uuid: str) -> int:
    """Return the bytes written to all devices of a filesystem since boot. Source: Documentation/block/stat.rst."""
    devices = Path(f"/sys/fs/btrfs/{uuid}/devices").iterdir()
    return SECTOR_BYTES * sum(int((device / "stat").read_text().split()[6]) for device in devices)
