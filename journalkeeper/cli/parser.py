# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line: its commands, and the options that each of them has.

Keeps the files of systemd-journald on btrfs unfragmented, and compresses the archived ones. `scan` shows the files,
`plan` shows what `defrag` would do to each file and why, and `defrag` does it.

examples:
  journalkeeper scan                    how fragmented are the journal files?
  journalkeeper plan                    what would `defrag` do, and why?
  sudo journalkeeper defrag             do it
  journalkeeper defrag --help           the options of one command, examples

exit status:
  0 done; 1 something failed or was interrupted, a PATH does not exist or is no
  journal, or the configuration is bad; 2 wrong usage
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import textwrap
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple, NoReturn

from journalkeeper import __version__
from journalkeeper.cli.output import write
from journalkeeper.model.errors import UsageError
from journalkeeper.model.units import SECOND_US


class Command(NamedTuple):
    """One command: its word, a summary, and its module."""

    name: str
    summary: str
    module: str

    def load(self) -> ModuleType:
        """Import the command's module."""
        return importlib.import_module(f"journalkeeper.cli.{self.module}")


COMMANDS = (
    Command("status", "show the verdict, the state of the service, and the last run", "status"),
    Command("scan", "show every journal file: kind, extents, size, disk space, flags", "scan"),
    Command("plan", "show what would be done to each file and why, or why not", "plan"),
    Command("defrag", "do what `plan` shows", "defrag"),
    Command("history", "show past actions and extent counts", "history"),
    Command("explain", "describe one file: its placement, read time, history, and plan", "explain"),
    Command("report", "write one page with charts: boots, extents, waits, actions", "report"),
    Command("doctor", "show what is wrong or risky on this host, with remedies", "doctor"),
    Command("retention", "show how far back the journal reaches, or extend it", "retention"),
    Command("isolate", "keep the journal out of later snapshots of the root", "isolate"),
    Command("pause", "stop the service's automatic work for a while", "pause"),
    Command("resume", "end a pause", "pause"),
    Command("probe", "measure how long logging, reading and an fsync take", "probe"),
    Command("lab", "compare strategies against fragmentation, in a scratch file", "lab"),
    Command("daemon", "run the service: watch the journals and keep them in order", "daemon"),
    Command("check-config", "check the configuration, and show it", "check_config"),
)
"""Each is a module with `run`, its help as docstring, and `add_options` if it has any. Only the module of the named
command is imported; `make_parser(None)` imports all, for completions and man pages.
"""


TIMES: Final = "2026-11-21, 2026-11-21 10:00, 10:00, today, yesterday, now, -3d, 3 days ago or @1795255200"


def between(least: float, most: float, kind: Callable[[str], float] = float) -> Callable[[str], float]:
    """Return a function that converts text by `kind`. It raises ArgumentTypeError unless `least` <= value <= `most`."""

    def number(text: str) -> float:
        """Return `kind(text)`. Raises: ArgumentTypeError if it is not in the range; ValueError of `kind`."""
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: a number from {least:g} to {most:g}")
        return value

    return number


def parse_time_us(text: str) -> int:
    """Return the argument of --since= or --until= in microseconds since the epoch, parsed as by journalctl, in 7 ms.

    Raises: ArgumentTypeError with the allowed forms; OSError if systemd-analyze is not installed.
    """
    words = ["systemd-analyze", "timestamp", "--", text]
    done = None if "\0" in text else subprocess.run(words, capture_output=True, check=False)
    found = done and re.search(rb"(?m)^ *UNIX seconds: @(\d+)(?:\.(\d{6}))?$", done.stdout)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; allowed are {TIMES}")
    return int(found[1]) * SECOND_US + int(found[2] or 0)


class Help(argparse.HelpFormatter):
    """argparse's help. Paragraphs are filled to the terminal's width; those with indented lines stay as they are."""

    def _fill_text(self, text: str, width: int, _: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        filled = (one if "\n " in one else textwrap.fill(one, width, break_on_hyphens=False) for one in paragraphs)
        return "\n\n".join(filled)


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UsageError instead of ending the process, with its help from `Help`. No option
    can be abbreviated, and a value such as -3d is no option.
    """

    def __init__(self, **words: Any) -> None:
        # no abbreviations: scripts that use one break when an option is added
        super().__init__(formatter_class=Help, allow_abbrev=False, **words)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # `--since -3d`, as Python 3.14 takes it

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError with the message and a pointer to --help."""
        raise UsageError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, _: object = None) -> None:
        """Write the text of --help or --version to stdout. argparse's own method hides errors since Python 3.12.

        Raises: as `write`.
        """
        write(message.removesuffix("\n"))


def split_help(docstring: str | None) -> tuple[str, str]:
    """Return a docstring's second paragraph, and the rest, which can be "". Raises: ValueError without a second."""
    _, description, *rest = (docstring or "").split("\n\n")
    return description, "\n\n".join(rest)


def make_parser(words: Sequence[str] | None) -> Parser:
    """Return the parser for a command line of `words`; for every command if None.

    A command whose name is not in `words` gets its name and summary, but not its options: its module is not imported.
    """
    description, epilog = split_help(__doc__)
    top = Parser(prog="journalkeeper", description=description, epilog=epilog)
    top.add_argument("-V", "--version", action="version", version=f"journalkeeper {__version__}")
    add_common_options(top, default=None)
    top.set_defaults(json="off")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in COMMANDS:
        if words is not None and command.name not in words:
            commands.add_parser(command.name, help=command.summary)
            continue
        module = command.load()
        description, epilog = split_help(module.__doc__)
        sub = commands.add_parser(command.name, help=command.summary, description=description, epilog=epilog)
        add_common_options(sub)
        if hasattr(module, "add_options"):
            module.add_options(sub)
    return top


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the common options, the name of the command as `command`, and the options of its module.

    Raises: UsageError for a wrong command line, or one without a command; SystemExit after --help and --version.
    """
    args, extras = make_parser(words).parse_known_args(words)
    # argparse takes a command's PATHs in one piece only, getopt_long anywhere between options
    if any(extra.startswith("-") for extra in extras) or (extras and not hasattr(args, "paths")):
        raise UsageError(f"unknown argument: {' '.join(extras)}; see --help")
    if args.command is None:
        raise UsageError("no command given; try `journalkeeper status`, or see journalkeeper --help")
    if extras:
        args.paths += extras
    return args


def add_common_options(parser: argparse.ArgumentParser, default: str | None = argparse.SUPPRESS) -> None:
    """Add the options of every command to `parser`. With SUPPRESS, an option that is not given has no value.

    They may stand before or after the command's name. If an option is given twice, the later value wins.
    """
    add = parser.add_argument_group("options of every command", argument_default=default).add_argument
    where = "the journal directory (default: Directories= in the configuration, /var/log/journal)"
    add("-D", "--directory", metavar="DIR", help=where)
    add("--config", metavar="FILE", help="read this file in place of journalkeeper.conf")
    add("--json", choices=("short", "pretty", "off"), help="write JSON for programs")
    add("-j", dest="json", action="store_const", const="short", help="the same as --json=short")
    add("--no-legend", action="store_true", help="no headings, no footer")
    add("-q", "--quiet", action="store_true", help="write no text, only errors")
    add("--no-pager", action="store_true", help="no pager on a terminal")
