# SPDX-License-Identifier: LGPL-2.1-or-later
"""The answers of the health rules: a finding, None if all is well, or Unknown if the rule lacks its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Annotated, NamedTuple, TypeVar

from journalkeeper.health.evidence import Evidence, Unknown
from journalkeeper.model.manager import Manager
from journalkeeper.model.record import Key, RuleWord

LISTED = 3
"""The number of names that a sentence lists."""

NAME_CHARACTERS = 60
"""The greatest length of a name in a sentence: a name of 10 kB would hide the rest."""

Fact = int | float | str | list[str] | None
Facts = dict[str, Fact]


class Severity(StrEnum):
    """The severity of a finding: PROBLEM if something is wrong, ADVICE if something could be better or may go wrong."""

    PROBLEM = "problem"
    ADVICE = "advice"


class Finding(NamedTuple):
    """A condition that a rule found: `word` names the rule, and `facts` are its evidence, with units in their names.

    `sentence` describes the condition and its effect; `remedy` are shell commands, one per line.
    """

    word: Annotated[RuleWord, Key("rule")]
    severity: Severity
    facts: Facts
    """What it was found by; units are in the names."""
    sentence: str
    """What is so and why it matters."""
    remedy: tuple[str, ...]
    """Commands for a shell."""

    @property
    def line(self) -> str:
        """The sentence with the first command of the remedy, as one line."""
        return f"{self.sentence} Try: {self.remedy[0]}" if self.remedy else self.sentence


T = TypeVar("T")
Rule = Callable[[Evidence], Finding | Unknown | None]


class Verdict(NamedTuple):
    """The answers of all rules.

    `findings` has the problems first. `passed` are the words of the rules that found nothing, `unknown` the words of
    the rules that lacked evidence, each with the reason.
    """

    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    unknown: tuple[tuple[str, Unknown], ...] = ()

    @property
    def problems(self) -> list[Finding]:
        """The findings of severity "problem", which need action."""
        return [finding for finding in self.findings if finding.severity is Severity.PROBLEM]

    @property
    def health(self) -> str:
        """The verdict in one word: act if there is a problem, else unknown if a rule could not look, else ok."""
        if self.problems:
            return "act"
        return "unknown" if self.unknown else "ok"

    @property
    def reasons(self) -> list[str]:
        """The reasons why the verdict is not OK, each as "WORD: sentence" with the word of a rule.

        They are all problems, or without problems the first rule that could not be applied.
        """
        problems = [f"{finding.word}: {finding.line}" for finding in self.problems]
        return problems or list(dict.fromkeys(f"{rule}: {part.why}." for rule, part in self.unknown))[:1]

    def headline(self, ok: str) -> str:
        """The verdict in a line for people: "Act: ...", "Unknown: ...", or "OK: " and the sentence `ok`."""
        if self.problems:
            return f"Act: {self.problems[0].line}"
        return f"Unknown: {self.unknown[0][1].why}." if self.unknown else f"OK: {ok}"


class UnknownPartError(Exception):
    """A rule needs a part of the evidence that is Unknown."""

    def __init__(self, part: Unknown) -> None:
        super().__init__(part.why)
        self.part = part


def require(part: T | Unknown) -> T:
    """Return `part`, which a rule cannot do without. Raises: UnknownPartError if it is Unknown."""
    if isinstance(part, Unknown):
        raise UnknownPartError(part)
    return part


def answer(rule: Rule, evidence: Evidence) -> Finding | Unknown | None:
    """Return the answer of `rule` about the evidence, or the Unknown part of the evidence that the rule needs.

    If the running service reports the same problem about itself, return its line as the finding. The line is not
    divided into sentence and remedy, because the sentence may contain any text.
    """
    service = evidence.service
    reasons = (service.health_reasons or ()) if isinstance(service, Manager) and service.health == "act" else ()
    for reason in reasons:
        name, _, line = reason.partition(": ")
        if name == word(rule):
            return Finding(name, Severity.PROBLEM, {"service": "yes"}, line, ())
    try:
        return rule(evidence)
    except UnknownPartError as error:
        return error.part


def word(rule: Rule) -> str:
    """Return the fixed word of a rule: its function's name, with hyphens."""
    return rule.__name__.replace("_", "-")


def judge(evidence: Evidence, rules: Iterable[Rule]) -> Verdict:
    """Apply each of `rules` to the evidence, and return a verdict with the findings, the problems first.

    A rule without a finding is in `passed`, and a rule that cannot judge is in `unknown`.
    """
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


def list_names(names: Iterable[str]) -> str:
    """Return the first LISTED names, shortened, with the number of the others: "a, b, c and 4 more", or "a, b"."""
    known = [shorten(name) for name in names]
    rest = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return ", ".join(known[:LISTED]) + rest


def shorten(name: str) -> str:
    """Return a name that fits a sentence. A long one is cut in its middle, because the ends distinguish files."""
    if len(name) <= NAME_CHARACTERS:
        return name
    half = (NAME_CHARACTERS - 1) // 2
    return f"{name[:half]}…{name[-half:]}"
