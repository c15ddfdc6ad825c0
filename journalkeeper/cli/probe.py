# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe`: measure what loggers, readers and disks wait for.

Measures how long programs wait when they log, how long a reader waits for a new entry, and how long an
fsync takes. Ctrl-C ends a measurement and shows the values so far.

examples:
  journalkeeper probe intake --boot            how long did messages wait?
  sudo journalkeeper probe fsync --who         which process syncs which file?
  sudo journalkeeper probe syslog --seconds=2  how long does a program wait?

exit status:
  0 measured; 1 it could not be measured, messages were lost, or the figures
  are unreliable; 2 wrong usage
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, cast

from pydantic import JsonValue

from journalkeeper import __version__
from journalkeeper.cli.context import Context
from journalkeeper.cli.parser import add_common_options, between, parse_time_us, split_help
from journalkeeper.cli.progress import interrupt_on_signals
from journalkeeper.cli.table import Column, Table
from journalkeeper.model.errors import NeedsRootError
from journalkeeper.model.schema import Moment
from journalkeeper.model.units import spell_time
from journalkeeper.probe.base import Measurement, Statistics, Writes, compute_statistics

ROWS: Final = 20
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "since": {"metavar": "TIME", "type": parse_time_us, "help": "leave out older entries"},
    "boot": {"action": "store_true", "help": "this boot only"},
    "follow": {"action": "store_true", "help": "also measure new messages, until Ctrl-C"},
    "size": {"metavar": "BYTES", "type": between(64, 128 << 10, int), "help": "of a message (default: %(default)s)"},
    "rate": {"metavar": "N", "type": between(0.01, 20_000), "help": "how many a second (default: %(default)g)"},
    "who": {"action": "store_true", "help": "watch which process syncs which file, and write nothing"},
    "argv": {"nargs": "+", "metavar": "COMMAND", "help": "a command to run, with its arguments, after `--`"},
    "seconds": {"metavar": "N", "type": between(0.1, 86_400), "help": "the duration in seconds (default: %(default)g)"},
}


class Probe(NamedTuple):
    """One probe: its name, a summary, and its options with their defaults. Its module has its help as docstring.

    `limit_us` is the limit of its verdict, None for IntakeDelayMaxSec=, and `limit_source` names the limit.
    """

    name: str
    summary: str
    options: Mapping[str, JsonValue]
    limit_us: int | None = None
    limit_source: str = "IntakeDelayMaxSec= in journalkeeper.conf(5)"
    needs_root: bool = True

    def load(self) -> ModuleType:
        """Import the probe's module, whose `measure` makes the measurement."""
        return importlib.import_module(f"journalkeeper.probe.{self.name}")


