# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a run did: with one file, and as a whole."""

from __future__ import annotations

from typing import NamedTuple

from journalkeeper.model.host import Host
from journalkeeper.model.plans import Outcome, Plan
from journalkeeper.model.recorded import Counters
from journalkeeper.model.waiting import Wait
from journalkeeper.model.words import Kind


class Found(NamedTuple):
    """A file as it was found, before an action or after it; a directory has an inode only."""

    inode: int
    size_bytes: int
    mtime_ns: int
    extents: int
    disk_bytes: int | None = None


class Done(NamedTuple):
    """An outcome, and the file as it is afterwards for the record.

    `extents_expected` is what could be expected of the file's data; 0 where nothing was. `compress` and
    `kind`, what the file was at the beginning, are None of what is no rewrite.
    """

    outcome: Outcome
    inode: int
    size_bytes: int
    mtime_ns: int
    extents_expected: int = 0
    compress: str | None = None
    kind: Kind | None = None


class Report(NamedTuple):
    """What a run did. `notices` are sentences about the run itself, not about one file; `host` is what it saw.

    `waiting` are the files with an action that was put off or came to nothing, after a run of the service. `counters`
    are the totals since the installation, None if they could not be read. `unrecorded` are those of the notices that
    say what could not be recorded.
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
