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


class Day(NamedTuple):
    """The outcomes of one local day, `date` as 2026-01-31; freed bytes as far as they are known."""

    date: str
    done: int
    skipped: int
    failed: int
    extents_before: int
    extents_after: int
    bytes_written: int
    bytes_freed: int


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
