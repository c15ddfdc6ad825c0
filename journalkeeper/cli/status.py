# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper status`: the verdict, then the facts from the service and the history. It works for any user.

Shows the verdict first: "OK: ..." or "Act: ..." with the remedy. Then it shows the state of the
service and of its last look, which every user may see. Root also sees the history: the last run, the
bytes written in the last 24 hours, and the totals of the journal files at the last look.

examples:
  journalkeeper status
  journalkeeper status --watch              again at each change, until Ctrl-C
  sudo journalkeeper status -j | jq .health_reasons

exit status:
  0 the verdict is OK, or the options name another journal than that of this
  host's service; 1 it is not OK, the history is damaged, or with --watch the
  service does not run or has ended; 2 wrong usage
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from journalkeeper import __version__
from journalkeeper.cli.context import ABSENT, OF_THE_SERVICE, Context, refuse_another
from journalkeeper.cli.table import wrap_sentence
from journalkeeper.cli.times import format_time
from journalkeeper.health.evidence import UNASKED, Evidence, Hung, Look, Recorded, Unknown
from journalkeeper.health.finding import Verdict, judge
from journalkeeper.health.rules import HEALTH
from journalkeeper.health.verdict import describe_files, describe_foreign, present
from journalkeeper.model import Host
from journalkeeper.model.errors import BusyError, KeeperError, NeedsRootError, NotBtrfsError
from journalkeeper.model.escape import shown
from journalkeeper.model.manager import Manager
from journalkeeper.model.record import Count, Sometimes
from journalkeeper.model.recorded import Counters, Run, Totals
from journalkeeper.model.units import DAY_US, counted, format_span, spell_size
from journalkeeper.model.waiting import Wait, long
from journalkeeper.report.text import describe_total_saving

_CLEAR: Final = "\x1b[H\x1b[J"
"""Move the cursor to the top and clear the screen (ECMA-48)."""


class _Status(NamedTuple):
    """The facts to show. `record` is None if it cannot be read now; `written_bytes` are those of the last 24 hours.

    `verdict` is None if the command is about another journal than that of this host's service.
    """

    record: Recorded | None
    written_bytes: int
    evidence: Evidence
    verdict: Verdict | None

    @property
    def live(self) -> Manager | None:
        """The report of the running service, or None if there is none."""
        return self.evidence.service if isinstance(self.evidence.service, Manager) else None

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        return "" if self.verdict is None else self.verdict.headline(_describe_ok(self.evidence))


