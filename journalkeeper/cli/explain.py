# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper explain`: describe one file or directory in full. It changes nothing.

Describes one file: its properties, a picture with one character for each MiB, the time of a cold read,
past actions, and the present decision with its reason and when it can change. For a directory it describes the
journald that writes there, the flush window, and how long a history the files cover.

examples:
  journalkeeper explain /var/log/journal/*/system.journal
  journalkeeper explain /var/log/journal          every directory in it
  journalkeeper explain -j /var/log/journal/*/system.journal | jq .price

exit status:
  0 done; 1 it cannot be read or is not on btrfs, does not exist or is no
  journal; 2 wrong usage
"""

from __future__ import annotations

import argparse
import os
from typing import Final

from journalkeeper.btrfs import extent_count
from journalkeeper.cli.context import Context
from journalkeeper.cli.output import DEFAULT_COLUMNS
from journalkeeper.cli.plan import make_plan
from journalkeeper.cli.work import list_problems, report_problems
from journalkeeper.journald import opening
from journalkeeper.model import Action, Host, JournalFile, Kind, Plan, Request, Skip, Stretch, Sums, Window
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.run import HistoryEntry, Sample
from journalkeeper.policy.cost import READ_IOPS
from journalkeeper.probe.read_cost import estimate_cold_read_s
from journalkeeper.report import story
from journalkeeper.report.retention import summarize_history
from journalkeeper.report.story import Decision, DirectoriesAnswer, DirectoryAnswer, ReadPrice, Story

ONLY_ROOT: Final = "only root can measure it"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a journal file, or a directory of journal files")


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the properties of a journal file, or of each journal directory at or below a directory, as if it was given
    with -D. Return the exit status: 1 if the path cannot be examined as a journal file.

    Raises: as `_show_directories` for a directory, else as `_show_file`.
    """
    path = os.path.abspath(args.file)
    if not os.path.isdir(path):
        return _show_file(path, context)
    given, args.directory = args.directory, path
    host = context.make_engine().look(Request())
    if context.watches(path):
        args.directory = given  # then the service makes the plan, as for `plan`
    return _show_directories(host, path, context)


def _show_file(path: str, context: Context) -> int:
    """Show everything that is known about a file, and return 0, or 1 with a note if it cannot be examined.

    Raises: NeedsRootError if an unprivileged user cannot read the file; OSError if the file vanishes after the look.
    """
    asked = Request(paths=(path,))
    host = context.make_engine().look(asked)
    (file,) = host.files
    output = context.output
    status = report_problems(list_problems(host.files), 1, asked.paths, context)
    if not status:
        learned = _collect_story(file, host.now_us, context)
        output.show(learned, *story.explain_file(learned, output.width or DEFAULT_COLUMNS))
    return status


def _collect_story(file: JournalFile, now_us: int, context: Context) -> Story:
    """Collect all that `explain` shows about a file. `unknown` of the Story has the reason for each part that is None.

    The picture of an active file is () shortly before a flush. Raises: OSError if the file cannot be opened.
    """
    unknown: dict[str, str] = {}
    plan = _try_plan(Request(paths=(file.path,)), context, unknown)
    window = plan.window.get(file.instance) if file.kind is Kind.ACTIVE else None
    parts: tuple[Stretch, ...] = ()
    read_s: float | str = "journald is about to flush the file; try again in a few seconds"
    with opening.open_path(file.path) as fd:
        if window is None or window.reason != "flush-due":
            parts, read_s = extent_count.list_stretches(fd, sync=False), estimate_cold_read_s(fd)
    if isinstance(read_s, str):
        unknown["disk"] = read_s if context.privileged else ONLY_ROOT
    past, samples = _read_past(file, now_us, context, unknown)
    slow_s = round(file.extents.total / READ_IOPS, 3)
    return Story(
        file=file,
        picture=parts,
        price=ReadPrice(slow_s, None if isinstance(read_s, str) else round(read_s, 3)),
        past=past,
        samples=samples,
        decision=_explain_path(file.path, plan, window, now_us, context),
        window=window,
        unknown=unknown,
    )


def _read_past(
    file: JournalFile, now_us: int, context: Context, unknown: dict[str, str]
) -> tuple[tuple[HistoryEntry, ...] | None, tuple[Sample, ...] | None]:
    """Return the history's actions and extent counts of the file, or (None, None) with the reason in `unknown["past"]`.

    Rows from before the file's first entry, or now if it has none, are left out: they are about a file archived since.
    """
    since_us = file.head_time_us or now_us
    try:
        with context.open_record() as record:
            return tuple(record.list_entries([file.path], since_us)), tuple(record.list_samples([file.path], since_us))
    except KeeperError as error:
        unknown["past"] = str(error)
        return None, None


def _try_plan(asked: Request, context: Context, unknown: dict[str, str]) -> Plan:
    """Return `make_plan`, or after a KeeperError an empty plan, with the reason in `unknown["decision"]`."""
    try:
        return make_plan(asked, context)
    except KeeperError as error:
        unknown["decision"] = str(error)
        return Plan({}, (), ())


def _explain_path(path: str, plan: Plan, window: Window | None, now_us: int, context: Context) -> Decision | None:
    """Return the first action on `path`, or else the last skip, with `explain_decision` of all of these; or None."""
    rows: list[Action | Skip] = [*plan.skipped, *reversed(plan.actions)]
    decisions = [Decision.of(one) for one in rows if one.path == path]
    return story.explain_decision(decisions, window, now_us, watched=context.watches(path))


def _show_directories(host: Host, path: str, context: Context) -> int:
    """Show each instance of `host`, the look at `path`, and return the exit status: 1 if some files are unreadable.

    Raises: KeeperError if there is no journal directory; NeedsRootError if an unprivileged user can read no file.
    """
    status = report_problems(list_problems(host.files), len(host.files), (), context)
    if not host.instances:
        raise KeeperError(f"{path}: contains no journal directory; name one, such as /var/log/journal")
    unknown: dict[str, str] = {}
    plan = _try_plan(Request(upkeep=True), context, unknown)
    places = []
    for one in host.instances:
        below = [file for file in host.files if file.directory == one.directory]
        files = [file for file in below if file.problem is None]
        places.append(
            DirectoryAnswer(
                instance=one,
                window=plan.window.get(one.name),
                retention=summarize_history(one, host.files),
                decision=_explain_path(one.directory, plan, None, host.now_us, context),
                files=Sums.of(files),
                unexamined=len(below) - len(files),
            )
        )
    blocks = [block for place in places for block in story.explain_directory(place, unknown.get("decision"))]
    context.output.show(DirectoriesAnswer(places, unknown), *blocks)
    return status
