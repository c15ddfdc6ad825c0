# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper status`: how things are, from the service and the record. Any user gets an answer."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from journalkeeper import __version__
from journalkeeper.cli.backend import ABSENT
from journalkeeper.cli.commands import OF_THE_SERVICE
from journalkeeper.cli.context import Context
from journalkeeper.cli.selection import refuse_another
from journalkeeper.cli.table import wrapped
from journalkeeper.cli.text import shown
from journalkeeper.cli.times import shown_time
from journalkeeper.model.errors import KeeperError, NeedsRootError, NotBtrfsError
from journalkeeper.model.manager import Manager
from journalkeeper.model.reasons import describe_saving
from journalkeeper.model.recorded import Counters, Run, Totals
from journalkeeper.model.units import DAY_US, counted, format_size, format_span
from journalkeeper.model.waiting import Wait, long, sentence
from journalkeeper.report.text import day
from journalkeeper.wire.field import document
from journalkeeper.wire.records import MANAGER, RUN, SAVING, TOTALS, WAIT

if TYPE_CHECKING:
    from journalkeeper.bus.client import Service

DESCRIPTION = """\
Shows what the service does and sees now, if it runs, to any user; and from the record, which
only root may read: the totals of the journal files when they were last looked at, the last
run, and what was written in the last 24 hours."""

EXAMPLES = """\
examples:
  journalkeeper status
  journalkeeper status --watch              again at each change, until Ctrl-C
  sudo journalkeeper status -j | jq .last_run.failed

exit status:
  0 done, also if there is nothing to tell; 1 the record is damaged, or with --watch the
  service does not run or has ended; 2 wrong usage"""


_CLEAR: Final = "\x1b[H\x1b[J"
"""ECMA-48: the cursor to the top, and nothing below it."""


class _Recorded(NamedTuple):
    """What the record says, `readable` being whether this user may know."""

    readable: bool
    last_run: Run | None
    written_day_bytes: int
    totals: tuple[Totals, ...]
    waiting: tuple[Wait, ...] = ()
    counters: Counters | None = None


def options(parser: argparse.ArgumentParser) -> None:
    """--watch."""
    parser.add_argument("--watch", action="store_true", help="follow the service: show it again at each change")


def run(args: argparse.Namespace, context: Context) -> int:
    """Show it, once or as long as somebody looks."""
    if args.watch:
        refuse_another(args, "status --watch", OF_THE_SERVICE)
    with ExitStack() as stack:
        service = context.running()
        if service is not None:
            stack.enter_context(service)
        elif args.watch:
            raise KeeperError("--watch follows the service, which does not run; systemctl start journalkeeper")
        _show(context, _live(service, context))
        if args.watch and service is not None:
            _watch(service, context)
    return 0


def _live(service: Service | None, context: Context) -> Manager | None:
    """What the service says; one that says nothing keeps nobody from what the record says."""
    try:
        return None if service is None else service.manager()
    except KeeperError as error:
        context.output.note(str(error))
        return None


def _watch(service: Service, context: Context) -> None:
    """Show it again at each change, until Ctrl-C, or until the service has ended."""
    try:
        while True:
            service.wait()
            _show(context, service.manager(), again=True)
    except KeyboardInterrupt:
        return  # seen enough


def _show(context: Context, live: Manager | None, *, again: bool = False) -> None:
    output = context.output
    recorded = _read(context)
    elsewhere = _foreign(context) if live is None and context.means_service() else ()
    if output.json != "off":
        shown_now = _document(recorded, live, context.state_directory)
        if context.means_service():
            shown_now["fine"], shown_now["verdict"] = verdict(recorded, live, elsewhere)
        output.document(shown_now)
        return
    absent = [("Service", ABSENT)] if context.means_service() else []
    service = absent if live is None else _service_facts(live)
    lines = _lines(recorded, [*_saved(recorded, live), *service], context.state_directory, live=live is not None)
    if context.means_service():
        lines = [*wrapped(shown(verdict(recorded, live, elsewhere)[1]), output.width), "", *lines]
    if again:
        lines = [_CLEAR + lines[0], *lines[1:]] if output.colours else ["", *lines]
    output.lines(lines, paged=False)


