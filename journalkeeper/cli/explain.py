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

import os
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from journalkeeper.btrfs import disk, placement
from journalkeeper.cli.selection import check_files
from journalkeeper.cli.terminal import DEFAULT_COLUMNS
from journalkeeper.health.evidence import Unknown
from journalkeeper.journald import opening
from journalkeeper.model import Host, JournalFile, Request, Stretch, Window
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.record import Count, Inline, Seconds, Span, parse_record
from journalkeeper.model.recorded import Entry, Sample
from journalkeeper.model.run import plan_document, plan_windows
from journalkeeper.observe.read_cost import estimate_cold_read_s
from journalkeeper.report import story
from journalkeeper.report.retention import History, summarize_history
from journalkeeper.report.story import Decision, Place, Story

if TYPE_CHECKING:
    import argparse

    from journalkeeper.cli.context import Context

T = TypeVar("T")

UNMEASURED: Final = Unknown(
    "programs use the file's pages, or the kernel does not list dirty pages (before 6.5, or without root)"
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add the argument FILE: the journal file or directory to describe."""
    parser.add_argument("file", metavar="FILE", help="a journal file, or a directory of journal files")


def run(args: argparse.Namespace, context: Context) -> int:
    """Show what is known of a journal file, or of the directory that -D names, and return the exit status."""
    path = os.path.abspath(args.file)
    if os.path.isdir(path):
        args.directory = path
        return _directory(path, context)
    return _file(path, context)


def _file(path: str, context: Context) -> int:
    asked = Request(paths=(path,))
    host = context.engine().look(asked)
    (file,) = host.files
    output = context.output
    status = check_files([(file.path, file.problem, file.problem_detail)], asked.paths, context)
    if status:
        return status
    learned = _story(file, host, context)
    if output.json != "off":
        output.document(_make_file_answer(learned))
    else:
        encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
        output.lines(story.lines(learned, output.width or DEFAULT_COLUMNS, ascii_only=not encoding.startswith("utf")))
    return 0


def _story(file: JournalFile, host: Host, context: Context) -> Story:
    """Collect everything that `explain` shows about a file. Parts that cannot be read are Unknown."""
    parts, pinned, read_s = _lies(file.path)
    entries, samples = _past(file, host.now_us, context)
    decided, windows = _plan(Request(paths=(file.path,)), context)
    return Story(
        now_us=host.now_us,
        file=file,
        parts=parts,
        pinned_bytes=pinned,
        disk_read_s=UNMEASURED if read_s is None else read_s,
        entries=entries,
        samples=samples,
        decided=decided if isinstance(decided, Unknown) else decided.get(file.path),
        window=windows.get(file.instance) if file.kind.value == "active" else None,
    )


def _lies(path: str) -> tuple[tuple[Stretch, ...], int | Unknown, float | None]:
    """Return the placement of the file's data, the bytes that its extents pin, and the seconds of a cold read.

    The pinned bytes are Unknown for an unprivileged user. The seconds are None if they cannot be measured.
    """
    parent, _, name = path.rpartition("/")
    with opening.open_directory(parent or "/") as dir_fd, opening.hold_open(name, dir_fd) as fd:
        pinned = disk.read_pinned_bytes(fd)
        parts = placement.list_stretches(fd, sync=False)
        return parts, Unknown("only root may ask") if pinned is None else pinned, estimate_cold_read_s(fd)


def _past(
    file: JournalFile, now_us: int, context: Context
) -> tuple[tuple[Entry, ...] | Unknown, tuple[Sample, ...] | Unknown]:
    """Return the history's rows of the file, the oldest first.

    Rows from before the first entry are about an earlier file of the same name, which became an archive.
    """
    since_us = file.head_time_us or now_us
    try:
        with context.record() as record:
            return tuple(record.history([file.path], since_us)), tuple(record.samples([file.path], since_us))
    except KeeperError as error:
        return Unknown(str(error)), Unknown(str(error))


def _plan(asked: Request, context: Context) -> tuple[dict[str, Decision] | Unknown, dict[str, Window]]:
    """Return the decision for each path, and the flush window of each instance.

    The running service makes the plan if it can carry out `asked`; otherwise this process makes it. If the plan cannot
    be made, return Unknown with the error, and no windows.
    """
    try:
        service = context.service(asked)
        if service is None:
            written = plan_document(context.engine().look_and_plan(asked, watch_disks=False)[1])
        else:
            with service:
                written = service.plan(asked)
    except KeeperError as error:
        return Unknown(str(error)), {}
    return _decisions(written), plan_windows(written)


def _decisions(written: dict[str, Any]) -> dict[str, Decision]:
    """Return the decision for each path in a plan's document. If a path has several rows, its first action counts."""
    rows = (*written["skipped"], *reversed(written["actions"]))
    return {row["path"]: parse_record(Decision, {"action": None, **row}) for row in rows}


class ReadPrice(NamedTuple):
    """The price of a cold read of a file, and the bytes that the file pins."""

    read_seconds: Seconds
    """Of a cold read at 150 IOPS."""
    disk_read_seconds: Seconds | None
    pinned_bytes: Count | None


class ExplainedDecision(NamedTuple):
    """A decision, and its explanation."""

    decision: Inline[Decision]
    sentences: list[str]


class FileAnswer(NamedTuple):
    """The answer of `explain` about a file."""

    file: JournalFile
    picture: tuple[Stretch, ...]
    price: ReadPrice
    past: tuple[Entry, ...] | None
    samples: tuple[Sample, ...] | None
    decision: ExplainedDecision | None
    window: Window | None
    unknown: dict[str, str]
    """What could not be looked at, and why."""


def _make_file_answer(learned: Story) -> FileAnswer:
    """Return the answer about one file."""
    parts = (learned.disk_read_s, learned.pinned_bytes, learned.entries, learned.decided)
    read_s = _or_none(learned.disk_read_s)
    return FileAnswer(
        file=learned.file,
        picture=learned.parts,
        price=ReadPrice(
            round(story.slow_read_s(learned.file), 3),
            None if read_s is None else round(read_s, 3),
            _or_none(learned.pinned_bytes),
        ),
        past=_or_none(learned.entries),
        samples=_or_none(learned.samples),
        decision=_explain_decision(learned.decided, learned.window, learned.now_us),
        window=learned.window,
        unknown={
            name: part.why
            for name, part in zip(("disk", "pinned", "past", "decision"), parts, strict=True)
            if isinstance(part, Unknown)
        },
    )


def _or_none(part: T | Unknown) -> T | None:
    return None if isinstance(part, Unknown) else part


def _explain_decision(
    decided: Decision | Unknown | None, window: Window | None, now_us: int
) -> ExplainedDecision | None:
    known = _or_none(decided)
    return known and ExplainedDecision(known, story.decision_lines(known, window, now_us))


def _directory(path: str, context: Context) -> int:
    """Show each instance whose journal directory is `path` or below it, and return the exit status."""
    host = context.engine().look(Request())
    check_files([(file.path, file.problem, "") for file in host.files], (), context)
    if not host.instances:
        raise KeeperError(f"{path}: contains no journal directory; name one, such as /var/log/journal")
    decided, windows = _plan(Request(upkeep=True), context)
    places = [
        Place(
            now_us=host.now_us,
            instance=one,
            files=tuple(file for file in host.files if file.directory == one.directory and file.problem is None),
            window=windows.get(one.name),
            decided=decided if isinstance(decided, Unknown) else decided.get(one.directory),
        )
        for one in host.instances
    ]
    output = context.output
    if output.json != "off":
        unknown = {"decision": decided.why} if isinstance(decided, Unknown) else {}
        output.document(DirectoriesAnswer([_make_directory_answer(place) for place in places], unknown))
        return 0
    blocks = [story.directory_lines(place, output.width or DEFAULT_COLUMNS) for place in places]
    output.lines([line for block in blocks for line in ("", *block)][1:])
    return 0


class DirectoryAnswer(NamedTuple):
    """The answer of `explain` about the directory of one journald."""

    directory: str
    instance: str
    namespace: str
    storage: str
    nocow: bool
    rotatable: bool
    sync_interval_us: Span
    window: Window | None
    retention: History
    decision: ExplainedDecision | None


class DirectoriesAnswer(NamedTuple):
    """The answer of `explain` about a directory of journals."""

    directories: list[DirectoryAnswer]
    unknown: dict[str, str]
    """What could not be looked at, and why."""


def _make_directory_answer(place: Place) -> DirectoryAnswer:
    one = place.instance
    return DirectoryAnswer(
        directory=one.directory,
        instance=one.name,
        namespace=one.namespace,
        storage=one.storage,
        nocow=one.nocow,
        rotatable=one.rotatable,
        sync_interval_us=one.sync_interval_us,
        window=place.window,
        retention=summarize_history(place.instance, place.files),
        decision=_explain_decision(place.decided, None, place.now_us),
    )
