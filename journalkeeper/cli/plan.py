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
  SCOPE       "whole file", or the range to rewrite

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
from collections.abc import Callable
from typing import Any, Final

from journalkeeper.cli.context import Context
from journalkeeper.cli.selection import add_selection, report_problems, request
from journalkeeper.cli.table import GREEN, Column, Table
from journalkeeper.cli.wording import (
    count_subjects,
    describe_no_actions,
    describe_rest,
    format_seconds,
    is_on_file,
    show_decisions,
)
from journalkeeper.model import Reason, Request, Skip
from journalkeeper.model.escape import escape
from journalkeeper.model.run import parse_skips, plan_windows
from journalkeeper.model.schema import to_json
from journalkeeper.model.units import format_size, spell_size
from journalkeeper.policy.saving import READ_IOPS
from journalkeeper.report.story import describe_window


def _extents(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda action: str(action[name]) if is_on_file(action["action"]) else "-"


def _estimate(text: str) -> str:
    """Return a table cell for a saving that `text` describes: "~12s" for "12s", but "-" for "0" and "0B".

    A saving that is unknown is 0, too.
    """
    return "-" if text in {"0", "0B"} else f"~{text}"


def _format_part(action: dict[str, Any]) -> str:
    """Return a table cell that shows which part of the file the action rewrites.

    Return "-" for an action that rewrites no range, such as set-nocow. Return "whole file" if the ranges contain all
    extents of the file. Otherwise return "SIZE at OFFSET" for one range, and "N ranges" for several.
    """
    ranges = action["ranges"]
    if not ranges:
        return "-"
    if sum(one["extents"] for one in ranges) >= action["extents_before"]:
        return "whole file"
    if len(ranges) == 1:
        return f"{format_size(ranges[0]['length'])} at {format_size(ranges[0]['offset'])}"
    return f"{len(ranges)} ranges"


_ACTIONS: Final[tuple[Column[dict[str, Any]], ...]] = (
    Column("ACTION", lambda action: str(action["action"])),
    Column("REASON", lambda action: str(action["reason"]), gives="text"),
    Column("EXTENTS", _extents("extents_before"), right=True),
    Column("EXPECTED", _extents("extents_expected"), right=True),
    Column("WRITES", lambda action: format_size(action["bytes_to_write"]), right=True),
    Column("TIME SAVED", lambda action: _estimate(format_seconds(action.get("read_seconds_saved", 0))), right=True),
    Column("DISK SAVED", lambda action: _estimate(format_size(action.get("disk_bytes_saved", 0))), right=True),
    Column("SCOPE", _format_part, gives="text"),
    Column("PATH", lambda action: escape(action["path"]), gives="path"),
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `add_selection`, and -v."""
    add_selection(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="also list the files that need no work")


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the plan for the command line as `show` does: made by the running service, or else by this process.

    Return the exit status of `show`. Raises: as `show`.
    """
    return show(request(args), context, verbose=args.verbose)


def show(asked: Request, context: Context, *, verbose: bool = False) -> int:
    """Show the plan for `asked`, and return the exit status.

    The running service makes the plan if it can, otherwise this process does. Return 1 if a named path cannot be
    examined as a journal file (NO_JOURNAL), and report it on stderr. Otherwise return 0. Files that need no work
    are only counted, unless the user named paths or `verbose` is set. The footer describes the sums, and the
    flush windows that are open or that a file waits for.

    Raises: NeedsRootError if an unprivileged user can read none of the files; as `make_plan`.
    """
    document = make_plan(asked, context)
    skipped, actions = parse_skips(document), document["actions"]
    status = report_problems(skipped, len(skipped) + len(actions), asked.paths, context)
    windows = plan_windows(document)
    waiting = {part for skip in skipped if skip.reason is Reason.WINDOW_CLOSED for part in skip.path.split("/")}
    relevant = [window for name, window in windows.items() if window.open or name in waiting]
    footer = [[describe_window(one, named=len(windows) > 1) for one in relevant], [_summarize(actions, skipped)]]
    table = Table(_ACTIONS, actions, lambda _: GREEN)
    everything = verbose or bool(asked.paths)
    acted_on = {action["reason"] for action in actions}
    others = [reason for reason in Reason if reason in acted_on]
    show_decisions(context.output, document, table, skipped, everything=everything, others=others, footer=footer)
    return status


def make_plan(asked: Request, context: Context) -> dict[str, Any]:
    """Return the plan for `asked` as the document of `plan -j`.

    The running service makes the plan if it can, otherwise this process. Notices are written to stderr: those of a plan
    that this process made, and the number of rows that the service left out.

    Raises: as `Context.service` and `Service.plan`, or `Context.engine` and `Engine.look_and_plan`.
    """
    service = context.service(asked)
    if service is not None:
        with service:
            document = service.plan(asked)
        if document.get("omitted"):
            context.output.note(
                f"{document['omitted']:,} rows do not fit the service's answer; name a PATH to see its row"
            )
        return document
    _, plan = context.engine().look_and_plan(asked)
    context.output.note(*plan.notices)
    made: dict[str, Any] = to_json(plan)
    return made


def _summarize(actions: list[dict[str, Any]], skipped: tuple[Skip, ...]) -> str:
    """Return the summary: the number of files and directories with actions, the costs and savings, and the rest.

    The figures are sums over the actions on files. If all actions are on directories, there are no figures:
    - bytes to rewrite, and extents before and after
    - seconds that cold reads save, and disk bytes that become free: each left out if 0
    - bytes that the new copies add until other files with the old data are deleted: left out if 0

    The text ends with `describe_rest`. Without actions, return `describe_no_actions`.
    """
    if not actions:
        return describe_no_actions(skipped)
    verdict = f"{count_subjects([action['action'] for action in actions])} to do"
    actions = [action for action in actions if is_on_file(action["action"])]
    if actions:
        before, after = (sum(action[f"extents_{when}"] for action in actions) for when in ("before", "expected"))
        facts = [f"{spell_size(sum(action['bytes_to_write'] for action in actions))} to rewrite"]
        facts.append(f"{before:,} to ~{after:,} extents")
        if saved_s := sum(action.get("read_seconds_saved", 0) for action in actions):
            facts.append(f"a cold read is ~{format_seconds(saved_s)} shorter at {READ_IOPS} IOPS")
        if freed := sum(action.get("disk_bytes_saved", 0) for action in actions):
            facts.append(f"~{spell_size(freed)} less on disk")
        if more := sum(action.get("unshared_bytes", 0) for action in actions):
            facts.append(f"~{spell_size(more)} more while other files share the old data")
        verdict += f": {', '.join(facts)}"
    return f"{verdict}. {describe_rest(skipped)}"
