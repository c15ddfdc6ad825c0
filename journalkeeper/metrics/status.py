# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a host's journals are, in numbers: the one source for all that show them.

A number that is not known is None, never 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from journalkeeper.config import Config
from journalkeeper.model import Host, JournalFile, Kind, Outcome, Plan, Reason, Result
from journalkeeper.policy.cost import becomes_compressed, is_fragmented
from journalkeeper.wire.field import got
from journalkeeper.wire.records import FILE


class Status(NamedTuple):
    """The files after a run, what is left alone and why, and what may still be written today.

    `files` are all that are there, `problem_files` those of them that could not be judged and
    count for nothing else. `sums` are those of wire.records.FILE with a metric, by key; one of which
    not every file's part is known is None. `skipped` has each
    Reason with the number of files left alone for it. Budgets are None where nothing limits them.
    """

    files: int
    problem_files: int
    fragmented_files: int
    active_extents: int
    sums: Mapping[str, int | None]
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
    now = [file if after is None else _after(file, after, config) for file, after in known]
    here = {file.path for file in host.files}
    reasons = Counter(skip.reason for skip in plan.skipped if skip.path in here)
    budget = config.budget.bytes_per_day
    written = host.written_bytes + sum(outcome.bytes_written for outcome in outcomes)
    return Status(
        files=len(host.files),
        problem_files=len(host.files) - len(known),
        fragmented_files=sum(is_fragmented(file, after, config) for file, after in known),
        active_extents=sum(file.extents.total for file in now if file.kind is Kind.ACTIVE),
        sums={row.key: _sum([got(row, file) for file in now]) for row in FILE if row.metric},
        skipped=tuple(sorted(reasons.items())),
        window_open=any(window.open for window in plan.windows),
        budget_bytes=budget,
        budget_left_bytes=None if budget is None else max(0, budget - written),
    )


def _sum(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _after(file: JournalFile, outcome: Outcome, config: Config) -> JournalFile:
    """The file as a rewrite left it."""
    lies = file.extents._replace(total=outcome.extents_after)
    if becomes_compressed(file, config):
        lies = lies._replace(encoded_bytes=lies.data_bytes)
    return file._replace(extents=lies, disk_bytes=outcome.disk_bytes_after)
