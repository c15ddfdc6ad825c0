# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a host's journals are, in numbers: the one source for all that show them.

A number that is not known is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from journalkeeper.config import Config
from journalkeeper.model import Host, Kind, Outcome, Plan, Reason, Result
from journalkeeper.policy.cost import is_fragmented, whole_extents


class Status(NamedTuple):
    """The files after a run, what is left alone and why, and what may still be written today.

    `files` are all that are there, `problem_files` those of them that could not be judged and
    count for nothing else. `disk_bytes` is known where every file's is. `skipped` has each
    Reason with the number of files left alone for it. Budgets are None where nothing limits them.
    """

    files: int
    problem_files: int
    fragmented_files: int
    extents: int
    ideal_extents: int
    active_extents: int
    size_bytes: int
    allocated_bytes: int
    shared_bytes: int
    disk_bytes: int | None
    skipped: tuple[tuple[Reason, int], ...]
    window_open: bool
    budget_bytes: int | None
    budget_left_bytes: int | None


def status(host: Host, plan: Plan, outcomes: Sequence[Outcome], config: Config) -> Status:
    """The numbers of `host` after `plan` came to `outcomes`.

    What a rotation made is not among them before the next look.
    """
    became = {outcome.path: outcome for outcome in outcomes if outcome.result is Result.DONE}
    known = [(file, became.get(file.path)) for file in host.files if file.problem is None]
    extents = {file.path: file.extents.total if after is None else after.extents_after for file, after in known}
    disk = [file.disk_bytes if after is None else after.disk_bytes_after for file, after in known]
    here = {file.path for file in host.files}
    rest, reasons = host.finished.total, Counter(host.finished.reasons)
    reasons.update(skip.reason for skip in plan.skipped if skip.path in here)
    budget = config.budget.bytes_per_day
    written = host.written_bytes + sum(outcome.bytes_written for outcome in outcomes)
    return Status(
        files=len(host.files) + rest.files,
        problem_files=len(host.files) - len(known),
        fragmented_files=rest.fragmented + sum(is_fragmented(file, after, config) for file, after in known),
        extents=rest.extents + sum(extents.values()),
        ideal_extents=rest.ideal_extents
        + sum(
            file.ideal_extents if after is None else min(after.extents_after, whole_extents(file, config))
            for file, after in known
        ),
        active_extents=sum(extents[file.path] for file, _ in known if file.kind is Kind.ACTIVE),
        size_bytes=rest.size_bytes + sum(file.size_bytes for file, _ in known),
        allocated_bytes=rest.allocated_bytes + sum(file.allocated_bytes for file, _ in known),
        shared_bytes=rest.shared_bytes + sum(file.extents.shared_bytes for file, _ in known),
        disk_bytes=None if rest.unmeasured or None in disk else rest.disk_bytes + sum(filter(None, disk)),
        skipped=tuple(sorted(reasons.items())),
        window_open=any(window.open for window in plan.windows),
        budget_bytes=budget,
        budget_left_bytes=None if budget is None else max(0, budget - written),
    )
