# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service's verdict on itself: the evidence that a run leaves, the judgement, and its wording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from posixpath import dirname
from typing import Final

from journalkeeper.health.evidence import DEFRAG_TIMER, SERVICE, Evidence, Hung, Present, Unit, Unknown, find_unit
from journalkeeper.health.finding import Verdict, judge
from journalkeeper.health.rules import HEALTH
from journalkeeper.model import Outcome, Plan, Reason, Result, Skip
from journalkeeper.model.manager import Manager
from journalkeeper.model.reasons import NO_JOURNAL
from journalkeeper.model.units import pluralize
from journalkeeper.model.waiting import Wait
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
    Reason.FREE_SPACE: "for free disk space",
    Reason.QUOTA: "for room in a quota group (`btrfs qgroup show`)",
    Reason.IN_USE: "for programs to stop writing",
    Reason.NOT_BEGUN: "for the next run, because the last one ended early",
    Reason.INTERNAL_ERROR: "because of a bug in journalkeeper (see the log)",
    Reason.READ_ONLY: "until the file is writable: it is immutable (chattr -i), or its filesystem is read-only",
    Reason.FOREIGN_OWNER: "for the rights in remote.conf (journalkeeper.service(8)), because another user owns it",
}
"""What a file waits for, by reason; of other waits the reason itself is shown."""


def judge_present(present: Present, now_us: int) -> Verdict:
    """Return the verdict that the service publishes about itself: the answers of the HEALTH rules on `present`.

    The rules suppose that the service runs, answers and has the installed version.
    """
    evidence = Evidence(now_us, present=present, service=Manager(), silent=present.silent, full=present.full)
    return judge(evidence, HEALTH)


def present(evidence: Evidence) -> Present | Unknown:
    """Return the facts about the last run, from which rules judge the work.

    - The service answers: it has already judged its facts. Return a Present with `looked` alone, which is False
      if the service's health is unknown. The other fields have their defaults.
    - The service hangs or is starting: return Unknown with the reason.
    - No service runs, or the bus cannot be asked: return the waiting files and the failed actions from the
      history. The actions are those since the last run began, or of all entries if there is no run, as in
      `find_failures`. Return Unknown if the history cannot be read.
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


def present_after_run(plan: Plan, outcomes: Iterable[Outcome], waiting: Sequence[Wait] = ()) -> Present:
    """Return the facts about a finished run from which the rules of health make the service's verdict.

    `failures` are the plan's skips with a reason in FAULTS, such as too little free space or too many files, and the
    failed actions as in `find_failures`. Each path has one entry: a failed action replaces a skip. `waiting` is stored
    as it is and has no other effect. `closed` are the instances whose flush window can never open, and in which an
    action waits for it.
    """
    failed = [*(skip for skip in plan.skipped if skip.reason in FAULTS), *find_failures(outcomes)]
    failures = {one.path: one for one in failed}
    waits = [skip.path for skip in plan.skipped if skip.puts_off and skip.reason is Reason.WINDOW_CLOSED]
    parts = set(chain.from_iterable(path.split("/") for path in waits))
    short = {window.instance for window in plan.windows if window.reason == "too-short"}
    return Present(failures=tuple(failures.values()), waiting=tuple(waiting), closed=tuple(sorted(short & parts)))


def find_failures(outcomes: Iterable[Outcome]) -> list[Skip]:
    """Return a Skip for each failed action among `outcomes`, except for failures with a reason in PASSING.

    PASSING are the reasons that end without an administrator, such as a closed window or a busy disk.
    """
    failed = (one for one in outcomes if one.result is Result.FAILED and one.reason not in PASSING)
    return [Skip(one.path, one.reason, one.detail) for one in failed]


def still_failing(before: Iterable[Skip], decided: Mapping[str, object]) -> list[Skip]:
    """Return the failures of `before` that remain after a new plan, in the same order.

    `decided` has the plan's decision for each path. A failure remains if the decision is a Skip with the same reason.
    It also remains if the Skip only delays an action (`puts_off`), unless the failure was a lack of free space. A
    failure ends if its path has an action or no decision.
    """
    return [
        one
        for one in before
        if isinstance(skip := decided.get(one.path), Skip)
        and (skip.reason == one.reason or (skip.puts_off and one.reason is not Reason.FREE_SPACE))
    ]


def describe_waits(skipped: Iterable[Skip]) -> str:
    """Return what files wait for: "3 files wait for free disk space, 1 file waits for journald's next flush".

    Only the skips that postpone work count, the most frequent wait first. Directories are counted apart from
    files, as `find_noun` decides. A reason without words in WAITS is shown in parentheses. The text is empty if
    nothing waits. The rows that `drop_echoes` removes do not count.
    """
    skipped = drop_echoes(skipped)
    waits = ((WAITS.get(skip.reason, f"({skip.reason})"), find_noun(skip)) for skip in skipped if skip.puts_off)
    return ", ".join(
        f"{pluralize(number, noun)} {'waits' if number == 1 else 'wait'} {end}"
        for (end, noun), number in sorted(Counter(waits).items(), key=lambda pair: (-pair[1], pair[0]))
    )


def drop_echoes(skipped: Iterable[Skip]) -> list[Skip]:
    """Return `skipped` without each directory that waits for a flush if one of its files waits for the same flush."""
    skipped = list(skipped)
    known = {dirname(skip.path) for skip in skipped if skip.reason is Reason.WINDOW_CLOSED}
    return [skip for skip in skipped if skip.reason is not Reason.WINDOW_CLOSED or skip.path not in known]


def find_noun(skip: Skip) -> str:
    """Return "file" if the path of the skip ends as a journal file's name does, else "directory".

    A skip of +C, of a rotation, or of a directory with too many files has the path of a directory. For a reason
    in NO_JOURNAL, return "file" for every path: the path could not be examined.
    """
    is_file = skip.reason in NO_JOURNAL or skip.path.endswith((".journal", ".journal~"))
    return "file" if is_file else "directory"


def describe_foreign(paths: Sequence[str]) -> str:
    """Return "PATH is not on btrfs; there is nothing to do", a sentence without its full stop.

    Several `paths`, of which there is at least one, are joined with "and".
    """
    return f"{' and '.join(paths)} {'is' if len(paths) == 1 else 'are'} not on btrfs; there is nothing to do"


def describe_absence(units: tuple[Unit, ...] | Unknown) -> str:
    """Return why no service answers on the bus, as a part of a sentence."""
    is_down = not isinstance(units, Unknown) and find_unit(units, SERVICE).active != "active"
    return f"{'not running' if is_down else 'no answer on D-Bus'}; `journalkeeper scan` shows the files"


def describe_next_run(units: tuple[Unit, ...] | Unknown) -> str:
    """Return what starts the next run on a host without the service, as a part of a sentence."""
    if not isinstance(units, Unknown) and find_unit(units, DEFRAG_TIMER).active == "active":
        return f"{DEFRAG_TIMER} starts the next"
    return "no further run starts by itself (to enable the service: systemctl enable --now journalkeeper.service)"


def describe_files(files: int, waits: str) -> str:
    """Return a sentence on the files, such as "4 journal files. 1 file waits for journald's next flush."

    `waits` is the text of `describe_waits`, or "" if no file waits.
    """
    return f"{pluralize(files, 'journal file')}.{f' {waits}.' if waits else ''}"
