# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe`: measures what loggers, readers and disks wait for."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import signal
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from journalkeeper import __version__
from journalkeeper.cli.parser import Help, common
from journalkeeper.cli.table import Column, Row, render, stacked
from journalkeeper.cli.text import counted, elided, shown
from journalkeeper.cli.times import parse_time_us, shown_time
from journalkeeper.model.errors import FileError, NeedsRootError, UsageError
from journalkeeper.model.units import INFINITY_US, parse_span_us
from journalkeeper.report import distribution as report

if TYPE_CHECKING:
    from journalkeeper.cli.context import Context
    from journalkeeper.cli.output import Output
    from journalkeeper.probe.base import Measurement

DESCRIPTION = """\
Measures what loggers, readers and disks wait for, keeps every value, and compares it with what was
measured before. Ctrl-C ends a measurement and shows what there is."""

EXAMPLES = """\
examples:
  journalkeeper probe intake --boot       how long did messages wait for journald?
  journalkeeper probe fsync --who=2       who waits for which file?
  journalkeeper probe syslog --seconds=2 -j | tee before.json
  journalkeeper probe syslog --seconds=2 --against=before.json

exit status:
  0 measured; 1 it could not be measured, or the figures are not to be trusted; 2 wrong usage"""

MOST_BYTES: Final = 128 << 10
MOST_RATE: Final = 20_000
MOST_SECONDS: Final = 86_400
WHO_SECONDS: Final = 60
NAME_WIDTH: Final = 24
INTERRUPTED: Final = "Interrupted: this is what there is."
WORDS: Final = frozenset({"name", "process", "thread", "program", "way", "file"})


class Probe(NamedTuple):
    """One row: the word, its question, the module that answers it, why root, and whose limit it is held against."""

    name: str
    summary: str
    options: Callable[[argparse.ArgumentParser], None]
    needs_root: str
    limit_us: int | None = None
    limit_source: str = "IntakeDelayMaxSec= in journalkeeper.conf(5)"


def between(least: float, most: float, kind: type = float) -> Callable[[str], Any]:
    """A number as an option takes it."""

    def number(text: str) -> Any:
        value = kind(text)
        if not math.isfinite(value) or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: a number from {least:g} to {most:g}")
        return value

    number.__name__ = "number"
    return number


def _rate(parser: argparse._ActionsContainer, default: float, what: str) -> None:
    parser.add_argument(
        "--rate",
        metavar="N",
        type=between(0.01, MOST_RATE),
        default=default,
        help=f"{what} a second (default: %(default)g)",
    )


def _seconds(parser: argparse.ArgumentParser, default: float) -> None:
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=between(0.1, MOST_SECONDS),
        default=default,
        help="how long (default: %(default)g)",
    )


def _size(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument(
        "--size",
        metavar="BYTES",
        type=between(64, MOST_BYTES, int),
        default=default,
        help="of each message, 64 to 131072 (default: %(default)s)",
    )


def _host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        action="store_true",
        help="the host's journald; without it one of our own, with its files below -D DIR or /var/tmp",
    )


