# SPDX-License-Identifier: LGPL-2.1-or-later
"""From the lines of configuration files to a Config, or to every problem in them.

The one rule: an error names file, line and directive and says what is allowed; nothing
is guessed, and no file is opened here. What the directives are is in directives.py.
pydantic is imported only when a line assigns something: it costs 60 to 100 ms, and most
hosts set nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from journalkeeper.config.directives import Config, Directive, directives
from journalkeeper.config.spec import Form
from journalkeeper.model.errors import ConfigError

if TYPE_CHECKING:  # nothing but words for mypy, and a Protocol takes 2 ms to make
    from typing import Protocol

    class Assigned(Protocol):
        """One `key=value` line of a file, counted from 1, or a wrong line with its `problem`; what files.py reads."""

        @property
        def file(self) -> str: ...
        @property
        def line(self) -> int: ...
        @property
        def section(self) -> str: ...
        @property
        def key(self) -> str: ...
        @property
        def value(self) -> str: ...
        @property
        def problem(self) -> str: ...


__all__ = ["Config", "Shown", "describe", "directives", "from_assignments"]

Problem = tuple[str, int, str, str]

AT_LEAST = (
    (("Watch", "NocowSettleSec"), ("Watch", "SettleSec")),
    (("Window", "MarginSec"), ("Defrag", "ChunkSec")),
    (("Window", "IntakeDelayMaxSec"), ("Defrag", "ChunkSec")),
)
"""Directives of which the first must be no less than the second."""


class Shown(NamedTuple):
    """One directive's value as it would be written; `default` says whether it is the default."""

    section: str
    key: str
    value: str
    default: bool


def describe(config: Config) -> list[Shown]:
    """Every directive with its value, in the order of journalkeeper.conf."""
    shown = []
    for one in directives():
        value = one.spec.written(_value(config, one))
        shown.append(Shown(one.section, one.spec.name, value, value == one.default))
    return shown


def from_assignments(assignments: Iterable[Assigned]) -> Config:
    """The configuration that the lines of all files make, given in the order in which they apply.

    A later line wins, an empty one resets to the default, the paths of a list add up. A
    value that a later line overrides is not checked: a drop-in can mend a file below it.

    Raises: ConfigError with every problem: unknown section or directive, bad value, out of
        range, values that contradict each other.
    """
    lines: dict[Directive, list[Assigned]] = {}
    problems: list[Problem] = []
    order: dict[tuple[str, int], int] = {}
    for line in assignments:
        order.setdefault((line.file, line.line), len(order))
        directive = _by_name().get((line.section, line.key))
        if line.problem:
            problems.append((line.file, line.line, line.key or line.value, line.problem))
        elif directive is None:
            problems.append((line.file, line.line, line.key, _unknown(line)))
        elif not line.value.strip():
            lines.pop(directive, None)
        elif directive.spec.form is Form.PATHS:
            lines.setdefault(directive, []).append(line)
        else:
            lines[directive] = [line]
    config, wrong = _validated(lines) if lines else (Config(), [])
    problems += wrong + _contradictions(config, lines, wrong)
    if problems:
        raise ConfigError(tuple(sorted(problems, key=lambda problem: order[problem[:2]])))
    return config


@cache
def _by_name() -> dict[tuple[str, str], Directive]:
    return {(one.section, one.spec.name): one for one in directives()}


def _value(config: Config, directive: Directive) -> Any:
    return getattr(getattr(config, directive.section.lower()), directive.field)


def _unknown(line: Assigned) -> str:
    """Why a line names nothing that we know, and what was probably meant."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for who mistyped

    sections = list(dict.fromkeys(one.section for one in directives()))
    if line.section not in sections:
        near = get_close_matches(line.section.capitalize(), sections, n=1)
        meant = f"did you mean [{near[0]}]? " if near else ""
        what = f"unknown section [{line.section}]" if line.section else "stands before the first section"
        return f"{what}; {meant}allowed are {', '.join(f'[{section}]' for section in sections)}"
    elsewhere = [one.section for one in directives() if one.spec.name == line.key]
    if elsewhere:
        return f"does not belong in [{line.section}] but in [{elsewhere[0]}]"
    names = {one.spec.name.lower(): one.spec.name for one in directives() if one.section == line.section}
    near = get_close_matches(line.key.lower(), names, n=1)
    meant = f"did you mean {names[near[0]]}=? " if near else ""
    return f"unknown in [{line.section}]; {meant}allowed are {', '.join(f'{name}=' for name in names.values())}"


def _validated(lines: dict[Directive, list[Assigned]]) -> tuple[Config, list[Problem]]:
    """The configuration by pydantic; where a value is wrong its default and the problem."""
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - see the module's docstring

    adapter = TypeAdapter(Config)
    problems: list[Problem] = []
    good = dict(lines)
    while True:
        try:
            return adapter.validate_python(_as_words(good)), problems
        except ValidationError as error:
            for wrong in error.errors(include_url=False, include_context=False):
                directive = next(one for one in lines if (one.section.lower(), one.field) == wrong["loc"][:2])
                problems += _complaints(directive, good.pop(directive, []))


def _as_words(lines: dict[Directive, list[Assigned]]) -> dict[str, dict[str, object]]:
    """What pydantic is given: sections of fields, each with the text that counts, or the texts of a list."""
    words: dict[str, dict[str, object]] = {}
    for directive, given in lines.items():
        texts = [line.value.strip() for line in given]
        words.setdefault(directive.section.lower(), {})[directive.field] = (
            texts if directive.spec.form is Form.PATHS else texts[-1]
        )
    return words


def _complaints(directive: Directive, given: list[Assigned]) -> list[Problem]:
    """One problem for each wrong line of a directive that pydantic refused: of a list's lines some are right."""
    wrong = [line for line in given if directive.spec.form is not Form.PATHS or not _readable(directive, line)]
    what = f"is not allowed; allowed is {directive.spec.allowed}"
    return [(line.file, line.line, line.key, f"{line.value.strip()!r} {what}") for line in wrong]


def _readable(directive: Directive, line: Assigned) -> bool:
    try:
        directive.spec.read([line.value])
    except ValueError:
        return False
    return True


def _contradictions(config: Config, lines: dict[Directive, list[Assigned]], wrong: list[Problem]) -> list[Problem]:
    """Pairs of values of which one must be no less than the other, where both could be read."""
    problems: list[Problem] = []
    bad = {(file, line) for file, line, _, _ in wrong}
    for greater_name, smaller_name in AT_LEAST:
        greater, smaller = _by_name()[greater_name], _by_name()[smaller_name]
        given = lines.get(greater, []) + lines.get(smaller, [])
        if not given or any((line.file, line.line) in bad for line in given):
            continue
        if _value(config, greater) < _value(config, smaller):
            what = (
                f"{greater.spec.name}={greater.spec.written(_value(config, greater))} must be at least "
                f"{smaller.spec.name}={smaller.spec.written(_value(config, smaller))}"
            )
            problems.append((given[0].file, given[0].line, given[0].key, what))
    return problems
