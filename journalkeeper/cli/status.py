# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper status`: the verdict, then the facts from the service and the history. It works for any user.

Shows the verdict first: "OK: ...", "Act: ..." with the remedy, or "Unknown: ..." while the service starts or if
the facts cannot be read. Then it shows the state of the service and what it found when it last looked at the
files, which every user may see.
Root also sees the last run, which is in the history.

examples:
  journalkeeper status
  sudo journalkeeper status -j | jq .health_reasons

exit status:
  0 the verdict is OK, or there is none: -D or --config names a journal that
  the service does not manage; 1 it is not OK; 2 wrong usage
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

from journalkeeper import __version__
from journalkeeper.cli.context import Context
from journalkeeper.cli.evidence import gather
from journalkeeper.health.evidence import RECENT_US, UNASKED, Evidence, Look, Recorded, Unknown, Wanted
from journalkeeper.health.finding import judge
from journalkeeper.health.verdict import HEALTH, describe_absence, describe_files, describe_foreign, describe_next_run
from journalkeeper.model.manager import Finding, Manager
from journalkeeper.model.run import Counters, Run, Totals, Wait, list_long_waits
from journalkeeper.model.schema import Count, Sometimes
from journalkeeper.model.sentences import BY
from journalkeeper.model.units import escape, format_span, pluralize, spell_size
from journalkeeper.report.story import describe_limits, name_facts
from journalkeeper.report.text import describe_total_saving, format_moment


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
    findings: Sometimes[tuple[Finding, ...]] = None
    """What the verdict was made of, as in `doctor -j`, the problems first."""


def run(_args: argparse.Namespace, context: Context) -> int:
    """Show the status, and return the exit status: 1 if the verdict is not OK, else 0, also unless `means_service`.

    Raises: as `_collect_evidence`.
    """
    evidence = _collect_evidence(context)
    verdict = judge(evidence, HEALTH) if context.means_service() else None
    headline = verdict and verdict.headline(_describe_ok(evidence))
    record = evidence.record if isinstance(evidence.record, Recorded) else None
    answer = StatusAnswer(
        version=__version__,
        state_directory=context.state_directory,
        readable=record is not None,
        last_run=record and record.last_run,
        written_day_bytes=record and record.written_day_bytes,
        totals=tuple({one.instance: one for one in record.totals}.values()) if record else (),
        service=evidence.service if isinstance(evidence.service, Manager) else None,
        waiting=record and tuple(list_long_waits(record.waiting, evidence.now_us)),
        saving=record and record.counters,
        fine=verdict and verdict.health == "ok",
        verdict=headline,
        health=verdict and verdict.health,
        health_reasons=verdict and verdict.reasons,
        findings=verdict and verdict.findings,
    )
    said = [headline, *(finding.line for finding in verdict.problems[1:])] if verdict and headline else []
    rows = [(name, escape(text)) for name, text in _list_facts(answer, evidence) if text]
    context.output.show(answer, [escape(text) for text in said], name_facts(rows))
    return int(verdict is not None and verdict.health != "ok")


def _collect_evidence(context: Context) -> Evidence:
    """Collect the evidence for the status, without the journal's entries; unless `means_service`, only the history.

    Raises: KeeperError for a -D that is no directory; OSError for a -D that cannot be examined; FileError if a
        directory cannot be listed.
    """
    now_us = context.now_us
    if not context.means_service():
        context.list_directories()
        return Evidence(now_us, record=context.read_history(now_us - RECENT_US))
    return gather(context, Wanted(entries=0, since_us=now_us - RECENT_US, files=False))


def _describe_ok(evidence: Evidence) -> str:
    """Return the text after "OK: ": why the service is idle, its files, that none is on btrfs, or last and next run."""
    live, look = evidence.service, evidence.look
    if isinstance(live, Manager) and live.state == "idle" and live.state_reason:
        return f"{live.state_reason}."
    if isinstance(live, Manager):
        return describe_files(live.files or 0, (live.state_reason or "") if live.state == "waiting" else "")
    if isinstance(look, Look) and look.foreign and not look.host.instances:
        return f"{describe_foreign(look.foreign)}."
    last = None if isinstance(evidence.record, Unknown) else evidence.record.last_run
    ago = last and f"the last run, {format_span(max(0, evidence.now_us - last.began_us))} ago, did not fail"
    return f"{ago or 'there was no run yet'}; {describe_next_run(evidence.units)}."


def _list_facts(answer: StatusAnswer, evidence: Evidence) -> list[tuple[str, str]]:
    """Return rows "Saved" ("" for none), of `_list_service_facts`, and "Last run". If the history is Unknown, "Saved"
    is the service's number, and "Last run" has the reason.
    """
    record, live = evidence.record, answer.service
    counters = answer.saving or Counters(bytes_reclaimed=live and live.bytes_reclaimed_total)
    if isinstance(record, Unknown):
        last = record.why
    elif record.last_run is None:
        last = "none yet; `journalkeeper plan` shows what there is to do"
    else:
        unended = "running" if live is not None and live.state == "working" else "its end is not recorded"
        last = _describe_run(record.last_run, unended)
    services = _list_service_facts(evidence, answer.verdict or "")
    return [("Saved", describe_total_saving(counters)), *services, ("Last run", last)]


def _list_service_facts(evidence: Evidence, verdict: str) -> list[tuple[str, str]]:
    """Return rows on the service's state, its reason unless `verdict` has it, counts, journald's limits and the flush
    window; none if it is UNASKED. A service that does not run or answer, or that has not looked yet, has one row.
    """
    live = evidence.service
    if live == UNASKED:
        return []
    if not isinstance(live, Manager):
        return [("Service", describe_absence(evidence.units) if live is None else live.why)]
    if live.health == "unknown":  # it has counted nothing yet
        return [("Service", live.state or "")]
    journal = f"{pluralize(live.files or 0, 'file')} in {' and '.join(live.directories or ())}, "
    journal += f"{f'{live.fragmented_files:,}' if live.fragmented_files else 'none'} fragmented; "
    journal += f"{pluralize(live.extents or 0, 'extent')}, {live.active_extents or 0:,} in active files"
    reason = live.state_reason or ""
    return [
        ("Service", ", ".join(filter(None, [live.state, "" if reason in verdict else reason]))),
        ("Journal", journal),
        *(row for one in live.history or () if one.binding for row in describe_limits(one)),
        ("Window", _describe_window(live)),
    ]


def _describe_window(live: Manager) -> str:
    """Return "open: ..." or, also for an unknown window, "closed: ...", with the time of the next flush if known."""
    flush = format_moment(live.next_flush_us) if live.next_flush_us else ""
    if live.window_open:
        return f"open: active files can be rewritten{f' until just before the flush at {flush}' if flush else ''}"
    return f"closed: no rewrite of active files before journald's next flush{f' at {flush}' if flush else ''}"


def _describe_run(run: Run, unended: str) -> str:
    """Return the time, origin, duration and actions of a run; `unended` instead of the duration if it has no end."""
    took = f"took {format_span(run.ended_us - run.began_us, 1000)}" if run.ended_us else unended
    number = run.done + run.skipped + run.failed
    actions = f"{run.done} of {pluralize(number, 'action')} done, {run.failed} failed" if number else "no action done"
    actions += f", {spell_size(run.bytes_written)} rewritten" if run.bytes_written else ""
    return f"{format_moment(run.began_us)} by {BY.get(run.origin, run.origin)}, {took}: {actions}"