def verdict(recorded: _Recorded, live: Manager | None, elsewhere: tuple[str, ...] = ()) -> tuple[bool, str]:
    """Whether all is well, and the first line: "Fine: ..." or "Act: ..." with what to do.

    `elsewhere` are the journal directories where none is on btrfs: without a service nothing has to be done for them.
    """
    if live is None and elsewhere:
        are = "is" if len(elsewhere) == 1 else "are"
        return True, f"Fine: {' and '.join(elsewhere)} {are} not on btrfs; there is nothing to do."
    for is_so, what in _troubles(recorded, live):
        if is_so:
            return False, f"Act: {what}"
    if live is None:
        return True, "Fine: a run by hand or by the timer was within the last two days, and nothing failed."
    doing = f"; {live.state_reason}" if live.state_reason else ""
    return True, f"Fine: {counted(live.files or 0, 'journal file')} looked after{doing}."


def _troubles(recorded: _Recorded, live: Manager | None) -> list[tuple[bool, str]]:
    """What could be wrong, the worst first, and whether it is; in words that say what to do."""
    now_us, last = time.time_ns() // 1000, recorded.last_run
    if live is None:
        kept = last is not None and now_us - last.began_us < 2 * DAY_US
        nobody = "nothing looks after this journal; sudo systemctl enable --now journalkeeper"
        unknown = "the service does not run, and only root may read what was done; sudo journalkeeper status"
        troubles = [(not recorded.readable, unknown), (not kept, nobody)]
    else:
        other = f"the service is still version {live.version}; sudo systemctl restart journalkeeper"
        troubles = [
            (live.state == "degraded", f"{live.state_reason}; journalctl -u journalkeeper says more"),
            (live.version != __version__, other),
            (bool(live.limits), "; ".join(live.limits or ())),
            (bool(live.paused), "the service is paused; sudo journalkeeper resume"),
        ]
    waiting = sentence(recorded.waiting, now_us)
    failed = 0 if last is None else last.failed
    return [
        *troubles,
        (bool(waiting), f"{waiting}; journalkeeper plan says why"),
        (failed > 0, f"{counted(failed, 'file')} failed in the last run; journalkeeper history says why"),
    ]


def _foreign(context: Context) -> tuple[str, ...]:
    """`foreign` of the configured directories; a configuration that is wrong keeps nobody from what the record says."""
    try:
        return foreign(context.config().watch.directories)
    except KeeperError as error:
        context.output.note(str(error))
        return ()


def foreign(tops: tuple[str, ...]) -> tuple[str, ...]:
    """The journal directories `tops` if all are there and nothing in them is on btrfs, else none.

    Raises: FileError if one cannot be listed.
    """
    from journalkeeper.btrfs.volume import require_btrfs  # noqa: PLC0415 - pages are made without btrfsutil
    from journalkeeper.journald import layout, opening  # noqa: PLC0415 - takes pydantic, and is seldom needed

    for top in tops:
        for path in [place.path for place in layout.directories(top)] or [os.path.realpath(top)]:
            try:
                with opening.directory(path) as fd:
                    require_btrfs(fd, path)
            except NotBtrfsError:
                continue
            except OSError:
                return ()  # nobody can tell
            return ()
    return tops


def _read(context: Context) -> _Recorded:
    now_us = time.time_ns() // 1000
    try:
        with context.record() as record:
            latest = {totals.instance: totals for totals in record.totals()}
            written = record.written_since(now_us - DAY_US, now_us)
            for sentence in record.ignored:
                context.output.note(sentence)
            return _Recorded(
                readable=True,
                last_run=record.last_run(),
                written_day_bytes=written,
                totals=tuple(latest.values()),
                waiting=tuple(long(record.waiting().values(), now_us)),
                counters=record.counters(),
            )
    except NeedsRootError:
        return _Recorded(readable=False, last_run=None, written_day_bytes=0, totals=())


def _document(recorded: _Recorded, live: Manager | None, state_directory: str) -> dict[str, object]:
    return {
        "version": __version__,
        "state_directory": state_directory,
        "readable": recorded.readable,
        "last_run": recorded.last_run and document(RUN, recorded.last_run),
        "written_day_bytes": recorded.written_day_bytes if recorded.readable else None,
        "totals": [document(TOTALS, totals) for totals in recorded.totals],
        "service": None if live is None else document(MANAGER, live),
        "waiting": [document(WAIT, wait) for wait in recorded.waiting] if recorded.readable else None,
        "saving": recorded.counters and document(SAVING, recorded.counters),
    }


