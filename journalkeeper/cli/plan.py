# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper plan`: show what `defrag` would do, and why not more.

Shows what `defrag` would do with the same options. Every file has an action or a reason against one.
The plan also shows how many bytes would be written, and when journald's next flush closes the window for
active files. Nothing is changed. While the service runs, the service makes the plan.

columns:
  EXTENTS     of the file now
  EXPECTED    extents afterwards: a compressed file has one for each 128 KiB
  WRITES      the bytes to rewrite, before compression
  TIME SAVED  how much shorter a cold read becomes; "-": not at all
  DISK SAVED  space on the disk; "-": none, or not before other files that share
              it are deleted, or it cannot be known before

examples:
  journalkeeper plan                        everything
  journalkeeper plan --archived --compress=no
  journalkeeper plan --now --active         as if no flush were near

exit status:
  0 done; 1 something cannot be read or is not on btrfs, or a PATH does not
  exist or is no journal; 2 wrong usage
"""

from __future__ import annotations

import argparse
from typing import Final

from journalkeeper.cli import work
from journalkeeper.cli.context import Context
from journalkeeper.cli.table import GREEN, Column, Table
from journalkeeper.model import Action, Plan, Reason, Request
from journalkeeper.model.units import escape, format_size, spell_size, spell_time
from journalkeeper.policy.cost import READ_IOPS
from journalkeeper.report.story import describe_window


def _estimate(saved: float, text: str) -> str:
    """Return a table cell for a saving: "~12s" for "12s", but "-" if nothing is saved."""
    return f"~{text}" if saved else "-"


_ACTIONS: Final[tuple[Column[Action], ...]] = (
    Column("ACTION", lambda one: one.action),
    Column("REASON", lambda one: one.reason, gives="text"),
    Column("EXTENTS", lambda one: str(one.extents_before) if work.is_on_file(one.action) else "-", right=True),
    Column("EXPECTED", lambda one: str(one.extents_expected) if work.is_on_file(one.action) else "-", right=True),
    Column("WRITES", lambda one: format_size(one.bytes_to_write), right=True),
    Column("TIME SAVED", lambda one: _estimate(one.read_seconds_saved, spell_time(one.read_seconds_saved)), right=True),
    Column("DISK SAVED", lambda one: _estimate(one.disk_bytes_saved, format_size(one.disk_bytes_saved)), right=True),
    Column("PATH", lambda one: escape(one.path), gives="path"),
)


add_options = work.add_selection


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the plan as if not `asked`, so with the service's rests, and return the exit status. Raises: as `show`."""
    return show(work.make_request(args)._replace(asked=False), context)


def show(asked: Request, context: Context) -> int:
    """Show the actions and skips of the plan for `asked`, and return the exit status of `report_problems`.

    Unless paths are named, files that need no action are only counted. A flush window is shown if open or awaited.

    Raises: NeedsRootError if an unprivileged user can read none of the files; as `make_plan`.
    """
    plan = make_plan(asked, context)
    status = work.report_problems(plan.skipped, len(plan.skipped) + len(plan.actions), asked.paths, context)
    waiting = {skip.instance for skip in plan.skipped if skip.reason is Reason.WINDOW_CLOSED}
    relevant = [one for one in plan.window.values() if one.open or one.instance in waiting]
    work.show_decisions(
        context.output,
        plan,
        Table(_ACTIONS, plan.actions, lambda _: GREEN),
        plan.skipped,
        everything=bool(asked.paths),
        footer=[[describe_window(one, named=len(plan.window) > 1) for one in relevant], [_sum_up_plan(plan)]],
    )
    return status


def make_plan(asked: Request, context: Context) -> Plan:
    """Return the plan for `asked`, and write its notices to stderr. Raises: as `Context.open_keeper`; as its `plan`."""
    with context.open_keeper(asked) as keeper:
        plan = keeper.plan(asked)
    context.output.note(*plan.notices)
    return plan


def _sum_up_plan(plan: Plan) -> str:
    """Return `describe_no_actions`, or "2 files to do: 1 MiB to rewrite, 90 to ~2 extents" and `describe_rest`.
    Between these, unless 0, are the time of a cold read and disk bytes saved, and bytes that sharing files retain.
    """
    if not plan.actions:
        return work.describe_no_actions(plan.skipped)
    verdict = f"{work.count_subjects([one.action for one in plan.actions])} to do"
    actions = [one for one in plan.actions if work.is_on_file(one.action)]
    if actions:
        before, expected = sum(one.extents_before for one in actions), sum(one.extents_expected for one in actions)
        facts = [f"{spell_size(sum(one.bytes_to_write for one in actions))} to rewrite"]
        facts.append(f"{before:,} to ~{expected:,} extents")
        if saved_s := sum(one.read_seconds_saved for one in actions):
            facts.append(f"a cold read is ~{spell_time(saved_s)} shorter at {READ_IOPS} IOPS")
        if freed := sum(one.disk_bytes_saved for one in actions):
            facts.append(f"~{spell_size(freed)} less on disk")
        if more := sum(one.unshared_bytes for one in actions):
            facts.append(f"~{spell_size(more)} more while other files share the old data")
        verdict += f": {', '.join(facts)}"
    return f"{verdict}. {work.describe_rest(plan.skipped)}"
