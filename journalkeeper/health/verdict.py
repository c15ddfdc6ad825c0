# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service's verdict on itself: the evidence that a run leaves, the judgement, and its wording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from journalkeeper.config.directives import Watch
from journalkeeper.health.evidence import Evidence, Failure, Present
from journalkeeper.health.finding import Verdict, judge
from journalkeeper.health.service_rules import INSIDE, find_failures
from journalkeeper.model import JournalFile, Outcome, Plan, Reason, Skip
from journalkeeper.model.reasons import ENDS
from journalkeeper.model.units import counted, format_span
from journalkeeper.model.waiting import Wait

UNSEEN: Final = frozenset({Reason.IO_ERROR, Reason.INTERNAL_ERROR})
"""Reasons to skip a file that point to a fault of the disk or a bug in journalkeeper."""

WAITS: Final = {
    Reason.WINDOW_CLOSED: "for journald's next flush",
    Reason.STARTING: "until the service has run for a moment",
    Reason.BUDGET: "for the budget of the day",
    Reason.PRESSURE: "until the disk is less busy",
    Reason.FREE_SPACE: "for free disk space",
    Reason.IN_USE: "for programs to stop writing",
    Reason.INTERNAL_ERROR: "until it changes",
    Reason.READ_ONLY: "for the right to write: the file is immutable (lsattr), or its filesystem is read-only",
}
"""The words for the end of a wait, by reason; others have those of reasons.ENDS."""


def judge_present(present: Present, now_us: int) -> Verdict:
    """Return the verdict that the service publishes about itself, from the facts about its last run."""
    return judge(Evidence(now_us, present=present), INSIDE)


def present_after_run(plan: Plan, outcomes: Iterable[Outcome], waiting: Sequence[Wait] = ()) -> Present:
    """Return the facts about a finished run that the verdict of the service is judged by.

    They are the failed actions, files without enough free space, directories with too many files, and long waits.
    Instances whose flush window can never open are added if work waits for them.
    """
    skipped = [(skip, Failure(skip.path, skip.reason, skip.detail)) for skip in plan.skipped]
    unseen = [failure for skip, failure in skipped if skip.reason in UNSEEN]
    failures = {one.path: one for one in (*unseen, *find_failures(outcomes))}
    short = {window.instance for window in plan.windows if window.reason == "too-short"}
    put_off = any(skip.puts_off and skip.reason is Reason.WINDOW_CLOSED for skip in plan.skipped)
    return Present(
        limits=tuple(f"{skip.path}: {skip.detail}" for skip in plan.skipped if skip.reason is Reason.TOO_MANY),
        failures=tuple(failures.values()),
        lacking_space=tuple(failure for skip, failure in skipped if _lacks_space(skip)),
        waiting=tuple(waiting),
        closed=tuple(sorted(short)) if put_off else (),
    )


def _lacks_space(skip: Skip) -> bool:
    return skip.puts_off and skip.reason is Reason.FREE_SPACE


def still_failing(before: Iterable[Failure], decided: Mapping[str, object]) -> list[Failure]:
    """Return those failures of `before` that still hold after a new plan: `decided` still skips the path.

    A skip counts if it only postpones the action, or has the same reason as the failure.
    """
    skips = {path: one for path, one in decided.items() if isinstance(one, Skip)}
    return [one for one in before if (skip := skips.get(one.path)) and (skip.puts_off or skip.reason == one.reason)]


def describe_waits(skipped: Iterable[Skip], files: Mapping[str, JournalFile], watch: Watch) -> str:
    """Return what the files of a plan wait for: "3 wait until they are 1min old, 1 waits for journald's next flush".

    Directories that wait are left out.
    """
    causes = {skip.path: skip.reason for skip in skipped if skip.puts_off and skip.path in files}
    waits: Counter[tuple[Reason, int]] = Counter()
    for path, reason in causes.items():
        settle_us = watch.nocow_settle_us if files[path].nocow else watch.settle_us
        waits[reason, settle_us if reason is Reason.SETTLING else 0] += 1
    parts = []
    for (reason, settle_us), number in sorted(waits.items(), key=lambda pair: (-pair[1], pair[0])):
        until = WAITS.get(reason, f"({reason}: {ENDS.get(reason, 'nothing ends it')})")
        if settle_us:
            until = f"until {'it is' if number == 1 else 'they are'} {format_span(settle_us)} old"
        parts.append(f"{number} {'waits' if number == 1 else 'wait'} {until}")
    return ", ".join(parts)


def describe_foreign(paths: Sequence[str]) -> str:
    """Return the sentence for a host without journals on btrfs: "/var/log/journal is not on btrfs; ..."."""
    return f"{' and '.join(paths)} {'is' if len(paths) == 1 else 'are'} not on btrfs; there is nothing to do"


def describe_files(files: int, waits: str) -> str:
    """Return a sentence on the files, such as "4 journal files. 3 wait until they are 1min old."

    `waits` is the text of `describe_waits`, or "" if no file waits.
    """
    return f"{counted(files, 'journal file')}.{f' {waits[0].upper()}{waits[1:]}.' if waits else ''}"
