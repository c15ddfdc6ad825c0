# SPDX-License-Identifier: LGPL-2.1-or-later
"""The results of a run, and the plans and reports that the service answers with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from journalkeeper.model.history import Counters
from journalkeeper.model.plans import Host, Outcome, Plan, Skip
from journalkeeper.model.schema import Count, Hidden, Key, Seconds, Sometimes, parse_record
from journalkeeper.model.waiting import Wait
from journalkeeper.model.words import Kind, Reason


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
    after: Found
    extents_expected: int = 0
    compress: str | None = None
    kind: Kind | None = None


class Report(NamedTuple):
    """The result of a run. `notices` are sentences about the run as a whole; `host` is the state that it saw.

    `waiting` are the files with a delayed or failed action, after a run of the service. `counters` are the totals since
    the installation, None if they could not be read. `unrecorded` are those notices that report a failure to write the
    history. Of a run in the service, a caller gets the published values only, and a plan without actions.
    """

    plan: Hidden[Plan]
    outcomes: tuple[Outcome, ...]
    written_bytes: Count
    duration_s: Seconds
    notices: tuple[str, ...]
    host: Hidden[Host | None] = None
    waiting: Hidden[tuple[Wait, ...]] = ()
    counters: Hidden[Counters | None] = None
    unrecorded: Hidden[tuple[str, ...]] = ()

    @property
    def skipped(self) -> Annotated[tuple[Skip, ...], Key()]:
        """The files and directories that the plan leaves alone."""
        return self.plan.skipped

    @property
    def omitted(self) -> Sometimes[Count]:
        """Rows that the service left out, because its answer would be too long."""
        return self.plan.omitted

    @property
    def is_interrupted(self) -> bool:
        """True if the run ended before its plan did."""
        reasons = {*(one.reason for one in self.outcomes), *(one.reason for one in self.skipped)}
        return not reasons.isdisjoint((Reason.INTERRUPTED, Reason.NOT_BEGUN))


def decode_report(written: Mapping[str, Any]) -> Report:
    """Return the report that `to_json` made this of. Raises: KeyError, TypeError, ValueError for any other object."""
    plan = {"window": {}, "actions": (), "skipped": written["skipped"], "omitted": written.get("omitted")}
    return parse_record(Report, {**written, "plan": plan})
