# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe`: measure what loggers, readers and disks wait for.

Measures how long loggers, readers and disks wait, and keeps every value. Ctrl-C ends a measurement and
shows the values so far.

examples:
  journalkeeper probe intake --boot            how long did messages wait?
  sudo journalkeeper probe fsync --who=2       which process syncs which file?
  sudo journalkeeper probe syslog --seconds=2  how long does a program wait?

exit status:
  0 measured; 1 it could not be measured, messages were lost, or the figures
  are unreliable; 2 wrong usage
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from journalkeeper import __version__
from journalkeeper.cli.parser import between, common
from journalkeeper.cli.progress import interrupt_on_signals
from journalkeeper.cli.table import Column, Table, elide
from journalkeeper.model.errors import NeedsRootError
from journalkeeper.model.record import Moment
from journalkeeper.probe import distribution as report

if TYPE_CHECKING:
    from journalkeeper.cli.context import Context
    from journalkeeper.cli.output import Output
    from journalkeeper.probe.base import Measurement

EXIT_STATUS: Final = """
exit status:
  0 measured; 1 it could not be measured, messages were lost, or the figures are
  unreliable; 2 wrong usage"""

WIDTH, NAME_WIDTH = 80, 24
INTERRUPTED: Final = "Interrupted: this is what there is."
WORDS: Final = frozenset({"name", "process", "call", "program", "way"})


OWN: Final = "measure the host's journald, not one of our own with its files below -D DIR or /var/tmp"
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "since": {"metavar": "TIME", "help": "leave out what is older"},
    "boot": {"action": "store_true", "help": "this boot only"},
    "follow": {"action": "store_true", "help": "also measure new messages, until Ctrl-C"},
    "host": {"action": "store_true", "help": OWN},
    "size": {
        "metavar": "BYTES",
        "type": between(64, 128 << 10, int),
        "help": "the size of a message or line (default: %(default)s)",
    },
    "rate": {"metavar": "N", "type": between(0.01, 20_000), "help": "the number per second (default: %(default)g)"},
    "flat-out": {"action": "store_true", "help": "send one message after the other"},
    "seconds": {"metavar": "N", "type": between(0.1, 86_400), "help": "the duration (default: %(default)g)"},
    "who": {"metavar": "SECONDS", "type": between(0.1, 60), "help": "watch instead which process syncs which file"},
}
EITHER: Final = ("rate", "flat-out")


class Probe(NamedTuple):
    """One probe:

    its word, summary, description for --help, examples, options with defaults, reason for root, and limit.

    `limit_us` is the limit of its verdict, None for IntakeDelayMaxSec=; `limit_source` names it.
    """

    name: str
    summary: str
    description: str
    examples: str
    options: dict[str, Any]
    needs_root: str
    limit_us: int | None = None
    limit_source: str = "IntakeDelayMaxSec= in journalkeeper.conf(5)"


