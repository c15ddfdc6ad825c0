# SPDX-License-Identifier: LGPL-2.1-or-later
"""The results of a run, and the JSON documents of `plan`, `defrag` and the bus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from journalkeeper.model.history import Counters
from journalkeeper.model.plans import Host, Outcome, Plan, Skip, Window
from journalkeeper.model.schema import Count, Seconds, Sometimes, parse_record, to_json
from journalkeeper.model.waiting import Wait
from journalkeeper.model.words import Kind, Reason, Result, Verb


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

    @property
    def is_interrupted(self) -> bool:
        """True if the run ended before its plan did."""
        reasons = {*(one.reason for one in self.outcomes), *(one.reason for one in self.plan.skipped)}
        return not reasons.isdisjoint((Reason.INTERRUPTED, Reason.NOT_BEGUN))


class RunTotals(NamedTuple):
    """The sums over the outcomes of a run."""

    files: Count
    done: Count
    skipped: Count
    failed: Count
    extents_before: Count
    extents_after: Count
    disk_bytes_before: Count | None
    disk_bytes_after: Count | None
    bytes_written: Count
    duration_s: Seconds


class DefragAnswer(NamedTuple):
    """The answer of `defrag`."""

    outcomes: tuple[Outcome, ...]
    totals: RunTotals
    omitted: Sometimes[Count] = None
    """Rows that the service left out, because its answer would be too long."""


def plan_windows(written: Mapping[str, Any]) -> dict[str, Window]:
    """Return the flush windows in the document of `plan -j`, by instance.

    Raises: KeyError, TypeError, ValueError for the document of an incompatible version.
    """
    return {instance: parse_record(Window, row) for instance, row in written["window"].items()}


def parse_skips(written: Mapping[str, Any]) -> tuple[Skip, ...]:
    """Return the skipped files in the document of `plan -j`.

    Raises: KeyError, TypeError, ValueError for the document of an incompatible version.
    """
    return tuple(parse_record(Skip, row) for row in written["skipped"])


def defrag_document(report: Report) -> dict[str, Any]:
    """Return the document of `defrag -j`: the outcome for every file, skipped files included, and totals."""
    extents = {file.path: file.extents.total for file in report.host.files} if report.host else {}
    outcomes = (*report.outcomes, *(_make_outcome(skip, extents.get(skip.path, 0)) for skip in report.plan.skipped))
    found: dict[str, Any] = to_json(DefragAnswer(outcomes, _sum_outcomes(report, outcomes)))
    return found


def job_document(report: Report) -> dict[str, Any]:
    """Return the answer of the bus method Result: the document of `defrag -j`, skipped files, details and notices."""
    return {
        **defrag_document(report),
        "skipped": to_json(report.plan.skipped),
        "details": {outcome.path: outcome.detail for outcome in report.outcomes if outcome.detail},
        "notices": report.notices,
    }


def job_report(written: Mapping[str, Any]) -> Report:
    """Return the report of a `job_document`. Its plan has no actions.

    Raises: KeyError, TypeError, ValueError for the document of an incompatible version.
    """
    skipped = parse_skips(written)
    left_alone = {(skip.path, Result.SKIPPED, skip.reason) for skip in skipped}
    outcomes = (parse_record(Outcome, row) for row in written["outcomes"])
    begun = tuple(
        outcome._replace(detail=written["details"].get(outcome.path, ""))
        for outcome in outcomes
        if (outcome.path, outcome.result, outcome.reason) not in left_alone
    )
    totals, notices = written["totals"], tuple(written["notices"])
    return Report(Plan((), (), skipped), begun, totals["bytes_written"], totals["duration_s"], notices)


def _make_outcome(skip: Skip, extents: int) -> Outcome:
    return Outcome(
        skip.path, Verb.DEFRAGMENT, Result.SKIPPED, skip.reason, extents, extents, None, None, 0, 0.0, skip.detail
    )


def _sum_outcomes(report: Report, outcomes: tuple[Outcome, ...]) -> RunTotals:
    disk_before, disk_after = disk_sums(outcomes)
    return RunTotals(
        files=len(outcomes),
        **{result.value: sum(outcome.result is result for outcome in outcomes) for result in Result},
        extents_before=sum(outcome.extents_before for outcome in outcomes),
        extents_after=sum(outcome.extents_after for outcome in outcomes),
        disk_bytes_before=disk_before,
        disk_bytes_after=disk_after,
        bytes_written=report.written_bytes,
        duration_s=report.duration_s,
    )


def disk_sums(outcomes: Iterable[Outcome]) -> tuple[int | None, int | None]:
    """Return the sums of the disk bytes before and after, over the outcomes that have both, or (None, None)."""
    known = [one for one in outcomes if one.disk_bytes_before is not None and one.disk_bytes_after is not None]
    if not known:
        return None, None
    return sum(one.disk_bytes_before or 0 for one in known), sum(one.disk_bytes_after or 0 for one in known)
