# SPDX-License-Identifier: LGPL-2.1-or-later
"""The status of a host in Prometheus's text format, for node_exporter's textfile collector.

A name ends with its unit, a counter ends in _total and never falls, and an unknown number is left out. There are no
time stamps, because the collector refuses them. There is no label `instance` or `job`, because a scrape adds them, and
no machine id, which is confidential (machine-id(5)). Source: prometheus.io, "Metric and label naming", "Exposition
formats".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final, NamedTuple

from journalkeeper import __version__
from journalkeeper.config import Config
from journalkeeper.model import Host, JournalFile, Kind, Outcome, Plan, Reason, Result, Sums, Verb
from journalkeeper.model.run import Counters
from journalkeeper.model.schema import Key, Row, list_rows
from journalkeeper.model.units import SECOND_US
from journalkeeper.policy.cost import becomes_compressed, is_fragmented


class Status(NamedTuple):
    """Counts and sums of the files after a run, and the budget.

    `files` counts all files. `problem_files` of them could not be judged: only `skipped` has them, too. `sums`
    has the sum of each value of a JournalFile with a metric, by key, or None if the value of one file is unknown.
    `skipped` has each Reason with the number of files that it kept from a rewrite. Budgets are None without a limit.
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


def compute_status(host: Host, plan: Plan, outcomes: Sequence[Outcome], config: Config) -> Status:
    """Return the numbers of `host` after `plan` led to `outcomes`, without another look at the files.

    A rotated file counts as before, and the new file from the next look on. An outcome that is not DONE only reduces
    the budget, to 0 at least.
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
    """Return `file` with only the extents and disk bytes (None if not measured) of `outcome`, a finished rewrite of it.

    If the file was compressed, or `config` compresses it, all data counts as compressed, whatever the request named.
    """
    lies = file.extents._replace(total=outcome.extents_after)
    if becomes_compressed(file, config):
        lies = lies._replace(encoded_bytes=lies.data_bytes)
    return file._replace(extents=lies, disk_bytes=outcome.disk_bytes_after)


PREFIX = "journalkeeper"


class Facts(NamedTuple):
    """The facts that are rendered.

    `status` is None until a run of this process has ended. `counters` is None if the history cannot be read, because a
    counter that falls to 0 would look like a restart. `last_run_success` is about the last run, even if it had no work;
    `last_run_timestamp_us` is the end of the last run with work. `intake_delay_us` is the longest wait of a message for
    journald.
    """

    last_run_success: Annotated[bool, Key(metric="1 if the last run succeeded, 0 if it failed.")]
    counters: Counters | None = None
    status: Status | None = None
    last_run_timestamp_us: Annotated[int | None, Key(metric="The time at which the last run with work ended.")] = None
    intake_delay_us: Annotated[int | None, Key(metric="The longest wait for journald since the last look.")] = None
    healthy: Annotated[bool | None, Key(metric="1 if the verdict of journalkeeper status is OK, else 0.")] = None
    unhealthy_since_timestamp_us: Annotated[
        int | None, Key(metric="When the verdict changed from OK; 0: it is OK.")
    ] = None
    by_service: Annotated[bool, Key(metric="1 if the service keeps this file, 0 if a command wrote it.")] = False


Sample = tuple[str, int | str]
"""Labels in braces, or "", and the value."""


class Family(NamedTuple):
    """A metric: its name without the prefix, its help text, and the function that returns its samples."""

    name: str
    help: str
    samples: Callable[[Facts], list[Sample]]

    @property
    def type(self) -> str:
        """The type of the metric: "counter" if its name ends in _total, else "gauge"."""
        return "counter" if self.name.endswith("_total") else "gauge"


def _make_families(kind: type, read: Callable[[Facts], object]) -> list[Family]:
    """Return a metric for each published field of the record class `kind` whose Key has a text for a metric.

    `read` returns the record, or a mapping from JSON keys to values. A Key's `metric_name` replaces `_name_metric`.
    """
    return [
        Family(row.about.metric_name or _name_metric(row), row.about.metric, partial(_read_sample, row, read))
        for row in list_rows(kind)
        if row.about.metric
    ]


def _name_metric(row: Row) -> str:
    """Return the row's key, with "_seconds" in place of "_us" at its end. `render` adds PREFIX."""
    return f"{row.key.removesuffix('_us')}_seconds" if row.key.endswith("_us") else row.key


def _read_sample(row: Row, read: Callable[[Facts], object], facts: Facts) -> list[Sample]:
    """Return the sample of a value, also of 0, without labels and with microseconds as seconds; [] if it is None."""
    part = read(facts)
    value = part.get(row.key) if isinstance(part, Mapping) else getattr(part, row.attribute, None)
    if value is None:
        return []
    return [("", f"{value / SECOND_US:.6f}" if row.key.endswith("_us") else int(value))]


def _list_action_samples(facts: Facts) -> list[Sample]:
    """Return the counter of each Result, also if it is 0, with the label `result`; [] without counters."""
    counters = facts.counters
    return [] if counters is None else [(f'{{result="{one}"}}', getattr(counters, one)) for one in Result]


def _list_skip_samples(facts: Facts) -> list[Sample]:
    """Return the number of files of each Reason that skipped any, with the label `reason`; [] before the first run."""
    return [(f'{{reason="{reason}"}}', count) for reason, count in (facts.status.skipped if facts.status else ())]


FAMILIES: Final = (
    Family("build_info", "1, with the version.", lambda _: [(f'{{version="{__version__}"}}', 1)]),
    *_make_families(Facts, lambda facts: facts),
    *_make_families(Counters, lambda facts: facts.counters),
    Family("actions_total", "Actions on files and directories, by result.", _list_action_samples),
    *_make_families(Status, lambda facts: facts.status),
    *_make_families(JournalFile, lambda facts: facts.status and facts.status.sums),
    Family("skipped_files", "Journal files that were not rewritten, by reason.", _list_skip_samples),
)


def render(facts: Facts) -> str:
    """Return the whole text: HELP, TYPE and samples of each metric that has a sample."""
    lines: list[str] = []
    for family in FAMILIES:
        if samples := family.samples(facts):
            name = f"{PREFIX}_{family.name}"
            lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.type}"]
            lines += [f"{name}{labels} {value}" for labels, value in samples]
    return "".join(f"{line}\n" for line in lines)
