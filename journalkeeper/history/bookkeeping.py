# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record a run in the history. A failure to record becomes a notice and never fails the run."""

from __future__ import annotations

import time
from collections.abc import Callable

from journalkeeper.history.record import Record
from journalkeeper.model import Volume
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.run import Done


def run_bookkeeping(task: Callable[[], None]) -> list[str]:
    """Call `task` and return its error as a notice, because the files are already rewritten."""
    try:
        task()
    except KeeperError as error:
        return [str(error)]
    return []


def describe_replacement(record: Record) -> list[str]:
    """Return a notice if the history was damaged or removed and a new one was started."""
    notices = []
    if record.set_aside is not None:
        why = "was written by a newer version" if ".newer-" in record.set_aside else "was damaged"
        notices.append(f"the history {why}: it was moved to {record.set_aside}, and a new one was started")
    if record.vanished:
        notices.append(f"{record.path}: the history was removed, and a new one was started")
    return notices


def record_outcome(record: Record, run: int, volumes: tuple[Volume, ...], device: int, done: Done) -> list[str]:
    """Store the outcome in the history. Return a notice if the history cannot be written.

    The file on `device` is already rewritten; without the entry, the next look sees a compact file and skips it.
    """
    key = next((volume.uuid, volume.subvolume) for volume in volumes if volume.device == device)
    try:
        record.outcome(
            run,
            key,
            done.inode,
            done.outcome,
            mtime_ns=done.mtime_ns,
            size_bytes=done.size_bytes,
            when_us=time.time_ns() // 1000,
            extents_expected=done.extents_expected,
            compress=done.compress,
            kind=done.kind,
        )
    except KeeperError as error:
        return [f"{done.outcome.path}: not recorded: {error}"]
    return []
