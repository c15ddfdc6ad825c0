# SPDX-License-Identifier: LGPL-2.1-or-later
"""The answers of the health rules, and the verdict that they make together.

A rule is a function that yields its answers, the most important first; only the first one counts. A rule that yields
nothing found nothing wrong. Its name, with hyphens, is its fixed word. Its docstring is its description in the man
page.

Its parameters name the parts of the evidence that it cannot do without: if one of them is Unknown, so is the answer. If
it takes `files` or `places` and yields nothing, the answer is Unknown if a file could not be looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from journalkeeper.health.evidence import Evidence, Unknown
from journalkeeper.model import JournalFile, Reason
from journalkeeper.model.manager import Fact, Finding, Manager, Severity
from journalkeeper.model.units import pluralize

LISTED = 3
"""The number of names that a sentence lists."""

NAME_CHARACTERS = 60
"""The greatest length of a name in a sentence: a name of 10 kB would hide the rest."""

UNSEEN = frozenset({Reason.UNREADABLE, Reason.IO_ERROR, Reason.REFUSED, Reason.INTERNAL_ERROR, Reason.TOO_MANY})
"""Reasons for which a file was not looked at although it exists."""

FIRST_LOOK: Final = Unknown("the service has just started and has not yet examined all files")
"""The answer of a rule that needs the result of the service's first look at the files."""

T = TypeVar("T")
Answer = Finding | Unknown
Answers = Iterator[Answer]
Rule = Callable[..., Answers]


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
        """The verdict in one word: act if there is a problem, else unknown if a rule could not judge, else ok."""
        if self.problems:
            return "act"
        return "unknown" if self.unknown else "ok"

    @property
    def healthy(self) -> bool | None:
        """Whether the health is "ok"; None if it is unknown."""
        return {"ok": True, "act": False}.get(self.health)

    @property
    def reasons(self) -> list[str]:
        """The problems as "WORD: SENTENCE Try: COMMAND", or else the first rule without evidence."""
        problems = [f"{finding.word}: {finding.line}" for finding in self.problems]
        return problems or [f"{rule}: {part.why}." for rule, part in self.unknown[:1]]

    def headline(self, ok: str) -> str:
        """Return "Act: " and the first problem's `line`, "Unknown: " and the first missing evidence, or "OK: {ok}"."""
        if self.problems:
            return f"Act: {self.problems[0].line}"
        return f"Unknown: {self.unknown[0][1].why}." if self.unknown else f"OK: {ok}"


def problem(sentence: str, *remedy: str, **facts: Fact) -> Finding:
    """Return a finding of severity "problem". `answer` fills in the word of the rule."""
    return Finding("", Severity.PROBLEM, facts, sentence, remedy)


def advice(sentence: str, *remedy: str, **facts: Fact) -> Finding:
    """Return a finding of severity "advice". `answer` fills in the word of the rule."""
    return Finding("", Severity.ADVICE, facts, sentence, remedy)


def name_rule(rule: Rule) -> str:
    """Return the fixed word of a rule: the name of its function, with hyphens in place of underscores."""
    return rule.__name__.replace("_", "-")


def answer(rule: Rule, evidence: Evidence) -> Answer | None:
    """Apply `rule` to the evidence. Return its first answer, or None if nothing is wrong.

    Return Unknown if the rule lacks evidence, or takes `files` or `places`, finds nothing, and some files could not be
    looked at. A finding that the running service reports is the answer without a call of the rule.
    """
    service, name = evidence.service, name_rule(rule)
    for finding in (isinstance(service, Manager) and service.findings) or ():
        if finding.word == name:
            return finding
    answers = supply(rule, evidence)
    found = answers if isinstance(answers, Unknown) else next(answers, None)
    if isinstance(found, Finding):
        return found._replace(word=name)
    if found is None and {"files", "places"} & rule.__annotations__.keys():
        return supply(_find_unseen, evidence)
    return found


def supply(function: Callable[..., T], evidence: Evidence) -> T | Unknown:
    """Call `function` with the parts that its parameters name (`evidence`: all), or return the first Unknown part."""
    names = [name for name in function.__annotations__ if name != "return"]
    parts = {name: evidence if name == "evidence" else getattr(evidence, name) for name in names}
    unknown = [part for part in parts.values() if isinstance(part, Unknown)]
    return unknown[0] if unknown else function(**parts)


def _find_unseen(files: tuple[JournalFile, ...]) -> Unknown | None:
    """Return Unknown with the number of `files` not seen (UNSEEN), without unreadable remote ones; None for 0."""
    found = [file for file in files if file.problem in UNSEEN]
    # The service has no right to those of another user, unless the admin gives it (units/remote.conf).
    unseen = sum(file.problem is not Reason.UNREADABLE or file.instance != "remote" for file in found)
    return Unknown(f"{pluralize(unseen, 'file')} of {len(files):,} could not be examined") if unseen else None


def judge(evidence: Evidence, rules: Iterable[Rule]) -> Verdict:
    """Apply `answer` to each of `rules`. Return the findings, problems first, and the passed and the unknown rules."""
    answers = {name_rule(rule): answer(rule, evidence) for rule in rules}
    findings = [one for one in answers.values() if isinstance(one, Finding)]
    return Verdict(
        findings=tuple(sorted(findings, key=lambda finding: finding.severity is not Severity.PROBLEM)),
        passed=tuple(name for name, one in answers.items() if one is None),
        unknown=tuple((name, one) for name, one in answers.items() if isinstance(one, Unknown)),
    )


def list_names(names: Iterable[str]) -> str:
    """Return the first LISTED names, shortened, with the number of the others: "a, b" or "a, b, c and 4 more"."""
    known = [shorten(name) for name in names]
    rest = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return ", ".join(known[:LISTED]) + rest


def shorten(text: str, longest: int = NAME_CHARACTERS) -> str:
    """Return `text` in at most `longest` characters (5 or more): of a longer text both ends, and "..." between."""
    if len(text) <= longest:
        return text
    head = longest // 2
    return f"{text[: longest - 3 - head]}...{text[-head:]}"  # the ends distinguish files; D-Bus escapes all but ASCII
