# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON of `scan`, `plan` and `defrag`, to the letter of the contract.

Keys are added at an object's end and never renamed; others script against them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from journalkeeper.model import Action, JournalFile, Outcome, Plan, Reason, Result, Skip, Verb, Window
from journalkeeper.model.run import Report
from journalkeeper.policy.saving import disk_bytes_saved, read_seconds_saved


def scan_document(files: tuple[JournalFile, ...]) -> list[dict[str, object]]:
    """One object for each file."""
    return [file_document(file) for file in files]


def plan_document(plan: Plan) -> dict[str, Any]:
    """Windows by instance, actions in the order in which they will be done, and what is left alone."""
    return {
        "window": {window.instance: window_document(window) for window in plan.windows},
        "actions": [_action(action) for action in plan.actions],
        "skipped": [skip._asdict() for skip in plan.skipped],
    }


def window_document(window: Window) -> dict[str, object]:
    """One window, as in `plan -j`."""
    return {
        "open": window.open,
        "closes_at_us": window.closes_at_us,
        "reason": window.reason,
        "opens_at_us": window.opens_at_us,
    }


def skips(document: dict[str, Any]) -> tuple[Skip, ...]:
    """What a document says is left alone. Raises: KeyError, ValueError for what another version wrote."""
    return tuple(
        Skip(
            path=row["path"],
            reason=Reason(row["reason"]),
            detail=row["detail"],
            until_us=row.get("until_us"),
            now=bool(row.get("now")),
            puts_off=bool(row.get("puts_off")),
        )
        for row in document["skipped"]
    )


def defrag_document(report: Report, extents: dict[str, int]) -> dict[str, object]:
    """What became of every file; `extents` has the counts, by path, of those that the plan left alone.

    Such a file is an outcome too: action "defragment", result "skipped", its reason, 0 bytes written.
    """
    outcomes = (*report.outcomes, *(_left_alone(skip, extents.get(skip.path, 0)) for skip in report.plan.skipped))
    return {"outcomes": [outcome_document(outcome) for outcome in outcomes], "totals": _totals(report, outcomes)}


def file_document(file: JournalFile) -> dict[str, object]:
    """One file, as in `scan -j`."""
    return {
        "path": file.path,
        "device": file.device,
        "inode": file.inode,
        "kind": file.kind,
        "owner": file.owner,
        "instance": file.instance,
        "state": file.state,
        "size_bytes": file.size_bytes,
        "allocated_bytes": file.allocated_bytes,
        "disk_bytes": file.disk_bytes,
        "extents": file.extents.total,
        "ideal_extents": file.ideal_extents,
        "shared_bytes": file.extents.shared_bytes,
        "compressed": file.compressed,
        "nocow": file.nocow,
        "entries": file.entries,
        "head_time_us": file.head_time_us,
        "tail_time_us": file.tail_time_us,
        "problem": file.problem,
    }


def _action(action: Action) -> dict[str, object]:
    return {
        "path": action.path,
        "action": action.action,
        "reason": action.reason,
        "ranges": [{"offset": one.offset, "length": one.length, "extents": one.extents} for one in action.ranges],
        "bytes_to_write": action.bytes_to_write,
        "extents_before": action.extents_before,
        "extents_expected": action.extents_expected,
        "unshared_bytes": action.unshared_bytes,
        "disk_bytes_saved": disk_bytes_saved(action),
        "read_seconds_saved": round(read_seconds_saved(action), 3),
    }


def _left_alone(skip: Skip, extents: int) -> Outcome:
    return Outcome(
        skip.path, Verb.DEFRAGMENT, Result.SKIPPED, skip.reason, extents, extents, None, None, 0, 0.0, skip.detail
    )


def outcome_document(outcome: Outcome) -> dict[str, object]:
    """One outcome, as in `defrag -j`."""
    return {
        "path": outcome.path,
        "action": outcome.action,
        "result": outcome.result,
        "reason": outcome.reason,
        "extents_before": outcome.extents_before,
        "extents_after": outcome.extents_after,
        "disk_bytes_before": outcome.disk_bytes_before,
        "disk_bytes_after": outcome.disk_bytes_after,
        "bytes_written": outcome.bytes_written,
        "duration_s": round(outcome.duration_s, 6),
        "unshared_bytes": outcome.unshared_bytes,
    }


def entry_document(when_us: int, origin: str, outcome: Outcome) -> dict[str, object]:
    """One outcome with its time and what began its run, as in `history -j`."""
    return {"when_us": when_us, "origin": origin, **outcome_document(outcome)}


def _totals(report: Report, outcomes: tuple[Outcome, ...]) -> dict[str, object]:
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
    """The disk bytes before and after of the files of which both are known; None if there is no such file."""
    known = [
        (before, after)
        for before, after in ((outcome.disk_bytes_before, outcome.disk_bytes_after) for outcome in outcomes)
        if before is not None and after is not None
    ]
    return (sum(before for before, _ in known), sum(after for _, after in known)) if known else (None, None)
