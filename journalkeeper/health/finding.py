# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a rule says: a finding, nothing, or that it could not look."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from journalkeeper.health.evidence import Evidence, Unknown
from journalkeeper.model.manager import Manager

LISTED = 3
"""How many names a sentence has room for."""

NAME_CHARACTERS = 60
"""How long a name in a sentence may be: one of 10 kB would hide the rest."""

TRY: Final = " Try: "
"""Comes before the command in a line."""

Fact = int | float | str | list[str] | None
Facts = dict[str, Fact]


class Severity(StrEnum):
    """How much it matters: something is wrong, or something could be better or may go wrong."""

    PROBLEM = "problem"
    ADVICE = "advice"


class Finding(NamedTuple):
    """What a rule found: `word` is the rule's, `facts` what it was found by, units in their names.

    `sentence` says in one sentence what is so and why it matters; `remedy` are commands for a shell, a line each.
    """

    word: str
    severity: Severity
    facts: Facts
    sentence: str
    remedy: tuple[str, ...]

    @property
    def line(self) -> str:
        """The sentence with its first command, for a line that has to say it all."""
        return f"{self.sentence}{TRY}{self.remedy[0]}" if self.remedy else self.sentence


T = TypeVar("T")
Rule = Callable[[Evidence], Finding | Unknown | None]


class Verdict(NamedTuple):
    """What all rules say: findings, problems first, the words of the rules that found nothing, and of those that could
    not look, with why."""

    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    unknown: tuple[tuple[str, Unknown], ...] = ()

    @property
    def problems(self) -> list[Finding]:
        """The findings that somebody has to act on."""
        return [finding for finding in self.findings if finding.severity is Severity.PROBLEM]

    @property
    def health(self) -> str:
        """The verdict in one word: act if there is a problem, else unknown if a rule could not look, else ok."""
        if self.problems:
            return "act"
        return "unknown" if self.unknown else "ok"

    @property
    def reasons(self) -> list[str]:
        """Why the verdict is not ok: each the word of a rule, a colon, and a line."""
        problems = [f"{finding.word}: {finding.line}" for finding in self.problems]
        return problems or list(dict.fromkeys(f"{rule}: {part.why}." for rule, part in self.unknown))[:1]

    def headline(self, ok: str) -> str:
        """The verdict in a line for people: "Act: ...", "Unknown: ...", or "OK: " and the sentence `ok`."""
        if self.problems:
            return f"Act: {self.problems[0].line}"
        return f"Unknown: {self.unknown[0][1].why}." if self.unknown else f"OK: {ok}"


class UnknownPartError(Exception):
    """A rule needs a part of the evidence that could not be looked at."""

    def __init__(self, part: Unknown) -> None:
        super().__init__(part.why)
        self.part = part


def known(part: T | Unknown) -> T:
    """A part without which a rule has nothing to say. Raises: UnknownPartError."""
    if isinstance(part, Unknown):
        raise UnknownPartError(part)
    return part


def answer(rule: Rule, evidence: Evidence) -> Finding | Unknown | None:
    """What a rule says, or said in the running service; where it needs a part that is unknown, that part."""
    service = evidence.service
    reasons = (service.health_reasons or ()) if isinstance(service, Manager) and service.health == "act" else ()
    for reason in reasons:
        name, _, line = reason.partition(": ")
        if name == word(rule):
            sentence, _, remedy = line.rpartition(TRY)
            return Finding(name, Severity.PROBLEM, {"service": "yes"}, sentence, (remedy,))
    try:
        return rule(evidence)
    except UnknownPartError as error:
        return error.part


def word(rule: Rule) -> str:
    """The fixed word of a rule: its function's name."""
    return rule.__name__.replace("_", "-")


def judged(evidence: Evidence, rules: Iterable[Rule]) -> Verdict:
    """What `rules` say of the evidence."""
    findings: list[Finding] = []
    passed: list[str] = []
    unknown: list[tuple[str, Unknown]] = []
    for rule in rules:
        said = answer(rule, evidence)
        if isinstance(said, Finding):
            findings.append(said)
        elif said is None:
            passed.append(word(rule))
        else:
            unknown.append((word(rule), said))
    findings.sort(key=lambda finding: finding.severity is not Severity.PROBLEM)
    return Verdict(tuple(findings), tuple(passed), tuple(unknown))


def named(names: Iterable[str]) -> str:
    """The first names in words: "a, b, c and 4 more"."""
    known = [short(name) for name in names]
    rest = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return ", ".join(known[:LISTED]) + rest


def short(name: str) -> str:
    """A name that fits a sentence, cut in its middle: its end tells files apart."""
    if len(name) <= NAME_CHARACTERS:
        return name
    half = (NAME_CHARACTERS - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
