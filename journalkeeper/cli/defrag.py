# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper defrag`: do what `plan` shows.

Rewrites fragmented files. Archived files are rewritten once and compressed. Active files are rewritten
while journald is not about to flush them to the disk. Ctrl-C ends the run after the present chunk, and every file is
valid at any moment. While the service runs, it does the work, and a user with polkit authorization needs
no root.

examples:
  sudo journalkeeper defrag -n          show what would be done, as `plan`
  sudo journalkeeper defrag --archived  not the files that journald writes to
  sudo journalkeeper defrag --now /var/log/journal/*/system.journal

exit status:
  0 done, also if there was nothing to do; 1 something failed or was
  interrupted, or a PATH does not exist or is no journal; 2 wrong usage
"""

from __future__ import annotations

import argparse

from journalkeeper.cli import plan as plans
from journalkeeper.cli import work
from journalkeeper.cli.context import Context
from journalkeeper.cli.progress import catch_signals, on_terminal
from journalkeeper.cli.table import Column, Table
from journalkeeper.model import Outcome, Result
from journalkeeper.model.run import Report
from journalkeeper.model.units import spell_size, spell_time


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--dry-run", action="store_true", help="change nothing, show the plan")
    work.add_selection(parser)


def run(args: argparse.Namespace, context: Context) -> int:
    """Carry out the plan, show the outcome for each file, and write failures and notices to stderr. With -n only `show`
    the plan. Return the exit status: 1 if an action failed, if SIGINT, SIGTERM or SIGHUP ended the run after its chunk,
    or as `report_problems`. After an error of the service, nothing is run in this process.

    Raises: NeedsRootError if an unprivileged user can read none of the files; as `Context.open_keeper` and its methods.
    """
    asked = work.make_request(args)
    if args.dry_run:
        return plans.show(asked, context)
    output = context.output
    with on_terminal(output) as draw, context.open_keeper(asked) as keeper, catch_signals(hints=draw.seen) as stop:
        report = keeper.defragment(asked, on_progress=draw, stop=stop)
    outcomes, skipped = report.outcomes, report.skipped
    status = work.report_problems(skipped, len(skipped) + len(outcomes), asked.paths, context)
    failed = [outcome for outcome in outcomes if outcome.result is Result.FAILED]
    output.note(*report.notices, *(f"{one.path}: {one.detail or one.reason}" for one in failed))
    column = Column[Outcome]("", lambda outcome: work.describe_outcome(outcome, output.width), gives="text")
    work.show_decisions(
        output,
        report,
        Table((column,), outcomes, lambda outcome: work.COLOURS[outcome.result]),
        skipped,
        everything=bool(asked.paths),
        footer=[[_sum_up_outcomes(report)]],
    )
    return int(bool(status or report.is_interrupted or failed))


def _sum_up_outcomes(report: Report) -> str:
    """Return `describe_no_actions`, or "2 files done: 9 to 1 extent, 1 MiB rewritten in 2s." and `describe_rest`. It
    begins with "1 of 3 files done, 1 skipped, 1 failed" unless all are done. "9 to 1 extent" is `describe_sums`, which
    is left out without a rewrite.
    """
    outcomes, skipped = report.outcomes, report.skipped
    if not outcomes:
        return work.describe_no_actions(skipped)
    done = [outcome for outcome in outcomes if outcome.result is Result.DONE]
    others = [
        f"{number} {result}"
        for result in (Result.SKIPPED, Result.FAILED)
        if (number := sum(outcome.result is result for outcome in outcomes))
    ]
    subjects = work.count_subjects([outcome.action for outcome in outcomes])
    verdict = f"{subjects} done" if not others else f"{len(done)} of {subjects} done, {', '.join(others)}"
    facts = [work.describe_sums(done)] if any(one.bytes_written for one in done) else []
    facts.append(f"{spell_size(report.written_bytes)} rewritten in {spell_time(report.duration_s)}")
    return f"{verdict}: {', '.join(facts)}. {work.describe_rest(skipped)}"
