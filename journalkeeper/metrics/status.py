# SPDX-License-Identifier: LGPL-2.1-or-later
"""Numbers on the state of a host's journals: the one source for all outputs.

An unknown number is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

from journalkeeper.config import Config
from journalkeeper.model import Host, JournalFile, Kind, Outcome, Plan, Reason, Result, Sums, Verb
from journalkeeper.model.schema import Key
from journalkeeper.policy.cost import becomes_compressed, is_fragmented


class Status(NamedTuple):
    """Counts and sums of the files after a run, and the budget.

    `files` counts all files. `problem_files` of them could not be judged and are in no other number. `sums` has the sum
    of each value of a JournalFile with a metric, by key, or None if the value of one file is unknown. `skipped` has
    each Reason with the number of files that it kept from a rewrite. Budgets are None without a limit.
    """

    files: Annotated[int, Key(metric="Journal files.")]
    problem_files: Annotated[int, Key(metric="Journal files that could not be judged.")]
    fragmented_files: Annotated[int, Key(metric="Journal files that are worth a rewrite, also if a reason delays it.")]
    active_extents: Annotated[int, Key(metric="Extents of the files that journald writes.")]
    sums: Mapping[str, int | None]
    skipped: tuple[tuple[Reason, int], ...]
    window_open: Annotated[bool, Key(metric="1 if work on a file that journald writes was allowed.")]
    budget_bytes: Annotated[int | None, Key(metric="The daily write budget.")]
    budget_left_bytes: Annotated[int | None, Key(metric="Bytes left of the daily write budget.")]


def status(host: Host, plan: Plan, outcomes: Sequence[Outcome], config: Config) -> Status:
    """Return the numbers of `host` after `plan` led to `outcomes`, without another look at the files.

    A rotated file counts as before, and the new file from the next look on. An outcome that is not DONE only reduces
    the budget. `budget_left_bytes` is None without a budget.
    """
    became = {one.path: one for one in outcomes if one.result is Result.DONE and one.action is not Verb.ROTATE}
    known = [file for file in host.files if file.problem is None]
    now = [_apply_outcome(file, became[file.path], config) if file.path in became else file for file in known]
    here = {file.path for file in host.files}
    reasons = Counter(skip.reason for skip in plan.skipped if skip.path in here)
    budget = config.budget.bytes_per_day
    written = host.written_bytes + sum(outcome.bytes_written for outcome in outcomes)
    return Status(
        files=len(host.files),
        problem_files=len(host.files) - len(known),
        fragmented_files=sum(is_fragmented(file, became.get(file.path), config) for file in known),
        active_extents=sum(file.extents.total for file in now if file.kind is Kind.ACTIVE),
        sums={**Sums.of(now)._asdict(), "shared_bytes": sum(file.extents.shared_bytes for file in now)},
        skipped=tuple(sorted(reasons.items())),
        window_open=any(window.open for window in plan.window.values()),
        budget_bytes=budget,
        budget_left_bytes=None if budget is None else max(0, budget - written),
    )


def _apply_outcome(file: JournalFile, outcome: Outcome, config: Config) -> JournalFile:
    """Return `file` with the extents and disk bytes of `outcome`, a finished rewrite of it.

    A compression that only the request named is not considered.
    """
    lies = file.extents._replace(total=outcome.extents_after)
    if becomes_compressed(file, config):
        lies = lies._replace(encoded_bytes=lies.data_bytes)
    return file._replace(extents=lies, disk_bytes=outcome.disk_bytes_after)
