# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper plan`: show what `defrag` would do, and why not more.

It changes nothing. The running service makes the plan for every user, because only the service knows when journald
flushes next. Without a service the plan is made here.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from journalkeeper.cli.context import Context
from journalkeeper.cli.outcomes import on_file, subjects
from journalkeeper.cli.output import Output
from journalkeeper.cli.refusals import refuse_if_all_unreadable, refuse_non_journals
from journalkeeper.cli.selection import add_selection, request
from journalkeeper.cli.table import GREEN, GREY, Column, stack_blocks, wrap_sentence
from journalkeeper.cli.text import shown
from journalkeeper.cli.times import format_time
from journalkeeper.cli.waits import waits
from journalkeeper.model import Reason, Request, Skip
from journalkeeper.model.reasons import SENTENCES
from journalkeeper.model.units import counted, format_size, format_span
from journalkeeper.policy.saving import READ_IOPS
from journalkeeper.wire.documents import plan_document, skips

DESCRIPTION = """\
Shows what `defrag` would do with the same options: an action or a reason against it for every
file, what would be written, and when journald's next flush closes the window for active files.
Nothing is changed. While the service runs, the plan is the service's own."""

EXAMPLES = """\
columns: EXTENTS, now; EXPECTED, extents afterwards, of a compressed file one for each 128 KiB;
WRITES, before compression; SAVES, of a cold read and on the disk; PART, "whole file" or the range
that is rewritten

examples:
  journalkeeper plan                        everything
  journalkeeper plan --archived --compress=no
  journalkeeper plan --now --active         as if no flush were near

exit status:
  0 done; 1 something cannot be read or is not on btrfs, or a PATH does not exist or is no journal;
  2 wrong usage"""


def _extents(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda action: str(action[name]) if on_file(action["action"]) else "-"


def _saves(action: dict[str, Any]) -> str:
    """Return the estimated saving, "-" for unknown disk space. The document of an older service has no estimate."""
    seconds, disk_bytes = action.get("read_seconds_saved", 0), action.get("disk_bytes_saved", 0)
    if not seconds and not disk_bytes:
        return "-"
    return f"~{_seconds(seconds)} {f'~{format_size(disk_bytes)}' if disk_bytes else '-'}"


def _seconds(seconds: float) -> str:
    """Return a span to the millisecond, as short as possible."""
    return format_span(round(seconds * 1e3) * 1000)


def _range(action: dict[str, Any]) -> str:
    """Return which part of the file is rewritten; "-" for what is done to a directory."""
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
    Column("SAVES", _saves, right=True, gives="text"),
    Column("PART", _range, gives="text"),
    Column("PATH", lambda action: shown(action["path"]), gives="path"),
)
_SKIPPED: Final[tuple[Column[Skip], ...]] = (
    Column("SKIPPED", lambda skip: skip.reason),
    Column("DETAIL", lambda skip: shown(skip.detail) or "-", gives="text"),
    Column("PATH", lambda skip: shown(skip.path), gives="path"),
)
FINE: Final = frozenset({Reason.IDEAL, Reason.RECORDED})
"""Reasons of files that need no action, now or later."""


