# SPDX-License-Identifier: LGPL-2.1-or-later
"""All rules, and the service's verdict on itself: the evidence that a run leaves, the judgement, and its wording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from posixpath import dirname
from types import FunctionType, ModuleType
from typing import Final

from journalkeeper.health import service_rules, storage_rules
from journalkeeper.health.evidence import DEFRAG_TIMER, SERVICE, Evidence, Hung, Present, Unit, Unknown, find_unit
from journalkeeper.health.finding import Rule, Verdict, judge
from journalkeeper.model import Outcome, Plan, Reason, Result, Skip
from journalkeeper.model.manager import Manager
from journalkeeper.model.run import Wait
from journalkeeper.model.sentences import NO_JOURNAL
from journalkeeper.model.units import pluralize
from journalkeeper.policy.deferral import PASSING

FAULTS: Final = frozenset(
    {Reason.IO_ERROR, Reason.REFUSED, Reason.INTERNAL_ERROR, Reason.TOO_MANY, Reason.FREE_SPACE, Reason.QUOTA}
)
"""Reasons to skip a file or directory that end only when an administrator acts."""

WAITS: Final = {
    Reason.SETTLING: "until SettleSec= has passed since the last change",
    Reason.WINDOW_CLOSED: "for journald's next flush",
    Reason.STARTING: "until the service has run for SettleSec=",
    Reason.BUDGET: "for the daily budget (BytesPerDay= or RotationsPerDay=)",
    Reason.TOO_YOUNG: "until a day divided by RotationsPerDay= has passed since the last rotation",
    Reason.PRESSURE: "until the disk is less busy",
    Reason.BATTERY: "for mains power (OnBattery=no)",
    Reason.QUIET_HOURS: "until QuietHours= ends",
    Reason.FREE_SPACE: "for free disk space",
    Reason.QUOTA: "for room in a quota group (`btrfs qgroup show`)",
    Reason.IN_USE: "for programs to stop writing",
    Reason.NOT_BEGUN: "for the next run, because the last one ended early",
    Reason.INTERNAL_ERROR: "because of a bug in journalkeeper (see the log)",
    Reason.READ_ONLY: "until the file is writable: it is immutable (chattr -i), or its filesystem is read-only",
    Reason.FOREIGN_OWNER: "for the rights in remote.conf (journalkeeper.service(8)), because another user owns it",
}
"""What a file waits for, by reason; of other waits the reason itself is shown."""


def _list_rules(module: ModuleType) -> tuple[Rule, ...]:
    """Return the public functions that `module` itself defines, in their order."""
    functions = [one for name, one in vars(module).items() if isinstance(one, FunctionType) and name[0] != "_"]
    return tuple(one for one in functions if one.__module__ == module.__name__)


HEALTH: Final = _list_rules(service_rules)
"""The rules on the service. The first finding in this order is the headline of `status`."""

RULES: Final = (*_list_rules(storage_rules), *HEALTH)
"""Every rule of health, in the order of doctor's output: the public functions of the modules of rules."""


def judge_present(present: Present, now_us: int) -> Verdict:
    """Return the answers of the HEALTH rules on `present`, for a service that runs, answers and is up to date."""
    standing = {name: getattr(present, name) for name in ("unwritable", "silent", "full")}
    return judge(Evidence(now_us, present=present, service=Manager(), **standing), HEALTH)


def find_present(evidence: Evidence) -> Present | Unknown:
    """Return the facts from which rules judge the work, or Unknown if the service starts or hangs.

    A service that answers has judged its own facts: then only `looked` is set. Without a service, the facts are only
    the waiting files in the history, and the failures since the last run began; Unknown without a history.
    """
    service, record = evidence.service, evidence.record
    if isinstance(service, Manager):
        return Present(looked=service.health != "unknown")
    unit = Unit(SERVICE, "", "") if isinstance(evidence.units, Unknown) else find_unit(evidence.units, SERVICE)
    if unit.is_starting:
        return Unknown(unit.start_sentence)
    if isinstance(service, Hung):
        return Unknown(service.why)
    if isinstance(record, Unknown):
        return record
    began_us = 0 if record.last_run is None else record.last_run.began_us
    outcomes = (one.outcome for one in record.entries if one.when_us >= began_us)
    return Present(waiting=record.waiting, failures=tuple(find_failures(outcomes)))