_STARTS: Final = "it starts a journald, or asks the host's"
PROBES: Final = (
    Probe(
        "intake",
        "how long messages waited for journald, from the times in the journal",
        """\
Compares journald's time of each entry with the kernel's time of its datagram, for each unit,
and says of each stall what journald did meanwhile. It reads the journal and changes nothing.""",
        """
  journalkeeper probe intake --boot            since this machine was started
  journalkeeper probe intake --since=-1h       in the last hour""",
        {"since": None, "boot": False, "follow": False},
        "",
    ),
    Probe(
        "syslog",
        "how long a program waits in syslog(3), and its message until journald takes it",
        """\
Sends messages as syslog(3) does, and measures how long each call takes and how long each message
waits until journald takes it. It starts a journald of its own, or asks the host's with --host.""",
        """
  sudo journalkeeper probe syslog --seconds=2
  sudo journalkeeper probe syslog --seconds=2 --flat-out -j""",
        {"host": False, "size": 200, "rate": 100, "flat-out": False, "seconds": 10},
        _STARTS,
    ),
    Probe(
        "fsync",
        "how long an fsync takes next to the journal, and who syncs what",
        """\
Writes 4 KiB at a time to a file of its own next to the journal and syncs it: alone, and next to a
writer that keeps the volume busy for 5 and then for 20 percent of the time. With --who it writes
nothing, and shows which process syncs which file.""",
        """
  sudo journalkeeper probe fsync --seconds=1   one second each
  sudo journalkeeper probe fsync --who=2       who waits for which file?""",
        {"rate": 10, "seconds": 10, "who": None},
        "it writes next to the journal, or traces",
    ),
    Probe(
        "stream",
        "how long a program's lines take to reach a reader that follows the journal",
        """\
Starts two programs that print lines, one of which buffers them, and measures how long a line takes
to journald and on to `journalctl --follow`. With COMMAND it runs that, and shows how many of its
lines come to journald at once. It starts a journald of its own, or asks the host's with --host.""",
        """
  sudo journalkeeper probe stream --seconds=2
  sudo journalkeeper probe stream --seconds=5 -- vmstat 1""",
        {"host": False, "size": 100, "rate": 20, "seconds": 15, "argv": []},
        _STARTS,
        500_000,
        "journald notifies readers after 250 ms, with a timer that may be 250 ms late",
    ),
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the probes, each with its own options."""
    below = parser.add_subparsers(dest="probe", metavar="PROBE", title="probes", required=True)
    for probe in PROBES:
        sub = below.add_parser(
            probe.name,
            help=probe.summary,
            description=probe.description,
            epilog=f"examples:{probe.examples}\n{EXIT_STATUS}",
        )
        common(sub)
        either = sub.add_mutually_exclusive_group() if {*EITHER} <= {*probe.options} else sub
        for name, default in probe.options.items():
            if name == "argv":
                sub.add_argument(name, nargs="*", metavar="COMMAND", help="measure this one, as root, until it ends")
                continue
            (either if name in EITHER else sub).add_argument(f"--{name}", default=default, **OPTIONS[name])


def run(args: argparse.Namespace, context: Context) -> int:
    """Run the probe `args.probe`, show its result, and return the exit code.

    A signal (SIGINT, SIGTERM, SIGHUP) ends the probe early, and its result until then is shown. The code is 1 if
    messages were lost, if the probe had a fault, or after a signal without --follow.

    Raises: NeedsRootError if the probe needs root.
    """
    probe = next(row for row in PROBES if row.name == args.probe)
    if probe.needs_root and not context.privileged:
        raise NeedsRootError(probe.needs_root)
    since_us = context.time_us(getattr(args, "since", None) or None)
    if since_us is not None:
        args.since = f"@{since_us / 1e6:.6f}"
    limit_us = probe.limit_us or context.config().window.intake_delay_max_us
    limit = report.Limit(limit_us * 1000, probe.limit_source)
    output = context.output
    interrupt_on_signals()
    steps = importlib.import_module(f"journalkeeper.probe.{probe.name}").measure(args)
    found = next(steps)
    try:
        for _ in steps:
            pass
    except KeyboardInterrupt:
        found.notes.append(INTERRUPTED)
    finally:
        steps.close()
    found.note_clock_step()
    interrupted = INTERRUPTED in found.notes
    said = found.verdict(limit)
    answer = make_answer(probe, args, found, context.now_us, said)
    output.show(answer, *text(found, said, output), legend=[found.notes])
    for fault in found.faults:
        output.note(fault)
    return int(bool(found.faults or found.losses) or (interrupted and not getattr(args, "follow", False)))


class ProbeAnswer(NamedTuple):
    """The answer of `probe`."""

    probe: Literal["intake", "syslog", "fsync", "stream"]
    version: str
    began_us: Moment
    options: dict[str, Any]
    """The options that only this probe has."""
    series: list[report.SeriesAnswer]
    notes: list[str]
    faults: list[str]
    losses: list[str]
    verdict: str


def make_answer(probe: Probe, args: argparse.Namespace, found: Measurement, began_us: int, said: str) -> ProbeAnswer:
    """Return the answer of a measurement."""
    options = {name: getattr(args, name.replace("-", "_")) for name in probe.options}
    series = [report.make_answer(one) for one in found.series]
    name: Any = probe.name
    return ProbeAnswer(name, __version__, began_us, options, series, found.notes, found.faults, found.losses, said)


def text(found: Measurement, said: str, output: Output) -> list[list[str]]:
    """Return the blocks of text that show a measurement: verdict, histograms, and table.

    `said` is the verdict. Each series has a histogram, and one or two rows in the table.
    """
    table = tuple(Column(name.upper(), _cell(name), right=name not in WORDS) for name in found.columns)
    rows = [words for series in found.series for words in _words(series)]
    drawn = [series for series in found.series if series.planned_ns is not None] or found.series[:1]
    blocks = [[said]]
    if "name" in found.columns:
        blocks += [[series.name, *report.rows(series.waits_ns())] for series in drawn if series.began_ns]
    lines = output.format(Table(table, rows))
    heads = len(lines) - len(rows)
    for number in range(len(rows), 0, -1):
        if detail := rows[number - 1].get("detail"):
            lines.insert(heads + number, f"  {elide(detail, WIDTH - 2)}")
    return [*blocks, lines]


def _cell(column: str) -> Callable[[dict[str, str]], str]:
    return lambda words: elide(words.get(column, "-"), NAME_WIDTH)


def _words(series: report.Series) -> list[dict[str, str]]:
    """Return the table rows of a series, as texts by column.

    A series with planned times has two rows: one counts from the planned time, one from the begin of the call.
    """
    found = [(series.name, report.statistics(series.waits_ns()))]
    if series.planned_ns is not None:
        found.append(("  since the call", report.statistics(series.took_ns)))
    lines = []
    for name, values in found:
        words = {key: report.format_wait(value) for key, value in values.items()} | series.labels
        if "file" in words:
            words["detail"] = f"{words['thread']}: {words['file']}"
        lines.append(words | {"name": name, "count": str(values["count"])})
    return lines
