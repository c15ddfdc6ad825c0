# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper status`: how things are, from the record. The one rule: any user gets an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from journalkeeper import __version__
from journalkeeper.cli.text import counted, shown
from journalkeeper.cli.times import shown_time
from journalkeeper.errors import NeedsRootError
from journalkeeper.values import format_size, format_span

if TYPE_CHECKING:
    import argparse

    from journalkeeper.cli.session import Session
    from journalkeeper.record import Run, Totals

DESCRIPTION = """\
Shows the totals of the journal files when they were last looked at, the last run, and what
was written in the last 24 hours. What it is about is recorded in the state directory,
which only root may read."""

EXAMPLES = """\
examples:
  sudo journalkeeper status
  sudo journalkeeper status -j | jq .last_run.failed

exit status:
  0 done, also if there is nothing to tell; 1 the record is damaged; 2 wrong usage"""

DAY_US = 24 * 3600 * 1_000_000


class _Recorded(NamedTuple):
    """What the record says, `readable` being whether this user may know."""

    readable: bool
    last_run: Run | None
    written_day_bytes: int
    totals: tuple[Totals, ...]


def options(_: argparse.ArgumentParser) -> None:
    """None of its own."""


def run(_: argparse.Namespace, session: Session) -> int:
    """Show it."""
    recorded = _read(session)
    if session.output.json != "off":
        session.output.document(_document(recorded, session.state_directory))
    else:
        session.output.lines(_lines(recorded, session.state_directory))
    return 0


def _read(session: Session) -> _Recorded:
    try:
        with session.record() as record:
            latest = {totals.instance: totals for totals in record.totals()}
            written = record.written_since(session.now_us - DAY_US, session.now_us)
            return _Recorded(
                readable=True, last_run=record.last_run(), written_day_bytes=written, totals=tuple(latest.values())
            )
    except NeedsRootError:
        return _Recorded(readable=False, last_run=None, written_day_bytes=0, totals=())


def _document(recorded: _Recorded, state_directory: str) -> dict[str, object]:
    return {
        "version": __version__,
        "state_directory": state_directory,
        "readable": recorded.readable,
        "last_run": recorded.last_run and recorded.last_run._asdict(),
        "written_day_bytes": recorded.written_day_bytes if recorded.readable else None,
        "totals": [totals._asdict() for totals in recorded.totals],
    }


def _lines(recorded: _Recorded, state_directory: str) -> list[str]:
    facts = [("Version", __version__), ("State", shown(state_directory))]
    if not recorded.readable:
        facts.append(("Last run", "only root may know; try sudo journalkeeper status"))
    elif recorded.last_run is None:
        facts.append(("Last run", "none yet; `journalkeeper plan` shows what there is to do"))
    else:
        facts.append(("Last run", _run(recorded.last_run)))
        facts.append(("Written", f"{format_size(recorded.written_day_bytes)} in the last 24 hours"))
    facts += [("Journal", _totals(totals)) for totals in recorded.totals]
    width = max(len(name) for name, _ in facts)
    return [f"{name:>{width}}: {value}" for name, value in facts]


def _run(run: Run) -> str:
    text = f"{shown(run.door)} at {shown_time(run.began_us)}"
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
