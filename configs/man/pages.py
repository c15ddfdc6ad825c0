# SPDX-License-Identifier: LGPL-2.1-or-later
"""The man pages: prose from the *.in files in this directory, facts from the code.

A line of a template is one of these:

- a line that begins with a dot is man(7);
- @word@ or @word argument@ stands for the lines that a function of MACROS yields;
- a line within `.EX` or `.TS` is printed as it is;
- every other line is prose with the marks of roff.py, in which @keys record@ and @keys record and@ stand for the JSON
  keys of one of RECORDS with their meanings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import grammar
import interfaces
import roff
from meanings import describe, describe_directive

from journalkeeper import __version__
from journalkeeper.bus import names
from journalkeeper.cli.doctor import DOCTOR_RULES
from journalkeeper.config import directives
from journalkeeper.config.validation import AT_LEAST
from journalkeeper.health.finding import name_rule
from journalkeeper.metrics import prometheus
from journalkeeper.model import Action, JournalFile, Outcome, Reason, Skip, Window
from journalkeeper.model.manager import Manager
from journalkeeper.model.run import Counters, Run, Sample, Totals, Wait
from journalkeeper.model.schema import Row, list_rows
from journalkeeper.service.log import Event

HERE: Final = Path(__file__).parent
RECORDS: Final[dict[str, type]] = {
    "file": JournalFile,
    "window": Window,
    "action": Action,
    "skip": Skip,
    "outcome": Outcome,
    "run": Run,
    "sample": Sample,
    "totals": Totals,
    "wait": Wait,
    "saving": Counters,
    "manager": Manager,
}
CATALOG: Final = HERE.parent.parent / "units/journalkeeper.catalog"
SUBJECTS: Final = dict(re.findall(r"(?m)^-- (\w{32})\nSubject: (.+)$", CATALOG.read_text()))
"""The subject of each MESSAGE_ID."""

ATTACKS: Final = HERE / "shown/trust.txt"
CHANGELOG: Final = HERE.parent.parent / ".github/CHANGELOG.md"
_MACRO = re.compile(r"@(\w+)(?: (.+))?@")
_KEYS = re.compile(r"@keys (\w+)( and)?@")


def pages(day: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the source of every page; `day` is its date, as 2026-01-31.

    Each further name in a page's NAME is a page that includes it.
    """
    for template in sorted(HERE.glob("*.in")):
        name = template.name.removesuffix(".in")
        text = template.read_text()
        yield name, "\n".join(_page(text, day)) + "\n"
        section = name.rpartition(".")[2]
        listed = re.search(r"(?m)^\.SH NAME\n(.+) - ", text)
        for other in listed[1].split(", ")[1:] if listed else []:
            yield f"{other}.{section}", f".so man{section}/{name}\n"


def _page(template: str, day: str) -> Iterator[str]:
    as_is = False
    filled = _KEYS.sub(_keys, template.replace("@version@", __version__).replace("@day@", day))
    for line in filled.splitlines():
        if macro := _MACRO.fullmatch(line):
            yield from MACROS[macro[1]](macro[2] or "")
        elif line.startswith(".") or not line:
            as_is = {".EX": True, ".EE": False, ".TS": True, ".TE": False}.get(line, as_is)
            yield line
            if line.startswith(".TH "):
                yield from (".nr HY 0", ".nh", ".ad l")  # names are not broken, lines not stretched
        elif as_is:
            yield roff.literal(line)
        else:
            yield from roff.prose(line)


def _keys(macro: re.Match[str]) -> str:
    """Return the keys of a record with their meanings, as one sentence."""
    shown = [f"`{row.key}`{_meaning(row)}" for row in list_rows(RECORDS[macro[1]])]
    if macro[2]:
        shown[-1] = f"and {shown[-1]}"
    return ", ".join(shown)


def _meaning(row: Row) -> str:
    """Return the meaning of a key in parentheses, as a part of a sentence; "" if it has none."""
    text = describe(row).removesuffix(".")
    return f" ({text[0].lower() if text[1].islower() else text[0]}{text[1:]})" if text else ""


def _commands(_: str) -> Iterator[str]:
    """Yield every command with its synopsis, description, own options and examples."""
    for command in grammar.program().all():
        if command.path:
            yield f'.SS "{roff.literal(" ".join(command.path))}"'
            yield _synopsis(command)
            yield ".PP"
            yield from roff.prose(_join_lines(command.description or roff.sentence(command.summary)))
            for argument in command.arguments:
                yield from roff.item(roff.italic(argument.value), roff.sentence(argument.help))
            for option in command.options:
                yield from _option(option)
            yield from _epilog(command.epilog)


def _command_list(_: str) -> Iterator[str]:
    """Yield one line for each command: its word and its summary."""
    yield ".PD 0"
    for command in grammar.program().commands:
        yield from (".TP 14", roff.bold(command.path[0]), *roff.prose(roff.sentence(command.summary)))
    yield ".PD"


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _synopsis(command: grammar.Command) -> str:
    words = [roff.bold(" ".join(("journalkeeper", *command.path))), f"[{roff.italic('OPTION')}...]"]
    words += [roff.italic("COMMAND")] if command.commands else []
    for argument in command.arguments:
        value = "|".join(map(roff.bold, argument.words)) if argument.words else roff.italic(argument.value)
        words.append(f"[{value}...]" if argument.optional else value)
    return " ".join(words)


