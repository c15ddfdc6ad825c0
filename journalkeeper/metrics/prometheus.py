# SPDX-License-Identifier: LGPL-2.1-or-later
"""The status of a host in Prometheus's text format, for node_exporter's textfile collector.

A name ends with its unit, a counter ends in _total and never falls, and an unknown number is left out. There are no
time stamps, because the collector refuses them. There is no label `instance` or `job`, because a scrape adds them, and
no machine id, which is confidential (machine-id(5)). Source: prometheus.io, "Metric and label naming", "Exposition
formats".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Final, NamedTuple

from journalkeeper import __version__
from journalkeeper.metrics.status import Status
from journalkeeper.model import JournalFile, Result
from journalkeeper.model.history import Counters
from journalkeeper.model.schema import Key, Row, rows
from journalkeeper.model.units import SECOND_US

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

    `read` returns the record, or a mapping from JSON keys to values, from the Facts. Microseconds become seconds.
    """
    return [
        Family(row.about.metric_name or _name_metric(row), row.about.metric, partial(_read_sample, row, read))
        for row in rows(kind)
        if row.about.metric
    ]


def _name_metric(row: Row) -> str:
    """Return the row's key, without a prefix, and with "_seconds" in place of "_us"."""
    return f"{row.key.removesuffix('_us')}_seconds" if row.key.endswith("_us") else row.key


def _read_sample(row: Row, read: Callable[[Facts], object], facts: Facts) -> list[Sample]:
    """Return the sample of a value, without labels and with microseconds as seconds; [] if the value is unknown."""
    part = read(facts)
    value = part.get(row.key) if isinstance(part, Mapping) else getattr(part, row.attribute, None)
    if value is None:
        return []
    return [("", f"{value / SECOND_US:.6f}" if row.key.endswith("_us") else int(value))]


def _list_action_samples(facts: Facts) -> list[Sample]:
    counters = facts.counters
    return [] if counters is None else [(f'{{result="{one}"}}', getattr(counters, one)) for one in Result]


def _list_skip_samples(facts: Facts) -> list[Sample]:
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