def options(parser: argparse.ArgumentParser) -> None:
    """Add the same options as for `defrag`, and -v."""
    add_selection(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each file that is fine, too")


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the plan."""
    return show(request(args), context, verbose=args.verbose)


def show(asked: Request, context: Context, *, verbose: bool = False) -> int:
    """Write the plan for `asked`. Files that need nothing share one line, unless they are named or `verbose` is set."""
    document = _document(asked, context)
    skipped = skips(document)
    output = context.output
    status = refuse_non_journals(asked, ((skip.path, skip.reason, skip.detail) for skip in skipped), output)
    if output.json != "off":
        output.document(document)
        return status
    listed = skipped if verbose or asked.paths else tuple(skip for skip in skipped if skip.reason not in FINE)
    blocks = [
        output.table(_ACTIONS, document["actions"], lambda _: GREEN),
        make_skip_table(listed, output),
        summarize_fine(skipped, listed),
    ]
    if output.legend:
        blocks.append(glossary((skip.reason for skip in listed), output.width))
        windows = [_window(instance, window) for instance, window in document["window"].items()]
        blocks.append([line for window in windows for line in wrap_sentence(window, output.width)])
        blocks.append(wrap_sentence(_footer(document["actions"], skipped), output.width))
    output.lines(stack_blocks(blocks))
    return status


def summarize_fine(skipped: tuple[Skip, ...], listed: tuple[Skip, ...]) -> list[str]:
    """Return one line with the number of skipped files that are not listed."""
    tally = Counter(skip.reason for skip in skipped) - Counter(skip.reason for skip in listed)
    if not tally:
        return []
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in sorted(tally.items()))
    return [f"{counted(tally.total(), 'file')} fine: {reasons}; -v shows each."]


def _document(asked: Request, context: Context) -> dict[str, Any]:
    """Return the plan as `plan -j` writes it."""
    service = context.service(asked)
    if service is not None:
        with service:
            document = service.plan(asked)
        if document.get("omitted"):
            context.output.note(
                f"{document['omitted']:,} rows are too many for one answer of the service: name a PATH to see its row"
            )
        return document
    plan = context.engine().plan(asked)
    refuse_if_all_unreadable(context, [*(None for _ in plan.actions), *(skip.reason for skip in plan.skipped)])
    for notice in plan.notices:
        context.output.note(notice)
    return plan_document(plan)


def make_skip_table(skipped: tuple[Skip, ...], output: Output) -> list[str]:
    """Return a table of the skipped files, empty if there are none."""
    return output.table(_SKIPPED, skipped, lambda _: GREY)


def glossary(reasons: Iterable[Reason], width: int | None = None) -> list[str]:
    """Return one sentence for each reason that occurs, in their fixed order."""
    occurring = set(reasons)
    listed = [f"{reason}: {sentence}" for reason, sentence in SENTENCES.items() if reason in occurring]
    return [line for sentence in listed for line in wrap_sentence(sentence, width)]


def _window(instance: str, window: dict[str, Any]) -> str:
    state = "open" if window["open"] else "closed"
    if window["open"] and window["closes_at_us"] is not None:
        state += f" until {format_time(window['closes_at_us'])}"
    return f"Window of {shown(instance)}: {state}, {shown(window['reason'])}."


def _footer(actions: list[dict[str, Any]], skipped: tuple[Skip, ...]) -> str:
    if not actions:
        return describe_no_actions(skipped)
    text = f"{subjects([action['action'] for action in actions])} to do"
    actions = [action for action in actions if on_file(action["action"])]
    if not actions:
        return f"{text}; {describe_skipped(skipped)}"
    before = sum(action["extents_before"] for action in actions)
    after = sum(action["extents_expected"] for action in actions)
    writes = format_size(sum(action["bytes_to_write"] for action in actions))
    text += f": {before:,} -> {after:,} extents, {writes} to write"
    twice = sum(action.get("unshared_bytes", 0) for action in actions)
    if twice:
        text += f", ~{format_size(twice)} of it stored beside snapshots"
    known = [action for action in actions if "read_seconds_saved" in action]
    if known:
        read = _seconds(sum(action["read_seconds_saved"] for action in known))
        freed = sum(action["disk_bytes_saved"] for action in known)
        text += f"; saves ~{read} of a cold read at {READ_IOPS} IOPS"
        text += f" and ~{format_size(freed)} on disk" if freed else ""
    return f"{text}; {describe_skipped(skipped)}"


def describe_no_actions(skipped: tuple[Skip, ...]) -> str:
    """Return the footer of a plan without actions: nothing to do, or what the files wait for."""
    return describe_skipped(skipped) if _waits(skipped) else f"Nothing to do, {describe_skipped(skipped)}"


def describe_skipped(skipped: tuple[Skip, ...]) -> str:
    """Return the number of skipped files, and what the postponed ones wait for."""
    text = f"{counted(len(skipped), 'file')} left alone."
    waiting = _waits(skipped)
    return f"{text} {waiting}." if waiting else text


def _waits(skipped: tuple[Skip, ...]) -> str:
    return waits(skipped, time.time_ns() // 1000)
