# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper plan`: what `defrag` would do, and why not. The one rule: it changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from journalkeeper.cli.documents import plan_document
from journalkeeper.cli.rights import refuse_if_all_unreadable
from journalkeeper.cli.selection import add_selection, request
from journalkeeper.cli.table import GREEN, GREY, Column, Row, render, stacked
from journalkeeper.cli.text import counted, shown
from journalkeeper.model import Action, Order, Plan, Reason, Skip, Window
from journalkeeper.values import format_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from journalkeeper.cli.output import Output
    from journalkeeper.cli.session import Session

DESCRIPTION = """\
Shows what `defrag` would do with the same options: an action or a reason against it for
every file, what would be written, and when journald's next flush closes the window for
active files. Nothing is changed."""

EXAMPLES = """\
examples:
  journalkeeper plan                        everything
  journalkeeper plan --archived --compress=no
  journalkeeper plan --now --active         as if no flush were near

exit status:
  0 done, 1 something cannot be read or is not on btrfs, 2 wrong usage"""

_ACTIONS = (
    Column("ACTION"),
    Column("REASON"),
    Column("EXTENTS", right=True),
    Column("EXPECTED", right=True),
    Column("WRITES", right=True),
    Column("RANGE"),
    Column("PATH"),
)
_SKIPPED = (Column("SKIPPED"), Column("DETAIL"), Column("PATH"))


def options(parser: argparse.ArgumentParser) -> None:
    """The same as for `defrag`."""
    add_selection(parser)


def run(args: argparse.Namespace, session: Session) -> int:
    """Show the plan."""
    return show(session.engine().plan(request(args)), session)


def show(plan: Plan, session: Session) -> int:
    """Write a plan as the options say."""
    doing = [None for _ in (*plan.orders, *plan.actions)]
    refuse_if_all_unreadable(session, [*doing, *(skip.reason for skip in plan.skipped)])
    output = session.output
    for notice in plan.notices:
        output.note(notice)
    if output.json != "off":
        output.document(plan_document(plan))
        return 0
    blocks = [_actions((*plan.orders, *plan.actions), output), skipped_lines(plan.skipped, output)]
    if output.legend:
        blocks += [glossary(skip.reason for skip in plan.skipped), [_window(window) for window in plan.windows]]
        blocks.append([_footer(plan)])
    output.lines(stacked(blocks))
    return 0


def skipped_lines(skipped: tuple[Skip, ...], output: Output) -> list[str]:
    """A table of what is left alone, empty if nothing is."""
    rows = [Row((skip.reason, shown(skip.detail) or "-", shown(skip.path)), GREY) for skip in skipped]
    return render(_SKIPPED, rows, legend=output.legend, colours=output.colours) if rows else []


def glossary(reasons: Iterable[Reason]) -> list[str]:
    """One sentence for each reason that occurs, in their fixed order."""
    from journalkeeper.reasons import SENTENCES  # noqa: PLC0415 - not for JSON or --no-legend

    occurring = set(reasons)
    return [f"{reason}: {sentence}" for reason, sentence in SENTENCES.items() if reason in occurring]


def _actions(actions: tuple[Action | Order, ...], output: Output) -> list[str]:
    rows = [
        Row(
            (
                action.action,
                action.reason,
                str(action.extents_before),
                str(action.extents_expected),
                format_size(action.bytes_to_write),
                _range(action),
                shown(action.path),
            ),
            GREEN,
        )
        for action in actions
    ]
    return render(_ACTIONS, rows, legend=output.legend, colours=output.colours) if rows else []


def _range(action: Action | Order) -> str:
    """Which part of the file: all of it, one part, or how many; none for what is done to a directory."""
    if isinstance(action, Order):
        return "-"
    ranges = action.ranges
    if not ranges or sum(one.length for one in ranges) >= action.file.size_bytes:
        return "all"
    if len(ranges) == 1:
        return f"{format_size(ranges[0].length)} at {format_size(ranges[0].offset)}"
    return f"{len(ranges)} ranges"


def _window(window: Window) -> str:
    state = "open" if window.open else "closed"
    if window.open and window.closes_at_us is not None:
        from journalkeeper.cli.times import shown_time  # noqa: PLC0415 - datetime, for this line only

        state += f" until {shown_time(window.closes_at_us)}"
    return f"Window of {shown(window.instance)}: {state}, {shown(window.reason)}."


def _footer(plan: Plan) -> str:
    left = f"{counted(len(plan.skipped), 'file')} left alone."
    actions: tuple[Action | Order, ...] = (*plan.orders, *plan.actions)
    if not actions:
        return f"Nothing to do, {left}"
    before = sum(action.extents_before for action in actions)
    after = sum(action.extents_expected for action in actions)
    writes = format_size(sum(action.bytes_to_write for action in actions))
    return f"{counted(len(actions), 'file')} to do: {before:,} -> {after:,} extents, {writes} to write; {left}"
