# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper defrag`: do what `plan` shows.

A signal ends it at the next chunk border, and it always reports what it did.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from journalkeeper.cli import plan as plans
from journalkeeper.cli.context import Context
from journalkeeper.cli.interrupts import Interrupts
from journalkeeper.cli.outcomes import COLOURS, describe, describe_sums, format_duration, on_file, subjects
from journalkeeper.cli.output import Output
from journalkeeper.cli.polkit_agent import for_terminal
from journalkeeper.cli.progress import on_terminal
from journalkeeper.cli.refusals import refuse_if_all_unreadable, refuse_non_journals
from journalkeeper.cli.selection import add_selection, request
from journalkeeper.cli.table import paint, stack_blocks, wrap_sentence
from journalkeeper.model import Reason, Request, Result
from journalkeeper.model.run import Report
from journalkeeper.model.units import spell_size
from journalkeeper.wire.documents import defrag_document

DESCRIPTION = """\
Rewrites what is fragmented: archived files once, compressed; active files while journald
is not about to flush them. Ctrl-C ends it after the chunk at hand; every file is whole
at any moment, whatever ends it. While the service runs, the service does it, and shows
the same; a user whom polkit allows it needs no root then."""

EXAMPLES = """\
examples:
  sudo journalkeeper defrag -n          show what would be done, as `plan`
  sudo journalkeeper defrag --archived  not the files that journald writes to
  sudo journalkeeper defrag --now /var/log/journal/*/system.journal

exit status:
  0 done, also if there was nothing to do; 1 something failed or was interrupted, or a PATH
  does not exist or is no journal; 2 wrong usage"""


def options(parser: argparse.ArgumentParser) -> None:
    """Add -n and the same options as for `plan`."""
    parser.add_argument("-n", "--dry-run", action="store_true", help="change nothing, show the plan")
    add_selection(parser)


class _Run(NamedTuple):
    """A run, here or in the service: its report, its JSON, and whether it was stopped early."""

    report: Report
    document: dict[str, Any]
    stopped: bool


def run(args: argparse.Namespace, context: Context) -> int:
    """Rewrite files, here or in the running service, and show the outcome of each."""
    asked = request(args)
    if args.dry_run:
        return plans.show(asked, context)
    output = context.output
    report, document, stopped = _execute(asked, context)
    skips = [skip.reason for skip in report.plan.skipped]
    refuse_if_all_unreadable(context, [*(outcome.reason for outcome in report.outcomes), *skips])
    named = refuse_non_journals(asked, ((skip.path, skip.reason, skip.detail) for skip in report.plan.skipped), output)
    for text in report.notices:
        output.note(text)
    for outcome in report.outcomes:
        if outcome.result is Result.FAILED:
            output.note(f"{outcome.path}: {outcome.detail or outcome.reason}")
    if output.json != "off":
        output.document(document)
    else:
        output.lines(_lines(report, output), paged=False)
    stopped |= any(outcome.reason is Reason.INTERRUPTED for outcome in report.outcomes)
    return named or int(stopped or any(outcome.result is Result.FAILED for outcome in report.outcomes))


def _execute(asked: Request, context: Context) -> _Run:
    """Run `asked` in the service if there is one, else here. Progress is shown, and a signal requests a stop."""
    with on_terminal(context.output) as draw:
        hint = "\nStopping after this chunk." if draw.seen else ""
        service = context.service(asked)
        if service is not None:
            with service, for_terminal(), Interrupts(hint) as stop:
                return _Run(*service.defragment(asked, on_progress=draw, stop=stop))
        engine = context.engine()
        with Interrupts(hint) as stop:
            report = engine.run(asked, on_progress=draw, stop=stop)
            stopped = stop() and len(report.outcomes) < len(report.plan.actions)
            return _Run(report, defrag_document(report), stopped)


def _lines(report: Report, output: Output) -> list[str]:
    table = [
        paint(line, COLOURS[outcome.result], enabled=output.colours)
        for outcome in report.outcomes
        for line in wrap_sentence(describe(outcome, output.width), output.width)
    ]
    skipped = report.plan.skipped
    listed = tuple(skip for skip in skipped if skip.reason not in plans.FINE)
    blocks = [table, plans.make_skip_table(listed, output), plans.summarize_fine(skipped, listed)]
    if output.legend:
        odd = [outcome.reason for outcome in report.outcomes if outcome.result is not Result.DONE]
        blocks += [plans.glossary([*odd, *(skip.reason for skip in listed)], output.width)]
        blocks += [wrap_sentence(_footer(report), output.width)]
    return stack_blocks(blocks)


def _footer(report: Report) -> str:
    outcomes = report.outcomes
    if not outcomes:
        return plans.describe_no_actions(report.plan.skipped)
    tally = [f"{sum(outcome.result is result for outcome in outcomes)} {result}" for result in Result]
    actions = [outcome.action for outcome in outcomes]
    text = f"{subjects(actions)}: {', '.join(tally)}"
    if any(map(on_file, actions)):
        text += f"; {describe_sums([one for one in outcomes if on_file(one.action)])}"
    text += f", {spell_size(report.written_bytes)} written in {format_duration(report.duration_s)}"
    return f"{text}; {plans.describe_skipped(report.plan.skipped)}"
