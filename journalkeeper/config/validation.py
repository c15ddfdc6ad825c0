# SPDX-License-Identifier: LGPL-2.1-or-later
"""Convert the lines of configuration files to a Config, or to a list of all problems.

An error names file, line and directive and states the permitted values. No file is opened here.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from pydantic import ValidationError

from journalkeeper.config.directives import Config, Directive, list_directives
from journalkeeper.config.files import Assignment
from journalkeeper.config.spec import Form
from journalkeeper.model.errors import ConfigError

__all__ = ["Config", "Shown", "describe", "list_directives", "make_config"]

Problem = tuple[str, int, str, str]

AT_LEAST = (
    (("Watch", "NocowSettleSec"), ("Watch", "SettleSec")),
    (("Window", "MarginSec"), ("Defrag", "ChunkSec")),
    (("Window", "IntakeDelayMaxSec"), ("Defrag", "ChunkSec")),
)
"""Pairs of directives of which the first must not be less than the second."""


class Shown(NamedTuple):
    """A directive's value as text; `default` is true for the default value."""

    section: str
    key: str
    value: str
    default: bool


def describe(config: Config) -> list[Shown]:
    """Return the section, name and value of every directive, and whether that is the default, in the file's order."""
    shown = []
    for one in list_directives():
        value = one.spec.format_value(_get_value(config, one))
        shown.append(Shown(one.section, one.spec.name, value, value == one.default))
    return shown


def make_config(assignments: Iterable[Assignment]) -> Config:
    """Return the configuration that the lines of all files give, in the order in which they apply.

    An overridden value is not checked, so a drop-in can correct an earlier file. Lines with lists of paths add up. An
    empty value resets the option.

    Raises: ConfigError with every problem, also invalid lines, unknown names and contradictions, in the lines' order.
    """
    lines: dict[Directive, list[Assignment]] = {}
    problems: list[Problem] = []
    order: dict[tuple[str, int], int] = {}
    for line in assignments:
        order.setdefault((line.file, line.line), len(order))
        directive = _map_directives().get((line.section, line.key))
        if line.problem:
            problems.append((line.file, line.line, line.key or line.value, line.problem))
        elif directive is None:
            problems.append((line.file, line.line, line.key, _explain_unknown(line)))
        elif not line.value.strip():
            lines.pop(directive, None)
        elif directive.spec.form is Form.PATHS:
            lines.setdefault(directive, []).append(line)
        else:
            lines[directive] = [line]
    config, wrong = _validate_lines(lines) if lines else (Config(), [])
    problems += wrong + _find_conflicts(config, lines, wrong)
    if problems:
        raise ConfigError(tuple(sorted(problems, key=lambda problem: order[problem[:2]])))
    return config


@cache
def _map_directives() -> dict[tuple[str, str], Directive]:
    return {(one.section, one.spec.name): one for one in list_directives()}


def _get_value(config: Config, directive: Directive) -> Any:
    return getattr(getattr(config, directive.section.lower()), directive.field)


def _explain_unknown(line: Assignment) -> str:
    """Return that the line's section is unknown, or its key in that section, with the names that are allowed."""
    sections = list(dict.fromkeys(one.section for one in list_directives()))
    if line.section not in sections:
        return f"unknown section [{line.section}]; allowed are {', '.join(f'[{section}]' for section in sections)}"
    allowed = ", ".join(f"{one.spec.name}=" for one in list_directives() if one.section == line.section)
    return f"unknown in [{line.section}]; allowed are {allowed}"


def _validate_lines(lines: dict[Directive, list[Assignment]]) -> tuple[Config, list[Problem]]:
    """Return the configuration that the valid lines give together, and a problem for each other line.

    Each line (none is empty) is validated alone, as only some of a list of paths may be wrong. Pairs are not compared.
    """
    problems: list[Problem] = []
    good: dict[Directive, list[Assignment]] = {}
    for directive, given in lines.items():
        for line in given:
            try:
                Config.model_validate(_make_input({directive: [line]}))
            except ValidationError:
                what = f"{line.value.strip()!r} is not allowed; allowed: {directive.spec.allowed}"
                problems.append((line.file, line.line, line.key, what))
            else:
                good.setdefault(directive, []).append(line)
    return Config.model_validate(_make_input(good)), problems


def _make_input(lines: dict[Directive, list[Assignment]]) -> dict[str, dict[str, object]]:
    """Return the texts for `Config.model_validate`: a directive's last one, or the list of all if it takes paths."""
    words: dict[str, dict[str, object]] = {}
    for directive, given in lines.items():
        texts = [line.value.strip() for line in given]
        words.setdefault(directive.section.lower(), {})[directive.field] = (
            texts if directive.spec.form is Form.PATHS else texts[-1]
        )
    return words


def _find_conflicts(config: Config, lines: dict[Directive, list[Assignment]], wrong: list[Problem]) -> list[Problem]:
    """Return a problem for each pair without a `wrong` line that breaks AT_LEAST, at the first's line if it has one."""
    problems: list[Problem] = []
    bad = {(file, line) for file, line, _, _ in wrong}
    for greater_name, smaller_name in AT_LEAST:
        greater, smaller = _map_directives()[greater_name], _map_directives()[smaller_name]
        given = lines.get(greater, []) + lines.get(smaller, [])
        judged = not any((line.file, line.line) in bad for line in given)
        if judged and _get_value(config, greater) < _get_value(config, smaller):
            what = f"{_format_line(config, greater)} must be at least {_format_line(config, smaller)}"
            problems.append((given[0].file, given[0].line, given[0].key, what))
    return problems


def _format_line(config: Config, directive: Directive) -> str:
    return f"{directive.spec.name}={directive.spec.format_value(_get_value(config, directive))}"
