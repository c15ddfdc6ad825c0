# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rows of the record."""

from __future__ import annotations

from typing import NamedTuple

from journalkeeper.model import Outcome


class Run(NamedTuple):
    """One run; `ended_us` is None if it was killed, or goes on."""

    id: int
    origin: str
    began_us: int
    ended_us: int | None
    done: int
    skipped: int
    failed: int
    bytes_written: int


class Entry(NamedTuple):
    """One outcome, when it was, and the origin of its run ("" if its run was lost)."""

    when_us: int
    origin: str
    outcome: Outcome


class Totals(NamedTuple):
    """One instance's files at one moment."""

    when_us: int
    instance: str
    files: int
    extents: int
    ideal_extents: int
    active_extents: int
    size_bytes: int
    allocated_bytes: int


class Sample(NamedTuple):
    """One active file at one moment."""

    when_us: int
    path: str
    extents: int
    ideal_extents: int
    size_bytes: int
    allocated_bytes: int


class Counters(NamedTuple):
    """The totals since the record began at `since_us`: outcomes by result, failed runs, the cost and the saving.

    `bytes_reclaimed` is the disk space that the measured rewrites gave back, less what they took; None if none was
    measured, which only CAP_SYS_ADMIN or the measure socket can do. `unmeasured` rewrites are missing in it, among them
    those next to a snapshot, which keeps the old data. `extents_removed` is about rewrites, not rotations.
    """

    done: int = 0
    skipped: int = 0
    failed: int = 0
    failed_runs: int = 0
    bytes_written: int = 0
    extents_removed: int = 0
    bytes_reclaimed: int | None = None
    unmeasured: int = 0
    since_us: int | None = None
