# SPDX-License-Identifier: LGPL-2.1-or-later
"""The status of a host in Prometheus's text format, for node_exporter's textfile collector.

A name ends with its unit, a counter ends in _total and never falls, and an unknown number is left out. There are no
time stamps, because the collector refuses them. There is no label `instance` or `job`, because a scrape adds them, and
no machine id, which is confidential (machine-id(5)). Source: prometheus.io, "Metric and label naming", "Exposition
formats".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from journalkeeper import __version__
from journalkeeper.metrics.status import Status
from journalkeeper.model import JournalFile
from journalkeeper.model.record import Row, rows
from journalkeeper.model.recorded import Counters
from journalkeeper.model.units import SECOND_US

PREFIX = "journalkeeper"


class Facts(NamedTuple):
    """The facts that are rendered.

    `status` is None until a run of this process has ended. `counters` is None if the history cannot be read, because a
    counter that falls to 0 would look like a restart. `succeeded` is about the last run, even if it had no work;
    `last_run_us` is the end of the last run with work. `intake_delay_us` is the longest wait of a message for journald.
    """

    succeeded: bool
    counters: Counters | None = None
    status: Status | None = None
    last_run_us: int | None = None
    intake_delay_us: int | None = None
    healthy: bool | None = None


class Type(StrEnum):
    """The type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"


Sample = tuple[str, int | str | None]
"""Labels in braces, or "", and the value. A sample with the value None is left out."""


class Family(NamedTuple):
    """A metric: its name without the prefix, its help text, and the function that returns its samples."""

    name: str
    type: Type
    help: str
    samples: Callable[[Facts], Iterable[Sample]]


def _gauge(name: str, text: str, value: Callable[[Status], int | None]) -> Family:
    """Return a metric with a number from the last run's status."""
    return Family(name, Type.GAUGE, text, lambda facts: [("", None if facts.status is None else value(facts.status))])


def _counter(name: str, text: str, value: Callable[[Counters], int | None]) -> Family:
    """Return a metric with a number from the history's counters."""
    return Family(
        name, Type.COUNTER, text, lambda facts: [("", None if facts.counters is None else value(facts.counters))]
    )


SUMMED: Final = sorted((row for row in rows(JournalFile) if row.about.metric), key=lambda row: row.nullable)
"""The fields of a file that are summed; the fields that only root can read come last."""


def _of_files(row: Row) -> Family:
    """Return a metric with the sum of a field over all files."""
    return _gauge(row.key, row.about.metric, lambda status: status.sums.get(row.key))


def _seconds(time_us: int | None) -> str | None:
    """Return microseconds as a decimal number of seconds."""
    return None if time_us is None else f"{time_us // SECOND_US}.{time_us % SECOND_US:06d}"


def _actions(facts: Facts) -> list[Sample]:
    counters = facts.counters
    if counters is None:
        return []
    tally = {"done": counters.done, "failed": counters.failed, "skipped": counters.skipped}
    return [(f'{{result="{result}"}}', count) for result, count in tally.items()]


def _count_skips(facts: Facts) -> list[Sample]:
    return [(f'{{reason="{reason}"}}', count) for reason, count in (facts.status.skipped if facts.status else ())]


FAMILIES: tuple[Family, ...] = (
    Family("build_info", Type.GAUGE, "1, with the version.", lambda _: [(f'{{version="{__version__}"}}', 1)]),
    Family(
        "healthy",
        Type.GAUGE,
        "1 if journalkeeper status says OK, 0 if it says what to act on.",
        lambda facts: [("", None if facts.healthy is None else int(facts.healthy))],
    ),
    Family(
        "last_run_success",
        Type.GAUGE,
        "1 if the last run succeeded, 0 if it failed.",
        lambda facts: [("", int(facts.succeeded))],
    ),
    Family(
        "last_run_timestamp_seconds",
        Type.GAUGE,
        "The time at which the last run with work ended.",
        lambda facts: [("", _seconds(facts.last_run_us))],
    ),
    _counter("run_failures_total", "Runs that failed as a whole.", lambda counters: counters.failed_runs),
    Family("actions_total", Type.COUNTER, "Actions on files and directories, by result.", _actions),
    _counter(
        "written_bytes_total",
        "Bytes written to journal files, before compression.",
        lambda counters: counters.bytes_written,
    ),
    Family(
        "reclaimed_bytes",
        Type.GAUGE,
        "Bytes of disk space that rewrites freed since the installation, less the bytes that they used, if measured.",
        lambda facts: [("", None if facts.counters is None else facts.counters.bytes_reclaimed)],
    ),
    _counter(
        "removed_extents_total",
        "Extents that rewrites removed since the installation.",
        lambda counters: counters.extents_removed,
    ),
    _gauge("files", "Journal files.", lambda status: status.files),
    _gauge("problem_files", "Journal files that could not be judged.", lambda status: status.problem_files),
    _gauge(
        "fragmented_files",
        "Journal files for which the gain of a rewrite is worth its cost, also if a reason delays the rewrite.",
        lambda status: status.fragmented_files,
    ),
    Family("skipped_files", Type.GAUGE, "Journal files that were not rewritten, by reason.", _count_skips),
    *(_of_files(row) for row in SUMMED if not row.key.endswith("_bytes")),
    _gauge("active_extents", "Extents of the files that journald writes.", lambda status: status.active_extents),
    *(_of_files(row) for row in SUMMED if row.key.endswith("_bytes")),
    _gauge("budget_bytes", "The daily write budget.", lambda status: status.budget_bytes),
    _gauge("budget_left_bytes", "Bytes left of the daily write budget.", lambda status: status.budget_left_bytes),
    _gauge(
        "window_open", "1 if work on a file that journald writes was allowed.", lambda status: int(status.window_open)
    ),
    Family(
        "intake_delay_seconds",
        Type.GAUGE,
        "The longest time that one of the newest messages waited for journald since the last look.",
        lambda facts: [("", _seconds(facts.intake_delay_us))],
    ),
)


def render(facts: Facts) -> str:
    """Return the whole text: HELP, TYPE and samples of each metric that has a sample."""
    lines: list[str] = []
    for family in FAMILIES:
        samples = [(labels, value) for labels, value in family.samples(facts) if value is not None]
        if samples:
            name = f"{PREFIX}_{family.name}"
            lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.type}"]
            lines += [f"{name}{labels} {value}" for labels, value in samples]
    return "".join(f"{line}\n" for line in lines)