def _intake(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", metavar="TIME", help="nothing older than this")
    parser.add_argument("-b", "--boot", action="store_true", help="this boot only")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new messages until Ctrl-C")


def _syslog(parser: argparse.ArgumentParser) -> None:
    _host(parser)
    _size(parser, 200)
    rates = parser.add_mutually_exclusive_group()
    _rate(rates, 100, "messages")
    rates.add_argument("--flat-out", action="store_true", help="one message after the other")
    _seconds(parser, 10)
    parser.add_argument(
        "--starve",
        metavar="PERCENT",
        type=_percent,
        help="let our own journald run for so much of each 100 ms only, as cpulimit(1) does: 1%% to 99%%",
    )


def _percent(text: str) -> float:
    return float(between(1, 99)(text.removesuffix("%")))


def _fsync(parser: argparse.ArgumentParser) -> None:
    _rate(parser, 10, "fsyncs")
    _seconds(parser, 10)
    parser.add_argument(
        "--who",
        metavar="SECONDS",
        type=between(0.1, WHO_SECONDS),
        help="watch who syncs what instead, for up to 60 seconds",
    )


def _stream(parser: argparse.ArgumentParser) -> None:
    _host(parser)
    _rate(parser, 20, "lines")
    _size(parser, 100)
    _seconds(parser, 15)


PROBES: Final = (
    Probe("intake", "how long messages waited for journald, by the journal itself", _intake, ""),
    Probe("syslog", "how long a program waits in syslog(3)", _syslog, "it starts a journald, or asks the host's"),
    Probe(
        "fsync",
        "how long an fsync takes beside the journal, and who syncs what",
        _fsync,
        "it writes beside the journal, or traces",
    ),
    Probe(
        "stream",
        "when a program's lines come to who follows them",
        _stream,
        "it starts a journald, or asks the host's",
        250_000,
        "what journald itself waits before it tells readers, systemd's journal-file.c",
    ),
)


def options(parser: argparse.ArgumentParser) -> None:
    """The probes, each with its own options."""
    below = parser.add_subparsers(dest="probe", metavar="PROBE", title="probes", required=True)
    for probe in PROBES:
        sub = below.add_parser(probe.name, help=probe.summary, formatter_class=Help, allow_abbrev=False)
        common(sub, default=False)
        sub.add_argument("--every", metavar="SPAN", type=_span_ns, help="also a row for each such span")
        sub.add_argument("--against", metavar="FILE", help="compare with what -j wrote to this file before")
        probe.options(sub)


def _span_ns(text: str) -> int:
    span_us = parse_span_us(text)
    if not 0 < span_us < INFINITY_US:
        raise argparse.ArgumentTypeError(f"{text}: a span of more than 0")
    return span_us * 1000


_span_ns.__name__ = "time span"


def run(args: argparse.Namespace, context: Context) -> int:
    """Measure, and say what came out."""
    probe = next(row for row in PROBES if row.name == args.probe)
    if probe.needs_root and not context.privileged:
        raise NeedsRootError(probe.needs_root)
    before = earlier(args.against, probe.name)
    if getattr(args, "since", None):
        args.since = f"@{time_us(args.since, context) / 1e6:.6f}"
    limit_us = probe.limit_us or context.config().window.intake_delay_max_us
    limit = report.Limit(limit_us * 1000, probe.limit_source)
    output = context.output
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup(1) leaves it
            signal.signal(number, signal.default_int_handler)
    with importlib.import_module(f"journalkeeper.probe.{probe.name}").measured(args) as found:
        every = Every(args.every, found) if args.every and output.json == "off" else None
        try:
            for _ in found.steps:
                if every is not None:
                    output.lines(every.rows(), paged=False)
        except KeyboardInterrupt:
            found.notes.append(INTERRUPTED)
        finally:
            found.steps.close()
    interrupted = INTERRUPTED in found.notes
    verdict = report.verdict([series for series in found.series if found.judged(series)], limit)
    if output.json != "off":
        output.document(document(probe, args, found, context.now_us, verdict))
    else:
        blocks = [every.rows(last=True)] if every is not None else []
        output.lines(stacked([*blocks, *text(found, before, verdict, output)]))
    for fault in found.faults:
        output.note(fault)
    return int(bool(found.faults) or (interrupted and not getattr(args, "follow", False)))


class Every:
    """The rows of a table that is told while it is measured: one for each span of the samples' own time."""

    def __init__(self, span_ns: int, found: Measurement) -> None:
        self._span_ns = span_ns
        self._found = found
        self._table = report.Table()
        self._seen: Counter[str] = Counter()
        self._spans: dict[int, list[int]] = {}

    def rows(self, *, last: bool = False) -> list[str]:
        """Those of the spans that are over; with `last` of all."""
        for series in filter(self._found.judged, self._found.series):
            first = self._seen[series.name]
            self._seen[series.name] = len(series.took_ns)
            for began, wait in zip(series.begins_ns()[first:], series.waits_ns(first), strict=False):
                self._spans.setdefault((began + self._found.wall_ns) // self._span_ns, []).append(wait)
        over = sorted(self._spans)[: None if last else -1]
        lines: list[str] = []
        for number in over:
            when = time.strftime("%H:%M:%S", time.localtime(number * self._span_ns // 10**9))
            lines += self._table.lines(when, self._spans.pop(number))
        return lines


def earlier(path: str | None, probe: str) -> dict[str, Any]:
    """The series of an earlier -j by their names; none without a path.

    Raises: FileError; UsageError for what is not of this probe.
    """
    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if found["probe"] != probe:
            raise UsageError(f"--against={path}: that is of `probe {found['probe']}`, this is `probe {probe}`")
        return {str(series["name"]): dict(series) for series in found["series"]}
    except OSError as error:
        raise FileError.wrap("read", path, error) from error
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"--against={path}: not what `journalkeeper probe {probe} -j` writes") from error


def document(
    probe: Probe, args: argparse.Namespace, found: Measurement, began_us: int, verdict: str
) -> dict[str, object]:
    """What -j writes."""
    own = argparse.ArgumentParser()
    probe.options(own)
    return {
        "probe": probe.name,
        "version": __version__,
        "began_us": began_us,
        "options": {action.dest: getattr(args, action.dest) for action in own._actions if action.dest != "help"},
        "floor": report.document(found.floor, found.wall_ns),
        "series": [report.document(series, found.wall_ns) for series in found.series],
        "notes": found.notes,
        "faults": found.faults,
        "verdict": verdict,
    }


def text(found: Measurement, before: dict[str, Any], verdict: str, output: Output) -> list[list[str]]:
    """The blocks: verdict, distributions, the table, what was not seen, and what else there is to say."""
    columns = (*found.columns, "ratio") if before else found.columns
    heads = tuple(Column(column.upper(), right=column not in WORDS) for column in columns)
    rows = [Row(cells) for series in found.series for cells in _cells(series, columns, before)]
    drawn = [series for series in found.series if series.planned_ns is not None] or found.series[:1]
    blocks = [textwrap.wrap(verdict, 80)]
    blocks += [
        [shown(series.name), *report.rows(series.waits_ns())]
        for series in drawn
        if series.began_ns and "name" in columns
    ]
    blocks += [render(heads, rows, legend=output.legend, colours=output.colours) if rows else []]
    notes = [*found.notes, *_unobserved(found)]
    floor = report.statistics(found.floor.waits_ns())
    notes.append(f"The instrument's own floor, on a sink: p50 {report.shown(floor['p50'])}, "
                 f"worst {report.shown(floor['worst'])}.")  # fmt: skip
    return [
        *blocks,
        *(
            [
                [
                    line
                    for note in notes
                    for line in textwrap.wrap(note, 80, break_long_words=False, break_on_hyphens=False)
                ]
            ]
            if output.legend
            else []
        ),
    ]


def _cells(series: report.Series, columns: tuple[str, ...], before: dict[str, Any]) -> list[tuple[str, ...]]:
    """The row of a series; below it, of an open loop, that of the calls' own times."""
    found = [(series.name, report.statistics(series.waits_ns()))]
    if series.planned_ns is not None:
        found.append(("  the call itself", report.statistics(series.took_ns)))
    lines = []
    for name, values in found:
        special = {"name": name, "count": str(values["count"]), "ratio": report.ratio(values, before.get(name))}
        words = {**{key: report.shown(value) for key, value in values.items()}, **special, **series.labels}
        lines.append(
            tuple(
                words.get(column, "-") if column == "file" else elided(words.get(column, "-"), NAME_WIDTH)
                for column in columns
            )
        )
    return lines


def _unobserved(found: Measurement) -> list[str]:
    """One sentence about the spans of the first series in which nothing was measured."""
    spans = report.unobserved(found.series[0]) if found.series else []
    if not spans:
        return []
    began, ended = max(spans, key=lambda span: span[1] - span[0])
    when = shown_time((began + found.wall_ns) // 1000)
    total = sum(end - begin for begin, end in spans)
    return [
        f"Not observed: {counted(len(spans), 'span')} of a second or more without a sample, {report.shown(total)} "
        f"in all, the longest {report.shown(ended - began)} from {when}."
    ]


def time_us(text: str, context: Context) -> int:
    """A time that an option says.

    Raises: UsageError.
    """
    try:
        return parse_time_us(text, context.now_us)
    except ValueError as error:
        raise UsageError(str(error)) from error
