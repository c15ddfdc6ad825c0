# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of commands, and the command line as argparse understands it.

A command is one module with `options`, `run` and its help as docstring, and a row in COMMANDS; no other list of
commands exists. Only the module of the named command is imported; `parser(None)` imports all, for completions and man
pages.
"""

from __future__ import annotations

import argparse
import importlib
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Final, NamedTuple, NoReturn

from journalkeeper import __version__
from journalkeeper.cli.output import write
from journalkeeper.model.errors import UsageError

DESCRIPTION = """\
Keeps the files of systemd-journald on btrfs unfragmented, and compresses the archived ones.
`scan` shows the files, `plan` shows what `defrag` would do to each file and why, and `defrag` does it."""

EPILOG = """\
examples:
  journalkeeper scan                    how fragmented are the journal files?
  journalkeeper plan                    what would `defrag` do, and why?
  sudo journalkeeper defrag             do it
  journalkeeper defrag --help           the options of one command, examples

exit status:
  0 done; 1 something failed or was interrupted, a PATH does not exist or is no
  journal, or the configuration is bad; 2 wrong usage"""


class Command(NamedTuple):
    """One command: its word, a summary, and the reason why it may need root."""

    name: str
    summary: str
    module: str
    needs_root: str

    def load(self) -> ModuleType:
        """Import the command's module: `options` adds its options to a parser, `run` returns the exit status, and its
        docstring is the command's help.
        """
        return importlib.import_module(f"journalkeeper.cli.{self.module}")


_READS_FILES = "journal files are readable by root and their own users only"

_REWRITES_FILES = "it rewrites files that belong to root"

_SETS_JOURNALD = "journald's settings and what files occupy are for root"

_READS_STATE = "the state directory is readable by root only"

_NEEDS_POLKIT = "it needs polkit authorization (org.journalkeeper1.manage)"

COMMANDS = (
    Command("status", "show the verdict, the state of the service, and the last run", "status", _READS_STATE),
    Command("scan", "show every journal file: kind, extents, size, disk space, flags", "scan", _READS_FILES),
    Command("plan", "show what would be done to each file and why, or why not", "plan", _READS_FILES),
    Command("defrag", "do what `plan` shows", "defrag", _REWRITES_FILES),
    Command("history", "show past actions and extent counts", "history", _READS_STATE),
    Command("explain", "describe one file: its placement, read time, history, and plan", "explain", _READS_FILES),
    Command("report", "write one page with charts: boots, extents, waits, actions", "report", _READS_FILES),
    Command("doctor", "show what is wrong or risky on this host, with remedies", "doctor", _READS_FILES),
    Command("retention", "show how far back the journal reaches, or extend it", "retention", _SETS_JOURNALD),
    Command("isolate", "move the journal out of the root's snapshots", "isolate", _REWRITES_FILES),
    Command("pause", "stop the service's automatic work for a while", "pause", _NEEDS_POLKIT),
    Command("resume", "end a pause", "pause", _NEEDS_POLKIT),
    Command("probe", "measure how long logging, reading and an fsync take", "probe", "it starts a journald, or traces"),
    Command("lab", "compare strategies against fragmentation, in a scratch file", "lab", "it mounts a scratch volume"),
    Command("daemon", "run the service: watch the journals and keep them in order", "daemon", _REWRITES_FILES),
    Command("check-config", "check the configuration, and show it", "check_config", "it is not readable"),
)


def between(least: float, most: float, kind: Callable[[str], float] = float) -> Callable[[str], float]:
    """Return a function that converts an option's text by `kind` to a number from `least` to `most`, and not NaN."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: a number from {least:g} to {most:g}")
        return value

    return number


class Help(argparse.HelpFormatter):
    """argparse's help. Paragraphs are filled to the terminal's width; those with indented lines stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip("\n").split("\n\n")
        filled = (one if "\n " in one else textwrap.fill(one, width, break_on_hyphens=False) for one in paragraphs)
        return "\n\n".join(filled)


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises UsageError instead of ending the process."""

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


def split_help(module: ModuleType) -> tuple[str, str]:
    """Return the description and the rest of the help: the second and the further paragraphs of a module's docstring.

    Raises: ValueError if there are none.
    """
    _, description, *rest = (module.__doc__ or "").split("\n\n")
    return description, "\n\n".join(rest)


def parser(words: Sequence[str] | None) -> Parser:
    """Return the parser for a command line of `words`; for every command if None.

    A command whose name is not in `words` gets its name and summary, but not its options: its module is not imported.
    """
    top = Parser(prog="journalkeeper", description=DESCRIPTION, epilog=EPILOG)
    top.add_argument("-V", "--version", action="version", version=f"journalkeeper {__version__}")
    common(top)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for command in COMMANDS:
        if words is not None and command.name not in words:
            commands.add_parser(command.name, help=command.summary)
            continue
        module = command.load()
        description, epilog = split_help(module)
        sub = commands.add_parser(command.name, help=command.summary, description=description, epilog=epilog)
        common(sub)
        module.options(sub)
    return top


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the common options, the name of the command as `command`, and the options of its module.

    Raises: UsageError for a wrong command line; SystemExit after --help and --version.
    """
    args, extras = parser(words).parse_known_args(words, argparse.Namespace(**DEFAULTS))
    # argparse takes a command's PATHs in one piece only, getopt_long anywhere between options
    unknown = [extra for extra in extras if extra.startswith("-")]
    if unknown or (extras and not hasattr(args, "paths")):
        command = f"journalkeeper {args.command or ''}".rstrip()
        what = "unknown option" if unknown else "unexpected argument"
        raise UsageError(f"{what}: {' '.join(unknown or extras)}; see {command} --help")
    if args.command is None:
        raise UsageError("no command given; try `journalkeeper status`, or see journalkeeper --help")
    if extras:
        args.paths += extras
    _refuse_empty_names(args)
    return args


def _refuse_empty_names(args: argparse.Namespace) -> None:
    """Refuse an empty argument, which an unset shell variable causes: as a file name it would be the current directory.

    Raises: UsageError if an argument, or one of several, is empty.
    """
    for name, value in vars(args).items():
        if value == "" or (isinstance(value, list) and "" in value):
            raise UsageError(f"the argument {name} is empty (a variable that is not set?); see journalkeeper --help")


DEFAULTS: Final[dict[str, Any]] = {
    "directory": None,
    "config": None,
    "json": "off",
    "no_legend": False,
    "quiet": False,
    "no_pager": False,
}
"""The values of the options of every command."""


def common(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command to `parser`.

    They may stand before or after the command's name. If an option is given twice, the later value wins.
    """
    group = parser.add_argument_group("options of every command")
    add = partial(group.add_argument, default=argparse.SUPPRESS)  # a default would replace a value before the command
    where = "the journal directory (default: Directories= in the configuration, /var/log/journal)"
    add("-D", "--directory", metavar="DIR", help=where)
    add("--config", metavar="FILE", help="read this file in place of journalkeeper.conf")
    add("--json", choices=("short", "pretty", "off"), help="write JSON for programs")
    add("-j", dest="json", action="store_const", const="short", help="the same as --json=short")
    add("--no-legend", action="store_true", help="no headings, no footer")
    add("-q", "--quiet", action="store_true", help="write no text, only errors")
    add("--no-pager", action="store_true", help="no pager on a terminal")
