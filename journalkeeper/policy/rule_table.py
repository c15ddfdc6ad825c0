# SPDX-License-Identifier: LGPL-2.1-or-later
"""Running a table of rules: functions of one question, in the order in which they count.

A rule answers, or has nothing to say: None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Q = TypeVar("Q")
A = TypeVar("A")


def answers(rules: Iterable[Callable[[Q], A | None]], question: Q) -> Iterator[A]:
    """What the rules answer, in their order."""
    return (answer for rule in rules if (answer := rule(question)) is not None)


def first(rules: Iterable[Callable[[Q], A | None]], question: Q) -> A | None:
    """The first rule's answer, which counts; None if none has one."""
    for rule in rules:
        answer = rule(question)
        if answer is not None:
            return answer
    return None