def options(parser: argparse.ArgumentParser) -> None:
    """Add --watch."""
    parser.add_argument(
        "--watch", action="store_true", help="show the status again whenever the service's state changes, until Ctrl-C"
    )


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the status, once or with --watch until Ctrl-C."""
    if args.watch:
        refuse_another(args, "status --watch", OF_THE_SERVICE)
        return _watch(context)
    status = _look(context, context.ask_service().result)
    _show(context, status)
    return int(status.verdict is not None and status.verdict.health != "ok")


def _watch(context: Context) -> int:
    """Show the status now and after each change that the service reports. Return 0 on Ctrl-C.

    Raises: KeeperError when the service ends.
    """
    with context.require_service() as service:
        _show(context, _look(context, service.manager))
        try:
            while True:
                service.wait()
                _show(context, _look(context, service.manager), again=True)
        except KeyboardInterrupt:
            return 0  # seen enough


def _show(context: Context, status: _Status, *, again: bool = False) -> None:
    output = context.output
    if output.json != "off":
        output.document(_make_answer(status, context.state_directory))
        return
    lines = _lines(status, context)
    if status.verdict is not None:
        texts = [status.headline, *(finding.line for finding in status.verdict.problems[1:])]
        lines = [*(line for text in texts for line in wrap_sentence(shown(text), output.width)), "", *lines]
    if again:
        lines = [_CLEAR + lines[0], *lines[1:]] if output.colours else ["", *lines]
    output.lines(lines, paged=False)


def _look(context: Context, ask: Callable[[], Manager | Hung | Unknown | None]) -> _Status:
    """Collect the evidence for the status from the history, the configuration and the service.

    `ask` returns the service's report, its error, or None. If it returns None, the states of the units are read from
    systemd.
    """
    found, written_bytes = _read(context)
    record = found if isinstance(found, Recorded) else None
    evidence = Evidence(context.now_us, record=found)
    if not context.means_service():
        return _Status(record, written_bytes, evidence, None)
    try:
        directories = context.config().watch.directories
    except (KeeperError, OSError) as error:
        evidence, directories = evidence._replace(config_error=str(error)), ()
    evidence = evidence._replace(service=(service := ask()))
    if service is None:
        from journalkeeper.bus.unit_states import units  # noqa: PLC0415 - pages are made without dbus-fast

        elsewhere = foreign(directories)
        look = Look(Host(context.now_us, (), (), (), {}, 0), elsewhere) if elsewhere else UNASKED
        evidence = evidence._replace(look=look, units=units())
    evidence = evidence._replace(present=present(evidence))
    return _Status(record, written_bytes, evidence, judge(evidence, HEALTH))


def _describe_ok(evidence: Evidence) -> str:
    """Return the sentence of a verdict that is OK."""
    live, look = evidence.service, evidence.look
    if isinstance(live, Manager) and live.state == "idle" and live.state_reason:
        return f"{live.state_reason}."
    if isinstance(live, Manager):
        return describe_files(live.files or 0, (live.state_reason or "") if live.state == "waiting" else "")
    if isinstance(look, Look):
        return f"{describe_foreign(look.foreign)}."
    last = None if isinstance(evidence.record, Unknown) else evidence.record.last_run
    if last is None:
        return "no service runs, and nothing was done yet."
    ago = format_span(max(0, evidence.now_us - last.began_us))
    return f"no service runs; the last run, {ago} ago ({last.origin}), did not fail."


def foreign(tops: tuple[str, ...]) -> tuple[str, ...]:
    """Return the journal directories `tops` if all exist and none has a file on btrfs, else an empty tuple.

    Raises: FileError if one cannot be listed.
    """
    from journalkeeper.btrfs.volume import require_btrfs  # noqa: PLC0415 - pages are made without btrfsutil
    from journalkeeper.journald import layout, opening  # noqa: PLC0415 - takes pydantic, and is seldom needed

    for top in tops:
        for path in [place.path for place in layout.find_directories(top)] or [os.path.realpath(top)]:
            try:
                with opening.open_directory(path) as fd:
                    require_btrfs(fd, path)
            except NotBtrfsError:
                continue
            except OSError:
                return ()  # unknown
            return ()
    return tops


def _read(context: Context) -> tuple[Recorded | Unknown, int]:
    """Return the present contents of the history, or why they cannot be read, and the bytes written in 24 hours."""
    now_us = context.now_us
    try:
        with context.record() as record:
            last = record.last_run()
            latest = {totals.instance: totals for totals in record.totals()}
            found = Recorded(
                first_us=None,
                entries=() if last is None else tuple(record.history((), last.began_us)),
                totals=tuple(latest.values()),
                last_run=last,
                waiting=tuple(long(record.waiting().values(), now_us)),
                counters=record.counters(),
            )
            written_bytes = record.sum_written_bytes(now_us - DAY_US, now_us)
            for sentence in record.ignored:
                context.output.note(sentence)
            return found, written_bytes
    except NeedsRootError:
        return Unknown("only root may read the history: sudo journalkeeper status", needs_root=True), 0
    except BusyError as error:
        return Unknown(str(error)), 0


class StatusAnswer(NamedTuple):
    """The answer of `status`. The keys about the verdict are there where this host's service is meant."""

    version: str
    state_directory: str
    readable: bool
    last_run: Run | None
    written_day_bytes: Count | None
    totals: tuple[Totals, ...]
    service: Manager | None
    waiting: tuple[Wait, ...] | None
    saving: Counters | None
    fine: Sometimes[bool] = None
    """Whether all is well; where this host's service is meant."""
    verdict: Sometimes[str] = None
    """The sentence that `status` begins with; where this host's service is meant."""
    health: Sometimes[str] = None
    """ok, act or unknown; where this host's service is meant."""
    health_reasons: Sometimes[list[str]] = None
    """Why the health is not ok, as HealthReasons on the bus."""


def _make_answer(status: _Status, state_directory: str) -> StatusAnswer:
    record, verdict = status.record, status.verdict
    found = StatusAnswer(
        version=__version__,
        state_directory=state_directory,
        readable=record is not None,
        last_run=record and record.last_run,
        written_day_bytes=status.written_bytes if record else None,
        totals=record.totals if record else (),
        service=status.live,
        waiting=record and record.waiting,
        saving=record and record.counters,
    )
    if verdict is None:
        return found
    fine, reasons = verdict.health == "ok", verdict.reasons
    return found._replace(fine=fine, verdict=status.headline, health=verdict.health, health_reasons=reasons)


