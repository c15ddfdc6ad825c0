# SPDX-License-Identifier: LGPL-2.1-or-later
"""The results of a run: for one file, and as a whole."""

from __future__ import annotations

from typing import NamedTuple

from journalkeeper.model.host import Host
from journalkeeper.model.plans import Outcome, Plan
from journalkeeper.model.recorded import Counters
from journalkeeper.model.waiting import Wait
from journalkeeper.model.words import Kind


class Found(NamedTuple):
    """A file's state before or after an action; a directory has only an inode."""

    inode: int
    size_bytes: int
    mtime_ns: int
    extents: int
    disk_bytes: int | None = None


class Done(NamedTuple):
    """An outcome, and the file's state afterwards for the history.

    `extents_expected` is the expected number of extents; 0 if there was no expectation. `compress` and `kind`, the
    file's kind before, are None unless the action was a rewrite.
    """

    outcome: Outcome
    inode: int
    size_bytes: int
    mtime_ns: int
    extents_expected: int = 0
    compress: str | None = None
    kind: Kind | None = None


class Report(NamedTuple):
    """The result of a run. `notices` are sentences about the run as a whole; `host` is the state that it saw.

    `waiting` are the files with a delayed or failed action, after a run of the service. `counters` are the totals since
    the installation, None if they could not be read. `unrecorded` are those notices that report a failure to write the
    history.
    """

    plan: Plan
    outcomes: tuple[Outcome, ...]
    written_bytes: int
    duration_s: float
    notices: tuple[str, ...]
    host: Host | None = None
    waiting: tuple[Wait, ...] = ()
    counters: Counters | None = None
    unrecorded: tuple[str, ...] = ()
