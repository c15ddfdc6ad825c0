# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records that are stored in the history."""

from __future__ import annotations

from typing import NamedTuple

from journalkeeper.model import Outcome


class Run(NamedTuple):
    """A run; `ended_us` is None while it works or if it was killed."""

    id: int
    origin: str
    began_us: int
    ended_us: int | None
    done: int
    skipped: int
    failed: int
    bytes_written: int


class Entry(NamedTuple):
    """An outcome, its time, and the origin of its run ("" if its run was lost)."""

    when_us: int
    origin: str
    outcome: Outcome


class Totals(NamedTuple):
    """The sums over one instance's files at one moment."""

    when_us: int
    instance: str
    files: int
    extents: int
    ideal_extents: int
    active_extents: int
    size_bytes: int
    allocated_bytes: int


class Sample(NamedTuple):
    """The extents of one active file at one moment."""

    when_us: int
    path: str
    extents: int
    ideal_extents: int
    size_bytes: int
    allocated_bytes: int


class Counters(NamedTuple):
    """The totals since the history began at `since_us`: outcomes by result, failed runs, costs and savings.

    `bytes_reclaimed` is the disk space that the measured rewrites freed, less the space that they used. It is None if
    no rewrite was measured, which requires CAP_SYS_ADMIN or the measure socket. `unmeasured` rewrites are not in it,
    among them those of files in a snapshot, which keeps the old data. `extents_removed` is about rewrites, not
    rotations.
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
