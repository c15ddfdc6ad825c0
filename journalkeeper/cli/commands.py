# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of commands.

A command is one module with EXAMPLES, `options` and `run`, and a row in COMMANDS; no other list of commands exists.
"""

from __future__ import annotations

import argparse
import importlib
from typing import NamedTuple, Protocol, cast

from journalkeeper.cli.context import Context


class CommandModule(Protocol):
    """The interface of a command's module."""

    DESCRIPTION: str
    """The paragraph above the options in the command's --help."""

    EXAMPLES: str
    """Two or three command lines, each with what it is good for, and what exit codes mean."""

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that only this command has."""

    def run(self, args: argparse.Namespace, context: Context) -> int:
        """Run the command and return the exit status."""


class Command(NamedTuple):
    """One command: its word, a summary, and the reason why it may need root.

    `own` is why the command takes neither -D nor --config; "" if it takes them.
    """

    name: str
    summary: str
    module: str
    needs_root: str
    own: str = ""

    def load(self) -> CommandModule:
        """Import the command's module."""
        return cast("CommandModule", importlib.import_module(f"journalkeeper.cli.{self.module}"))


_READS_FILES = "journal files are readable by root and their own users only"

_SETS_JOURNALD = "journald's settings and what files occupy are for root"

OF_THE_SERVICE = "is about this host's service"

_READS_STATE = "the state directory is readable by root only"

_NEEDS_POLKIT = "it needs polkit authorization (org.journalkeeper1.manage)"

COMMANDS = (
    Command("status", "what the service does, totals, and what was done last", "status", _READS_STATE),
    Command("scan", "every journal file: kind, extents, size, disk space, flags", "scan", _READS_FILES),
    Command("plan", "what would be done to which file and why, and why not", "plan", _READS_FILES),
    Command("defrag", "do what plan shows", "defrag", "it rewrites files that belong to root"),
    Command("history", "what was done to each file over time", "history", _READS_STATE),
    Command("explain", "one file's story: its picture, price and past, and what is decided", "explain", _READS_FILES),
    Command("report", "one page with charts: boots, extents, waits, bytes, every action", "report", _READS_FILES),
    Command("doctor", "what is wrong or risky on this host, each with its remedy", "doctor", _READS_FILES),
    Command("retention", "how long a history fits the same bytes, and the setting for it", "retention", _SETS_JOURNALD),
    Command("pause", "no work of the service's own, for a while", "pause", _NEEDS_POLKIT, OF_THE_SERVICE),
    Command("resume", "end a pause", "resume", _NEEDS_POLKIT, OF_THE_SERVICE),
    Command("probe", "measure what loggers, readers and disks wait for", "probe", "it starts a journald, or traces"),
    Command(
        "lab",
        "measure strategies on a scratch volume",
        "lab",
        "it mounts a scratch volume",
        "makes a journal and a configuration of its own",
    ),
    Command(
        "daemon",
        "the service: watch, and keep the journals in order",
        "daemon",
        "it rewrites files that belong to root",
    ),
    Command("check-config", "read the configuration and say what is wrong in it", "check_config", "it is not readable"),
)
