# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper check-config`: show the configuration, or all errors in it.

It validates with the same code as the engine.
"""

from __future__ import annotations

import argparse
from typing import Final

from journalkeeper.cli.context import Context
from journalkeeper.cli.table import GREY, Column
from journalkeeper.cli.text import shown
from journalkeeper.config.validation import Shown, describe
from journalkeeper.model.errors import ConfigError

DESCRIPTION = """\
Reads journalkeeper.conf and its drop-ins as the service does and shows every directive with
its value. What is wrong is named with file, line, key and what is allowed."""

EXAMPLES = """\
examples:
  journalkeeper check-config              what is in force?
  journalkeeper check-config new.conf     is this file right?
  journalkeeper check-config -j           problems and values for programs

exit status:
  0 the configuration is right, 1 it is not, 2 wrong usage"""

_COLUMNS: Final[tuple[Column[Shown], ...]] = (
    Column("SECTION", lambda value: f"[{value.section}]"),
    Column("KEY", lambda value: value.key),
    Column("VALUE", lambda value: shown(value.value)),
)


def options(parser: argparse.ArgumentParser) -> None:
    """Add FILE and -q."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="this file alone, as --config FILE")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what is wrong")


def run(args: argparse.Namespace, context: Context) -> int:
    """Show the configuration; errors go to stderr, or into the JSON."""
    output = context.output
    try:
        config = context.config(args.file)
    except ConfigError as error:
        if output.json == "off":
            raise
        output.document({"problems": [_problem(*problem) for problem in error.problems], "values": []})
        return 1
    values = describe(config)
    if output.json != "off":
        output.document({"problems": [], "values": [value._asdict() for value in values]})
        return 0
    if args.quiet:
        return 0
    lines = output.table(_COLUMNS, values, lambda value: GREY if value.default else "")
    changed = sum(not value.default for value in values)
    if output.legend:
        lines += ["", f"The configuration is right; {changed} of {len(values)} values differ from the default."]
    output.lines(lines)
    return 0


def _problem(file: str, line: int, key: str, allowed: str) -> dict[str, object]:
    return {"file": file, "line": line, "key": key, "allowed": allowed}