_ENTRIES: Final = {"since": None, "boot": False, "follow": False}
_LINES: Final = {"seconds": 15, "argv": None}
_LATE: Final = "journald notifies readers after 250 ms, with a timer that may be 250 ms late"
PROBES: Final = (
    Probe("intake", "how long messages waited for journald", _ENTRIES, needs_root=False),
    Probe("syslog", "how long a program waits in syslog(3)", {"size": 200, "rate": 100, "seconds": 10}),
    Probe("fsync", "how long an fsync takes, or who syncs what", {"rate": 10, "seconds": 10, "who": False}),
    Probe("writes", "how many bytes are written for each byte that is logged", {"seconds": 300}),
    Probe("stream", "why a program's lines come late to a reader", _LINES, 500_000, _LATE, needs_root=False),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each probe, with its options and the help in its module. The user must name one probe."""
    below = parser.add_subparsers(dest="probe", metavar="PROBE", title="probes", required=True)
    exit_status = (__doc__ or "").rpartition("\n\n")[2]
    for probe in PROBES:
        description, examples = split_help(probe.load().__doc__)
        epilog = f"{examples}\n\n{exit_status}"
        sub = below.add_parser(probe.name, help=probe.summary, description=description, epilog=epilog)
        add_common_options(sub)
        for name, default in probe.options.items():
            sub.add_argument(name if name == "argv" else f"--{name}", default=default, **OPTIONS[name])


def run(args: argparse.Namespace, context: Context) -> int:
    """Run the probe `args.probe`, show its result, and return the exit status: 1 if messages were lost or the figures
    cannot be trusted, for which stderr has the reasons.

    A signal ends the probe early. The values until then are shown with a note, and the status is 1 without --follow.

    Raises: NeedsRootError if the probe needs root; as `Context.read_config`; errors of the probe's function `measure`;
        KeyboardInterrupt for a signal before the first values.
    """
    probe = next(row for row in PROBES if row.name == args.probe)
    if probe.needs_root and not context.privileged:
        raise NeedsRootError("it traces, or reads and writes what belongs to root")
    if getattr(args, "since", None) is not None:
        args.since = f"@{args.since / 1e6:.6f}"
    limit_us = probe.limit_us or context.read_config().window.intake_delay_max_us
    interrupt_on_signals()
    found, interrupted = Measurement(), False
    try:
        probe.load().measure(args, found)
    except KeyboardInterrupt:
        if not found.series:
            raise
        interrupted = True
        found.notes.append("Interrupted: this is what there is.")
    answer = ProbeAnswer(
        probe=cast("Any", probe.name),
        version=__version__,
        began_us=context.now_us,
        options={name: getattr(args, name) for name in probe.options},
        series=[compute_statistics(one) for one in found.series],
        notes=found.notes,
        faults=found.faults,
        losses=found.losses,
        writes=found.writes,
        verdict=found.describe_verdict(limit_us * 1000, probe.limit_source),
    )
    table, key = _make_table(answer, found.length_s)
    context.output.show(answer, [answer.verdict], table, legend=[[key], found.notes])
    context.output.note(*found.faults)
    return int(bool(found.faults or found.losses) or (interrupted and not getattr(args, "follow", False)))


class ProbeAnswer(NamedTuple):
    """The answer of `probe`."""

    probe: Literal["intake", "syslog", "fsync", "writes", "stream"]
    version: str
    began_us: Moment
    options: dict[str, JsonValue]
    """The options that only this probe has."""
    series: list[Statistics]
    notes: list[str]
    faults: list[str]
    losses: list[str]
    writes: Writes | None
    """null but for `probe writes`."""
    verdict: str


def _make_table(answer: ProbeAnswer, length_s: float | None) -> tuple[Table[Statistics], str]:
    """Return the table of the series, and its key. For a trace of `length_s`, the first ROWS rows have their mean, and
    their share of `length_s`, in place of percentiles.
    """
    if not length_s:
        return Table(_COLUMNS, answer.series), '"-": too few waits for this figure.'
    (count, *_, worst, name), right = _COLUMNS, True
    mean = Column[Statistics]("MEAN", lambda row: _format_s(row.mean_s), right)
    share = mean._replace(title="SHARE", cell=lambda row: f"{row.total_s / length_s:.1%}")
    table = Table((count, mean, worst, share, name), answer.series[:ROWS])
    return table, f"At most {ROWS} rows, by their share. -j shows all."


def _format_s(time_s: float | None) -> str:
    return "-" if time_s is None else spell_time(time_s)


_COLUMNS: Final[tuple[Column[Statistics], ...]] = (
    Column("COUNT", lambda row: f"{row.waits}", right=True),
    Column("P50", lambda row: _format_s(row.p50_s), right=True),
    Column("P90", lambda row: _format_s(row.p90_s), right=True),
    Column("P99", lambda row: _format_s(row.p99_s), right=True),
    Column("P99.9", lambda row: _format_s(row.p99_9_s), right=True),
    Column("WORST", lambda row: _format_s(row.worst_s), right=True),
    Column("NAME", lambda row: row.name, gives="text"),
)
