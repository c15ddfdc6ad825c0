# SPDX-License-Identifier: LGPL-2.1-or-later
"""Recording a run: what cannot be recorded becomes a notice, and no run fails for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from journalkeeper.history.record import Record
from journalkeeper.model import Volume
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.run import Done


def tried(bookkeeping: Callable[[], None]) -> list[str]:
    """Do some bookkeeping after the work; the notice if that failed: what was done is reported all the same."""
    try:
        bookkeeping()
    except KeeperError as error:
        return [str(error)]
    return []


def begun_anew(record: Record) -> list[str]:
    """Notices about a record that was damaged or removed."""
    notices = []
    if record.set_aside is not None:
        notices.append(f"the record was damaged and is now {record.set_aside}; a new one was begun")
    if record.vanished:
        notices.append(f"{record.path}: the record was removed; a new one was begun")
    return notices


def kept(record: Record, run: int, volumes: tuple[Volume, ...], device: int, done: Done) -> list[str]:
    """Record what became of an action on `device`; the notice if that failed.

    The file is done and whole then; only the memory of it is lost, and the next look finds it ideal.
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