def _lines(status: _Status, context: Context) -> list[str]:
    """Return the lines below the verdict: facts from the history and the service, each after its name."""
    record, found, live = status.record, status.evidence.record, status.live
    counters = (record and record.counters) or Counters(bytes_reclaimed=live and live.bytes_reclaimed_total)
    saving = describe_total_saving(counters)
    facts = [("Saved", saving)] if saving else []
    facts += _service_facts(status.evidence.service)
    facts.append(("History", shown(context.state_directory)))
    if isinstance(found, Unknown):
        facts.append(
            ("Last run", "only root may know; try sudo journalkeeper status" if found.needs_root else found.why)
        )
    elif found.last_run is None:
        facts.append(("Last run", "none yet; `journalkeeper plan` shows what there is to do"))
    else:
        facts.append(("Last run", _run(found.last_run)))
    if record and record.last_run:
        facts.append(("Written", f"{spell_size(status.written_bytes)} in the last 24 hours"))
    elif live and live.bytes_written:
        facts.append(("Written", f"{spell_size(live.bytes_written)} since the service started"))
    if record and live is None:  # the service's own numbers are those of its last look
        facts += [("Recorded", _totals(totals)) for totals in record.totals]
    margin = max(len(name) for name, _ in facts) + 2
    room = None if context.output.width is None else context.output.width - margin
    return [
        f"{f'{name}: ' if number == 0 else '':>{margin}}{text}"
        for name, value in facts
        for number, text in enumerate(wrap_sentence(shown(value), room))
    ]


def _service_facts(live: Manager | Hung | Unknown | None) -> list[tuple[str, str]]:
    """Return (name, text) rows with the service's report, or one row that states why there is none."""
    if live == UNASKED:
        return []
    if not isinstance(live, Manager):
        hung = "does not answer" if isinstance(live, Hung) else ""
        return [("Service", hung or (ABSENT if live is None else live.why))]
    limit = "no limit" if live.budget_left_bytes is None else spell_size(live.budget_left_bytes)
    if live.health == "unknown":  # it has counted nothing yet
        return [("Service", "the first look runs"), ("Budget", f"{limit} a day" if live.budget_left_bytes else limit)]
    journal = f"{' and '.join(live.directories or ())}, {counted(live.files or 0, 'file')}, "
    journal += f"{counted(live.extents or 0, 'extent')} ({live.active_extents or 0:,} in active files), "
    journal += f"{live.fragmented_files or 0:,} fragmented"
    facts = [
        ("Service", ", ".join(filter(None, [live.state, live.state_reason]))),
        ("Journal", journal),
        ("Window", _window(live)),
        ("Budget", limit if live.budget_left_bytes is None else f"{limit} left for today"),
    ]
    if live.intake_delay_p99_us:
        facts.append(("Intake", f"delay p99: {format_span(live.intake_delay_p99_us, 1000)}"))
    return facts


def _window(live: Manager) -> str:
    """Return a text: whether the flush window for files that journald writes is open, and when that changes."""
    flush = format_time(live.next_flush_us) if live.next_flush_us else ""
    if live.window_open:
        return f"open; closes shortly before journald's next flush at {flush}" if flush else "open"
    return f"closed; opens after journald's flush at {flush}" if flush else "closed; opens after journald's next flush"


def _run(run: Run) -> str:
    text = f"{run.origin} at {format_time(run.began_us)}"
    if run.ended_us is None:
        text += ", going on or killed"
    else:
        text += f", took {format_span(run.ended_us - run.began_us, 1000)}"
    return (
        f"{text}: {run.done} done, {run.skipped} skipped, {run.failed} failed, {spell_size(run.bytes_written)} written"
    )


def _totals(totals: Totals) -> str:
    text = f"{totals.instance}, {counted(totals.files, 'file')}, {counted(totals.extents, 'extent')}"
    text += f" (ideal {totals.ideal_extents:,}, {totals.active_extents:,} in active files)"
    return f"{text}, {spell_size(totals.size_bytes)}, at {format_time(totals.when_us)}"