def _lines(recorded: _Recorded, service: list[tuple[str, str]], state_directory: str, *, live: bool) -> list[str]:
    facts = [*service, ("Version", __version__), ("Record", shown(state_directory))]
    if not recorded.readable:
        facts.append(("Last run", "only root may know; try sudo journalkeeper status"))
    elif recorded.last_run is None:
        facts.append(("Last run", "none yet; `journalkeeper plan` shows what there is to do"))
    else:
        facts.append(("Last run", _run(recorded.last_run)))
        facts.append(("Written", f"{format_size(recorded.written_day_bytes)} in the last 24 hours"))
    if recorded.waiting:
        facts.append(("Waiting", shown(sentence(recorded.waiting, time.time_ns() // 1000))))
    if not live:  # the service's own numbers are those of its last look
        facts += [("Recorded", _totals(totals)) for totals in recorded.totals]
    width = max(len(name) for name, _ in facts)
    return [f"{name:>{width}}: {value}" for name, value in facts]


def _saved(recorded: _Recorded, live: Manager | None) -> list[tuple[str, str]]:
    """Return the row with the saving since the installation: from the record, or from the service for other users."""
    if recorded.counters is not None:
        since_us = recorded.counters.since_us
        said = describe_saving(recorded.counters, "the installation" if since_us is None else day(since_us))
    else:
        known = Counters(bytes_reclaimed=None if live is None else live.bytes_reclaimed_total)
        said = describe_saving(known, "the installation")
    return [("Saved", said)] if said else []


def _service_facts(live: Manager) -> list[tuple[str, str]]:
    """What the service knows now."""
    state = f"{live.state}, {live.state_reason}" if live.state_reason else f"{live.state}"
    if live.version != __version__:
        state += f" (it is still version {live.version}: systemctl restart journalkeeper)"
    journal = f"{' and '.join(map(shown, live.directories or ()))}, {counted(live.files or 0, 'file')}, "
    journal += f"{counted(live.extents or 0, 'extent')} ({live.active_extents or 0:,} in active files), "
    journal += f"{live.fragmented_files or 0:,} fragmented"
    written = f"{format_size(live.bytes_written or 0)} since it started, "
    written += f"{format_size(live.bytes_reclaimed or 0)} reclaimed as far as is known"
    left = "no limit" if live.budget_left_bytes is None else f"{format_size(live.budget_left_bytes)} left for today"
    facts = [("Service", shown(state)), ("Journal", journal), ("Window", _window(live)), ("Rewritten", written)]
    facts.append(("Budget", left))
    if live.intake_delay_p99_us:
        facts.append(("Intake", f"99 of 100 messages wait at most {format_span(live.intake_delay_p99_us, 1000)}"))
    facts += [("Limit", shown(sentence)) for sentence in live.limits or ()]
    return facts


def _window(live: Manager) -> str:
    """Return whether the files that journald writes may be worked on, and when that changes."""
    flush = shown_time(live.next_flush_us) if live.next_flush_us else ""
    if live.window_open:
        return f"open; closes shortly before journald's next flush at {flush}" if flush else "open"
    return f"closed; opens after journald's flush at {flush}" if flush else "closed; opens after journald's next flush"


def _run(run: Run) -> str:
    text = f"{shown(run.origin)} at {shown_time(run.began_us)}"
    if run.ended_us is None:
        text += ", going on or killed"
    else:
        text += f", took {format_span(run.ended_us - run.began_us, 1000)}"
    return (
        f"{text}: {run.done} done, {run.skipped} skipped, {run.failed} failed, {format_size(run.bytes_written)} written"
    )


def _totals(totals: Totals) -> str:
    text = f"{shown(totals.instance)}, {counted(totals.files, 'file')}, {counted(totals.extents, 'extent')}"
    text += f" (ideal {totals.ideal_extents:,}, {totals.active_extents:,} in active files)"
    return f"{text}, {format_size(totals.size_bytes)}, at {shown_time(totals.when_us)}"
