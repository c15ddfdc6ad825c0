# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a table of rules: functions that each answer the same question, in order of precedence.

A rule returns an answer, or None if it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


def answers(rules: Iterable[Callable[[Q], A | None]], question: Q) -> Iterator[A]:
    """Yield the answers of all rules that apply, in table order."""
    return (answer for rule in rules if (answer := rule(question)) is not None)


def first(rules: Iterable[Callable[[Q], A | None]], question: Q) -> A | None:
    """Return the answer of the first rule that applies, or None if no rule applies."""
    for rule in rules:
        answer = rule(question)
        if answer is not None:
            return answer
    return None
