# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records that are stored in the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from journalkeeper.model import JournalFile, Kind, Outcome, Sums
from journalkeeper.model.schema import Count, Inline, Key, PastMoment


class Run(NamedTuple):
    """A run; `ended_us` is None while it works or if it was killed."""

    id: Count
    origin: str
    began_us: PastMoment
    ended_us: PastMoment | None
    done: Count
    skipped: Count
    failed: Count
    bytes_written: Count


class HistoryEntry(NamedTuple):
    """An outcome, its time, and the origin of its run ("" if its run was lost)."""

    when_us: PastMoment
    origin: str
    outcome: Inline[Outcome]


class Totals(NamedTuple):
    """The sums over one instance's files at one moment."""

    when_us: PastMoment
    instance: str
    files: Count
    extents: Count
    ideal_extents: Count
    active_extents: Count
    size_bytes: Count
    allocated_bytes: Count

    @classmethod
    def of(cls, when_us: int, instance: str, files: Sequence[JournalFile]) -> Totals:
        """Return the totals of `instance` at `when_us`, as sums over all `files`, also those with a problem."""
        every = Sums.of(files)
        active = sum(file.extents.total for file in files if file.kind is Kind.ACTIVE)
        counts = (every.files, every.extents, every.ideal_extents, active)
        return cls(when_us, instance, *counts, every.size_bytes, every.allocated_bytes)


class Sample(NamedTuple):
    """The extents of one active file at one moment."""

    when_us: PastMoment
    path: str
    extents: Count
    ideal_extents: Count
    size_bytes: Count
    allocated_bytes: Count


class Counters(NamedTuple):
    """The totals since the history began at `since_us`: outcomes by result, costs and savings.

    `bytes_reclaimed` is the disk space that the measured rewrites freed, less the space that they used. It is None if
    no rewrite was measured, which requires CAP_SYS_ADMIN or the measure socket. `unmeasured` rewrites are not in it,
    among them those of files in a snapshot, which keeps the old data. `extents_removed` is about rewrites, not
    rotations.
    """

    done: Count = 0
    skipped: Count = 0
    failed: Count = 0
    bytes_written: Annotated[Count, Key(metric="Bytes that rewrites wrote.", metric_name="written_bytes_total")] = 0
    extents_removed: Annotated[Count, Key(metric="Extents removed so far.", metric_name="removed_extents_total")] = 0
    bytes_reclaimed: Annotated[int | None, Key(metric="Disk bytes freed so far.", metric_name="reclaimed_bytes")] = None
    """Disk bytes before less those after, of measured rewrites."""
    unmeasured: Count = 0
    """Rewrites that bytes_reclaimed leaves out."""
    since_us: PastMoment | None = None
