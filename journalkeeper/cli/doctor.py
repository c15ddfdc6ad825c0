# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper doctor`: find what is wrong or risky on this host, each with its remedy. It changes nothing.

Shows what is wrong or risky with the journal of this host, with the evidence and the commands that mend
it. It looks at the files, the history, the journal and the units. A check that cannot be made is listed,
and counts as neither passed nor failed. Nothing is changed.

examples:
  sudo journalkeeper doctor
  sudo journalkeeper doctor --check             for monitoring
  sudo journalkeeper doctor -j | jq '.findings | length'
  journalkeeper doctor -D /mnt/var/log/journal  on another host's disk

exit status:
  0 it ran, whatever it found; 1 journalctl failed, or --check was given and
  the verdict of `status` is not OK, or with -D there is a problem;
  2 wrong usage
"""

from __future__ import annotations

import argparse
from typing import Final, NamedTuple

from journalkeeper.cli.context import Context
from journalkeeper.cli.evidence import gather
from journalkeeper.cli.output import Block
from journalkeeper.cli.table import RED, YELLOW, paint
from journalkeeper.health.evidence import DOCTOR_ENTRIES, RECENT_US, Journal, Unknown, Wanted
from journalkeeper.health.finding import Verdict, judge
from journalkeeper.health.verdict import HEALTH, RULES
from journalkeeper.model.manager import Finding, Severity
from journalkeeper.model.schema import RuleWord
from journalkeeper.model.units import escape, pluralize
from journalkeeper.report.retention import history

DOCTOR_RULES: Final = (*RULES, history)
"""The rules of health, and the proposal of `retention`."""

_COLOURS: Final = {Severity.PROBLEM: RED, Severity.ADVICE: YELLOW}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the flag --check, which changes only the exit status."""
    parser.add_argument("--check", action="store_true", help="exit status 1 if the verdict of status is not OK")


def run(args: argparse.Namespace, context: Context) -> int:
    """Collect the evidence, apply all rules, show the findings, and return the exit status.

    With --check it is 1 if a finding is a problem, not advice, or, if `means_service`, `status` is not OK; else 0.
    Raises: as `gather`.
    """
    evidence = gather(context, Wanted(args.directory, DOCTOR_ENTRIES, context.now_us - RECENT_US))
    verdict = judge(evidence, DOCTOR_RULES)
    found = [_describe_finding(finding, colours=context.output.colours) for finding in verdict.findings]
    context.output.show(make_answer(verdict, evidence.journal), *found, legend=[_sum_up_checks(verdict)])
    health = judge(evidence, HEALTH).health if context.means_service() else "ok"
    return int(args.check and (health != "ok" or bool(verdict.problems)))


class UnjudgedRule(NamedTuple):
    """A check that could not be made."""

    rule: RuleWord
    why: str


class DoctorAnswer(NamedTuple):
    """The answer of `doctor`."""

    findings: tuple[Finding, ...]
    """What is wrong or risky, problems first."""
    passed: tuple[RuleWord, ...]
    """Checks that found nothing."""
    unknown: tuple[UnjudgedRule, ...]
    """Checks that could not be made."""
    journal: Journal | None
    """How much of the journal was read; null where it could not be."""


def make_answer(verdict: Verdict, journal: Journal | Unknown) -> DoctorAnswer:
    """Return the answer of `doctor -j`. Its `journal` is None if the journal could not be read."""
    unknown = tuple(UnjudgedRule(rule, part.why) for rule, part in verdict.unknown)
    return DoctorAnswer(verdict.findings, verdict.passed, unknown, None if isinstance(journal, Unknown) else journal)


def _describe_finding(finding: Finding, *, colours: bool) -> Block:
    """Return a coloured heading with the severity and the finding's word, its sentence, and the remedy's commands."""
    head = paint(f"{finding.severity.upper()}: {finding.word}", _COLOURS[finding.severity], enabled=colours)
    # commands are whole lines, to be copied: a backslash stays one
    remedy = [f"    {one if one.isprintable() else escape(one)}" for one in finding.remedy]
    return [head, ("  ", escape(finding.sentence)), *remedy]


def _sum_up_checks(verdict: Verdict) -> Block:
    """Return a line with the counts by result, and one for each check that could not be made, unless it needs root."""
    advice, root = len(verdict.findings) - len(verdict.problems), sum(part.needs_root for _, part in verdict.unknown)
    unknown = [("  ", f"{rule}: {escape(part.why)}") for rule, part in verdict.unknown if not part.needs_root]
    parts = [f"{pluralize(len(verdict.passed), 'check')} passed"]
    if verdict.problems:
        parts.append(pluralize(len(verdict.problems), "problem"))
    if advice:
        parts.append(pluralize(advice, "suggestion"))
    if root:
        parts.append(f"{pluralize(root, 'check')} {'needs' if root == 1 else 'need'} root (sudo journalkeeper doctor)")
    if unknown:
        parts.append(f"{pluralize(len(unknown), 'check')} could not be made:")
    return [", ".join(parts), *unknown]