def _option(option: grammar.Option) -> list[str]:
    def format_flag(flag: str) -> str:
        if not option.value:
            return roff.bold(flag)
        between = "=" if flag.startswith("--") else " "
        value = "|".join(map(roff.bold, option.words)) if option.words else roff.italic(option.value)
        return f"{roff.bold(flag + between)}{value}"

    return roff.item(", ".join(map(format_flag, option.flags)), roff.sentence(option.help))


def _epilog(text: str) -> Iterator[str]:
    """Yield the blocks of a help text, each with or without a heading such as "examples:". Indented lines are kept."""
    for block in filter(None, re.split(r"\n\s*\n", text)):
        lines = block.strip("\n").splitlines()
        flush = [line for line in lines if not line.startswith(" ")]
        yield ".PP"
        if flush:
            heading = _join_lines(" ".join(flush))
            yield from roff.prose(heading.capitalize() if heading.endswith(":") else roff.sentence(heading))
        indented = [line.removeprefix("  ") for line in lines if line.startswith(" ")]
        if flush == ["exit status:"]:
            yield from roff.prose(roff.sentence(_join_lines(" ".join(indented))))
        elif indented:
            yield from roff.example(indented)


def _options(_: str) -> Iterator[str]:
    """Yield the options that every command has."""
    for option in grammar.program().options:
        yield from _option(option)


def _directives(section: str) -> Iterator[str]:
    """Yield the directives of one section: effect, allowed values, default and its reason."""
    for one in directives.list_directives():
        if one.section == section:
            spec = one.spec
            default = f"Defaults to `{one.default}`." if one.default else "Empty by default."
            takes = f"Takes {spec.allowed}. {default}"
            what, why = describe_directive(one)
            yield from roff.item(roff.bold(f"{spec.name}="), what, takes, f"Why: {why}")


def _at_least(_: str) -> Iterator[str]:
    """Yield the directives that must be at least as large as others."""
    pairs = [f"`{greater}=` must be at least `{smaller}=`" for (_, greater), (_, smaller) in AT_LEAST]
    yield from roff.prose(f"{'; '.join(pairs)}.")


def _items(rows: Iterable[tuple[str, str]]) -> Callable[[str], Iterator[str]]:
    """Return a macro that yields a tagged paragraph for each term and its text."""
    lines = [line for term, text in rows for line in roff.item(roff.bold(term), text)]
    return lambda _: iter(lines)


def _changelog(_: str) -> Iterator[str]:
    """Yield the changelog's Markdown as man(7): headings, paragraphs and bullets."""
    text = re.sub(r"\[([^]]+)\]\(([^)]+)\)", r"\1 (\2)", CHANGELOG.read_text())
    above = "#"
    for block in re.split(r"\n\n+|\n(?=#|- )", text.strip()):
        mark, _, words = block.partition(" ")
        if mark == "##":
            yield f'.SH "{roff.literal(words.upper())}"'
        elif mark == "###":
            yield f'.SS "{roff.literal(words)}"'
        elif mark == "-":
            yield from (".IP \\(bu 2", *roff.prose(_join_lines(words)))
        elif mark != "#":
            yield from ([] if above == "##" else [".PP"])
            yield from roff.prose(_join_lines(block))
        above = mark


def _attacks(_: str) -> Iterator[str]:
    """Yield the table of attacks that `python -m tests.trust --write` keeps, and the commands of its rows."""
    rows = [("kind", "points", "lost", "unclean", "outage")]
    commands = []
    for line in ATTACKS.read_text().splitlines():
        kind, points, lost, unclean, outage_s, command = line.split("\t")
        rows.append((kind, f"{int(points):,}", lost, unclean, f"{outage_s} s"))
        commands.append(command)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield from roff.example(["  ".join(map(str.rjust, row, widths)) for row in rows])
    yield ".PP"
    yield "By these commands:"
    yield from roff.example(commands)


MACROS: Final[dict[str, Callable[[str], Iterator[str]]]] = {
    "commands": _commands,
    "command_list": _command_list,
    "options": _options,
    "reasons": _items((reason, reason.sentence) for reason in Reason),
    "rules": _items((name_rule(rule), _join_lines(rule.__doc__ or "")) for rule in DOCTOR_RULES),
    "directives": _directives,
    "at_least": _at_least,
    "attacks": _attacks,
    "changelog": _changelog,
    "errors": _items(
        (name, "Anything else." if name == names.FAILED else (kind.__doc__ or "").splitlines()[0])
        for kind, name in names.ERRORS
    ),
    "events": _items((event, roff.sentence(SUBJECTS[event])) for event in Event),
    "metrics": _items(
        (f"{prometheus.PREFIX}_{family.name}", f"{family.type.capitalize()}. {family.help}")
        for family in prometheus.FAMILIES
    ),
    "interface": interfaces.describe_interface,
    "file_keys": interfaces.list_keys,
}
