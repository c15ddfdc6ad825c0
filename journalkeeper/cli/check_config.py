# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper check-config`: show the configuration, or all errors in it.

Reads journalkeeper.conf and its drop-ins as the service does, and shows the value of every directive. For
each mistake it shows the file, the line, the key, and what is allowed.

examples:
  journalkeeper check-config                    what is in force?
  journalkeeper check-config --config new.conf  is this file right?
  journalkeeper check-config -j                 problems and values as JSON

exit status:
  0 the configuration is valid, 1 it is not, 2 wrong usage
"""

from __future__ import annotations

import argparse
from typing import Final, NamedTuple

from journalkeeper.btrfs.defrag import HAS_LEVELS
from journalkeeper.cli.context import Context
from journalkeeper.cli.table import GREY, Column, Table
from journalkeeper.config.validation import Shown, describe
from journalkeeper.model.errors import ConfigError
from journalkeeper.model.schema import Count
from journalkeeper.model.units import escape, explain_lost_level, parse_compression

_COLUMNS: Final[tuple[Column[Shown], ...]] = (
    Column("SECTION", lambda value: f"[{value.section}]"),
    Column("KEY", lambda value: value.key),
    Column("VALUE", lambda value: escape(value.value)),
)


class WrongLine(NamedTuple):
    """A wrong line of a configuration file; the line 0 is the whole file."""

    file: str
    line: Count
    key: str
    allowed: str


class ConfigAnswer(NamedTuple):
    """The answer of `check-config`."""

    problems: list[WrongLine]
    values: list[Shown]


def run(_: argparse.Namespace, context: Context) -> int:
    """Show the value of each directive, and a level of Compress= that this Linux ignores, and return 0. With JSON,
    show wrong lines instead of values, and return 1.

    Raises: ConfigError with all errors, without JSON; FileError if a file cannot be read.
    """
    output = context.output
    try:
        config = context.read_config()
    except ConfigError as error:
        if output.json == "off":
            raise
        output.write_document(ConfigAnswer([WrongLine(*problem) for problem in error.problems], []))
        return 1
    values = describe(config)
    table = Table(_COLUMNS, values, lambda value: GREY if value.default else "")
    legend = ["The configuration is valid. journalkeeper.conf(5) explains each key."]
    asked = parse_compression(config.defrag.compress)
    if asked is not None and asked.level is not None and not HAS_LEVELS:
        legend.append(f"Compress= acts {explain_lost_level(asked, 'Linux before 6.15')}.")
    output.show(ConfigAnswer([], values), table, legend=[legend])
    return 0