def summarize_run(plan: Plan, outcomes: Iterable[Outcome], waiting: Sequence[Wait] = ()) -> Present:
    """Return a run's failures, its waiting files and the instances whose work waits for a window that never opens.

    `failures` has one entry per path: a failed action replaces a skip with a reason in FAULTS.
    """
    failed = [*(skip for skip in plan.skipped if skip.reason in FAULTS), *find_failures(outcomes)]
    failures = {one.path: one for one in failed}
    wait = {skip.instance for skip in plan.skipped if skip.puts_off and skip.reason is Reason.WINDOW_CLOSED}
    short = {window.instance for window in plan.window.values() if window.reason == "too-short"}
    return Present(failures=tuple(failures.values()), waiting=tuple(waiting), closed=tuple(sorted(short & wait)))


def find_failures(outcomes: Iterable[Outcome]) -> list[Skip]:
    """Return a Skip for each failed action, except for failures that end without an administrator (PASSING)."""
    failed = (one for one in outcomes if one.result is Result.FAILED and one.reason not in PASSING)
    return [Skip(one.path, one.reason, one.detail) for one in failed]


def keep_failures(before: Iterable[Skip], decided: Mapping[str, object]) -> list[Skip]:
    """Return the failures of `before` that remain after a new plan, in the same order.

    `decided` has the plan's decision for each path. A skip for the same reason keeps a failure. A skip that delays an
    action (`puts_off`) keeps every failure except one of FREE_SPACE.
    """
    return [
        one
        for one in before
        if isinstance(skip := decided.get(one.path), Skip)
        and (skip.reason == one.reason or (skip.puts_off and one.reason is not Reason.FREE_SPACE))
    ]


def describe_waits(skipped: Iterable[Skip]) -> str:
    """Return the waits, the most frequent first: "3 files wait for free disk space, 1 directory waits for journald's
    next flush".

    Only skips that postpone work count, without the rows that `drop_echoes` removes. The text is "" if no file waits.
    """
    skipped = drop_echoes(skipped)
    waits = ((_describe_end(skip), find_noun(skip)) for skip in skipped if skip.puts_off)
    return ", ".join(
        f"{pluralize(number, noun)} {'waits' if number == 1 else 'wait'} {end}"
        for (end, noun), number in sorted(Counter(waits).items(), key=lambda pair: (-pair[1], pair[0]))
    )


def _describe_end(skip: Skip) -> str:
    """Return what the file waits for: the detail of QUIET_HOURS, if any, else the text in WAITS, else "(REASON)"."""
    known = skip.detail if skip.reason is Reason.QUIET_HOURS else ""  # it has the time; empty for other users
    return known or WAITS.get(skip.reason, f"({skip.reason})")


def drop_echoes(skipped: Iterable[Skip]) -> list[Skip]:
    """Return `skipped` without each directory that waits for a flush (WINDOW_CLOSED) if one of its files does, too."""
    skipped = list(skipped)
    known = {dirname(skip.path) for skip in skipped if skip.reason is Reason.WINDOW_CLOSED}
    return [skip for skip in skipped if skip.reason is not Reason.WINDOW_CLOSED or skip.path not in known]


def find_noun(skip: Skip) -> str:
    """Return "file" for the path of a journal file, or of an unexamined one (NO_JOURNAL), else "directory"."""
    is_file = skip.reason in NO_JOURNAL or skip.path.endswith((".journal", ".journal~"))
    return "file" if is_file else "directory"


def describe_foreign(paths: Sequence[str]) -> str:
    """Return "A is not on btrfs; there is nothing to do", or of several `paths` "A and B and C are not on ..."."""
    return f"{' and '.join(paths)} {'is' if len(paths) == 1 else 'are'} not on btrfs; there is nothing to do"


def describe_absence(units: tuple[Unit, ...] | Unknown) -> str:
    """Return "not running", or "no answer on D-Bus" for an active or unknown service, and that `scan` shows files."""
    is_down = not isinstance(units, Unknown) and find_unit(units, SERVICE).active != "active"
    return f"{'not running' if is_down else 'no answer on D-Bus'}; `journalkeeper scan` shows the files"


def describe_next_run(units: tuple[Unit, ...] | Unknown) -> str:
    """Return "DEFRAG_TIMER starts the next" if it is active, else that none starts, and how to enable the service."""
    if not isinstance(units, Unknown) and find_unit(units, DEFRAG_TIMER).active == "active":
        return f"{DEFRAG_TIMER} starts the next"
    return "no further run starts by itself (to enable the service: systemctl enable --now journalkeeper.service)"


def describe_files(files: int, waits: str) -> str:
    """Return "4 journal files.", and if `waits` (as from `describe_waits`) is not "", it and a full stop."""
    return f"{pluralize(files, 'journal file')}.{f' {waits}.' if waits else ''}"
