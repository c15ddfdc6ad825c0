# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line as data, read from journalkeeper's parser: for the man pages and the completions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final, NamedTuple

from journalkeeper.cli.parser import make_parser

KINDS: Final = {"DIR": "directory", "FILE": "file", "PATH": "journals"}
OFFERED: Final = {"TIME": ("today", "yesterday", "now"), "HOW": ("zstd", "zlib", "lzo", "no")}
"""The kinds of values that name a file, and words for other values, by their name in --help."""


class Option(NamedTuple):
    """One option or argument.

    `value` is the name of its value, "" if it takes none. `words` are the allowed values, () if any is allowed.
    `optional` is True if it takes any number of values, also none.
    """

    flags: tuple[str, ...]
    value: str
    words: tuple[str, ...]
    help: str
    optional: bool

    @property
    def kind(self) -> str:
        """The kind of file that its value names: "directory", "file", "journals", or ""."""
        return KINDS.get(self.value, "")

    @property
    def offered(self) -> tuple[str, ...]:
        """The words that a completion offers as its value."""
        return self.words or OFFERED.get(self.value, ())


class Command(NamedTuple):
    """One command, or the program itself: `path` has the words after "journalkeeper".

    `options` are those that only this command has, and `commands` are its subcommands.
    """

    path: tuple[str, ...]
    summary: str
    description: str
    epilog: str
    options: tuple[Option, ...]
    arguments: tuple[Option, ...]
    commands: tuple[Command, ...]

    def all(self) -> Iterator[Command]:
        """Yield this command and every command below it."""
        yield self
        for command in self.commands:
            yield from command.all()


def program() -> Command:
    """Return the whole program. Its `options` are those that every command has, and --version."""
    top = make_parser(None)
    everywhere = {flag for action in top._actions for flag in action.option_strings}
    return _command(top, (), "", everywhere)


def _command(one: argparse.ArgumentParser, path: tuple[str, ...], summary: str, everywhere: set[str]) -> Command:
    options, arguments, commands = [], [], []
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                commands.append(_command(below, (*path, name), summaries.get(name, ""), everywhere))
        elif action.help == argparse.SUPPRESS:
            continue
        elif not action.option_strings:
            arguments.append(_option(action))
        elif not path or not everywhere & set(action.option_strings):
            options.append(_option(action))
    description, epilog = one.description or "", one.epilog or ""
    return Command(path, summary, description, epilog, tuple(options), tuple(arguments), tuple(commands))


def _option(action: argparse.Action) -> Option:
    words = tuple(str(choice) for choice in action.choices or ())
    value = "" if action.nargs == 0 else str(action.metavar or ("WORD" if words else action.dest.upper()))
    text = (action.help or "") % {**vars(action), "prog": "journalkeeper"}
    return Option(tuple(action.option_strings), value, words, text, optional=action.nargs == "*")
