# SPDX-License-Identifier: LGPL-2.1-or-later
"""The role's values for journalkeeper.conf: what is wrong with them, and their lines.

It judges before a host is touched, in check mode and where journalkeeper is
not installed yet, as `journalkeeper check-config` would there. The directives come as data
from the role's vars/main/directives.yml; tests/adapters/test_ansible_values.py compares the two judges.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from fractions import Fraction
from typing import Any

Directive = dict[str, Any]
Values = dict[str, object]

YES = ("1", "yes", "y", "true", "t", "on")
NO = ("0", "no", "n", "false", "f", "off")
COMPRESSION = re.compile(r"no|lzo|zlib(:0*[1-9])?|zstd(:0*([1-9]|1[0-5]))?", re.ASCII)
SIZES = {"E": 1 << 60, "P": 1 << 50, "T": 1 << 40, "G": 1 << 30, "M": 1 << 20, "K": 1 << 10, "B": 1, "": 1}
SECOND = 1_000_000
SPANS = {
    **dict.fromkeys(("y", "year", "years"), 31_557_600 * SECOND),
    **dict.fromkeys(("M", "month", "months"), 2_629_800 * SECOND),
    **dict.fromkeys(("w", "week", "weeks"), 604_800 * SECOND),
    **dict.fromkeys(("d", "day", "days"), 86_400 * SECOND),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3_600 * SECOND),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * SECOND),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), SECOND),
    **dict.fromkeys(("ms", "msec"), 1_000),
    **dict.fromkeys(("us", "usec", "μs", "µs"), 1),
}
SIZE_TERM = re.compile(r"\s*\+?(\d+(?:\.\d*)?)\s*([EPTGMKB]?)", re.ASCII)
SPAN_TERM = re.compile(r"\s*\+?(\d+(?:\.\d+)?|\.\d+)(?:\s*([A-Za-zμµ]+)|()(?=\s|$))\s*", re.ASCII)
INFINITY = float("inf")


def written(value: object) -> str:
    """A variable's value as journalkeeper.conf has it; "" for one that is not set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return shlex.join(str(one) for one in value)
    return str(value).strip()


def _terms(text: str, term: re.Pattern[str], units: dict[str, int]) -> list[tuple[Fraction, str]]:
    """The numbers and their units that add up to a size or span. Raises: ValueError."""
    found: list[tuple[Fraction, str]] = []
    position = 0
    while position < len(text) or not found:
        match = term.match(text, position)
        unit = match and (match[2] or "")
        if match is None or unit not in units:
            raise ValueError(text)
        found.append((Fraction(match[1].rstrip(".")), unit))
        position = match.end()
    return found


def _size(text: str) -> int:
    terms = _terms(text, SIZE_TERM, SIZES)
    order = [list(SIZES).index(unit) for _, unit in terms]
    if order != sorted(set(order)):
        raise ValueError(text)
    return sum(int(number * SIZES[unit]) for number, unit in terms)


def _span(text: str) -> float:
    if text == "infinity":
        return INFINITY
    return sum(int(number * SPANS[unit]) for number, unit in _terms(text, SPAN_TERM, SPANS))


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _path(text: str) -> bool:
    return text.startswith("/") and ".." not in text.split("/")


NUMBERS: dict[str, Callable[[str], float]] = {
    "size": _size,
    "span": _span,
    "count": _count,
    "percent": lambda text: _count(text.removesuffix("%")),
}
TESTS: dict[str, Callable[[str], bool]] = {
    "bool": lambda text: text.lower() in YES + NO,
    "compression": lambda text: COMPRESSION.fullmatch(text) is not None,
    "path": _path,
    "paths": lambda text: all(map(_path, shlex.split(text))),
}


def _number(directive: Directive, text: str) -> float:
    """The number that a text stands for in the directive's unit. Raises: ValueError."""
    if text == "infinity" and directive.get("endless"):
        return INFINITY
    return NUMBERS[directive["form"]](text)


def _allowed(directive: Directive, text: str) -> bool:
    """Whether one value is allowed, by itself."""
    form = directive["form"]
    if re.search(r"[\x00-\x1f\x7f]|\\$", text):
        return False  # it would not stay one line
    try:
        if form in TESTS:
            return TESTS[form](text)
        if form == "word":
            words = directive["words"]
            return text in words or ({"yes", "no"} <= set(words) and text.lower() in YES + NO)
        number = _number(directive, text)
    except ValueError:
        return False
    endless = number == INFINITY and "endless" in directive
    return endless or bool(directive["low"] <= number <= directive["high"])


def problems(values: Values, directives: list[Directive]) -> list[str]:
    """A sentence for each value that is not allowed, or less than another that it may not be less than."""
    by_name = {one["variable"]: one for one in directives}
    texts = {name: written(values.get(name)) for name in by_name}
    wrong = {name for name, text in texts.items() if text and not _allowed(by_name[name], text)}
    found = [f"{name}: {texts[name]!r} is not allowed; allowed: {by_name[name]['allowed']}" for name in sorted(wrong)]
    for name, one in by_name.items():
        below = one.get("not_below", "")
        if not below or not (texts[name] or texts[below]) or wrong & {name, below}:
            continue
        greater, smaller = (texts[which] or by_name[which]["default"] for which in (name, below))
        if _number(one, greater) < _number(by_name[below], smaller):
            found.append(f"{name}={greater} must be at least {below}={smaller}")
    return found


def lines(values: Values, directives: list[Directive]) -> str:
    """The sections and lines of a drop-in that says these values."""
    sections: dict[str, list[str]] = {}
    for one in directives:
        if text := written(values.get(one["variable"])):
            sections.setdefault(one["section"], []).append(f"{one['name']}={text}\n")
    return "".join(f"\n[{section}]\n{''.join(rows)}" for section, rows in sections.items())


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, object]:
        """The names that playbooks use."""
        return {"conf_problems": problems, "conf_lines": lines}
