# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON documents of `plan`, `defrag` and the bus, and their conversion back to records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from journalkeeper.model import Outcome, Plan, Result, Skip, Verb, Window
from journalkeeper.model.run import Report
from journalkeeper.wire.field import document, parse_record
from journalkeeper.wire.records import ACTION, OUTCOME, SKIP, WINDOW


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return windows by instance, actions in the order in which they will be done, and skipped files."""
    return {
        "window": {window.instance: document(WINDOW, window) for window in plan.windows},
        "actions": [document(ACTION, action) for action in plan.actions],
        "skipped": [document(SKIP, skip) for skip in plan.skipped],
    }


def plan_windows(written: Mapping[str, Any]) -> dict[str, Window]:
    """Return the windows in a plan's document, by instance."""
    return {
        instance: parse_record(partial(Window, instance), WINDOW, row) for instance, row in written["window"].items()
    }


def skips(written: Mapping[str, Any]) -> tuple[Skip, ...]:
    """Return the skipped files in a document.

    Raises: KeyError, TypeError, ValueError for the document of an incompatible version.
    """
    return tuple(parse_record(Skip, SKIP, row) for row in written["skipped"])


def defrag_document(report: Report) -> dict[str, Any]:
    """Return the outcome of every file, and totals.

    A skipped file is an outcome, too: action "defragment", result "skipped", its reason, 0 bytes written.
    """
    extents = {file.path: file.extents.total for file in report.host.files} if report.host else {}
    outcomes = (*report.outcomes, *(_make_outcome(skip, extents.get(skip.path, 0)) for skip in report.plan.skipped))
    return {"outcomes": [document(OUTCOME, outcome) for outcome in outcomes], "totals": _totals(report, outcomes)}


def job_document(report: Report) -> dict[str, Any]:
    """Return the answer of Result: the document of `defrag -j`, skipped files, details and notices."""
    return {
        **defrag_document(report),
        "skipped": [document(SKIP, skip) for skip in report.plan.skipped],
        "details": {outcome.path: outcome.detail for outcome in report.outcomes if outcome.detail},
        "notices": report.notices,
    }


def job_report(written: Mapping[str, Any]) -> Report:
    """Return the report of a `job_document`: outcomes, skipped files, totals and notices.

    Raises: KeyError, TypeError, ValueError for the document of an incompatible version.
    """
    skipped = skips(written)
    left_alone = {(skip.path, Result.SKIPPED, skip.reason) for skip in skipped}
    outcomes = (parse_record(Outcome, OUTCOME, row) for row in written["outcomes"])
    begun = tuple(
        outcome._replace(detail=written["details"].get(outcome.path, ""))
        for outcome in outcomes
        if (outcome.path, outcome.result, outcome.reason) not in left_alone
    )
    totals, notices = written["totals"], tuple(written["notices"])
    return Report(Plan((), (), skipped), begun, totals["bytes_written"], totals["duration_s"], notices)


def entry_document(when_us: int, origin: str, outcome: Outcome) -> dict[str, Any]:
    """Return an outcome with its time and the origin of its run, as in `history -j` (records.ENTRY)."""
    return {"when_us": when_us, "origin": origin, **document(OUTCOME, outcome)}


def _make_outcome(skip: Skip, extents: int) -> Outcome:
    return Outcome(
        skip.path, Verb.DEFRAGMENT, Result.SKIPPED, skip.reason, extents, extents, None, None, 0, 0.0, skip.detail
    )


def _totals(report: Report, outcomes: tuple[Outcome, ...]) -> dict[str, Any]:
    """Return the totals of a run (records.SUM)."""
    disk_before, disk_after = disk_sums(outcomes)
    return {
        "files": len(outcomes),
        **{result.value: sum(outcome.result is result for outcome in outcomes) for result in Result},
        "extents_before": sum(outcome.extents_before for outcome in outcomes),
        "extents_after": sum(outcome.extents_after for outcome in outcomes),
        "disk_bytes_before": disk_before,
        "disk_bytes_after": disk_after,
        "bytes_written": report.written_bytes,
        "duration_s": round(report.duration_s, 6),
    }


def disk_sums(outcomes: Iterable[Outcome]) -> tuple[int | None, int | None]:
    """Return the disk bytes before and after, summed over files with both numbers; (None, None) if there is no such
    file.
    """
    known = [
        (before, after)
        for before, after in ((outcome.disk_bytes_before, outcome.disk_bytes_after) for outcome in outcomes)
        if before is not None and after is not None
    ]
    return (sum(before for before, _ in known), sum(after for _, after in known)) if known else (None, None)
