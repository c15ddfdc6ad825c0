# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write a command's output: to stdout, a pager, as JSON, and notes to stderr.

Standard output has the answer and nothing else; everything on stderr is one line each.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from journalkeeper.cli.pager import page
from journalkeeper.cli.table import Column, no_colour, render
from journalkeeper.cli.text import parse_switch, shown
from journalkeeper.model.errors import KeeperError

DEFAULT_COLUMNS, DEFAULT_LINES = 80, 24
"""The size of a terminal that does not report one."""

T = TypeVar("T")


class Output:
    """The form of a command's output, from its options and its terminal.

    `json` is "off", "short" or "pretty". `legend` is True if tables have headings and footers, `terminal` if stdout is
    a terminal, `colours` if it shows colours. `width` is the number of columns for tables: COLUMNS=, else the
    terminal's; None for a program, for which nothing is shortened.
    """

    def __init__(self, args: argparse.Namespace, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self.json: str = args.json
        self.legend: bool = not args.no_legend
        self.terminal = is_terminal(1)
        self._pager = self.terminal and not args.no_pager
        self.colours = self.terminal and wants_colours(self._environ)
        self.width = _width(self._environ, terminal=self.terminal)

    def document(self, value: object) -> None:
        r"""Write JSON: one line, or indented with --json=pretty.

        Always ASCII: a byte of a path that is not UTF-8 is \udcXX, XX being the byte, which
        json.loads and os.fsencode turn back into it (PEP 383).
        """
        pretty = self.json == "pretty"
        write(json.dumps(value, indent=2) if pretty else json.dumps(value, separators=(",", ":")))

    def lines(self, lines: Sequence[str], *, paged: bool = True) -> None:
        """Write lines, through a pager if they do not fit the terminal and the options allow a pager."""
        height = terminal_size(1).lines or DEFAULT_LINES
        if paged and self._pager and len(lines) >= height and page(lines, self._environ):
            return
        if lines:
            write("\n".join(lines))

    def table(
        self, columns: tuple[Column[T], ...], rows: Sequence[T], colour: Callable[[T], str] = no_colour
    ) -> list[str]:
        """Return the lines of a table, as `render` does."""
        return render(columns, rows, legend=self.legend, colours=self.colours, width=self.width, colour=colour)

    def note(self, text: str) -> None:
        """Write one line to stderr in addition to the answer."""
        complain(text)


def write(text: str) -> None:
    """Write to stdout and flush at once, so that an error such as a full disk shows here.

    Raises: BrokenPipeError if the reader has gone; KeeperError if the text cannot be written (ENOSPC, EIO).
    """
    try:
        print(text, flush=True)
    except OSError as error:
        _discard_output()
        if isinstance(error, BrokenPipeError):
            raise
        raise KeeperError(f"cannot write the output: {error.strerror}") from error


def flush() -> bool:
    """Flush stdout before the process ends. Return False if its reader has gone or its disk is full."""
    try:
        print(end="", flush=True)
    except OSError:
        _discard_output()
        return False
    return True


def _discard_output() -> None:
    """Redirect stdout to /dev/null, because the interpreter would write the rest at exit and report the error again."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    """Write one line to stderr, with control characters of `text` escaped."""
    print(f"journalkeeper: {shown(text)}", file=sys.stderr)


def _width(environ: Mapping[str, str], *, terminal: bool) -> int | None:
    """Return the columns that a table may have, at least 40; None for no limit."""
    found = columns(environ) or (DEFAULT_COLUMNS if terminal else None)
    return found and max(40, found)


def columns(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return COLUMNS=, else the width of the terminal on stdout, or None if neither is known."""
    asked = environ.get("COLUMNS", "")
    if asked.isdecimal() and len(asked) < 10 and int(asked) > 0:
        return int(asked)
    return terminal_size(1).columns or None


def terminal_size(descriptor: int) -> os.terminal_size:
    """Return the columns and lines of a terminal; 0 for values that are unknown."""
    try:
        return os.get_terminal_size(descriptor)
    except OSError:
        return os.terminal_size((0, 0))


def is_terminal(descriptor: int) -> bool:
    """Return whether `descriptor` is a terminal. A closed descriptor is none."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def wants_colours(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal gets colours: SYSTEMD_COLORS, else NO_COLOR, else TERM decides.

    Source: systemd(1), "Environment"; https://no-color.org/.
    """
    asked = environ.get("SYSTEMD_COLORS", "")
    if asked:
        return parse_switch(asked) is not False  # "16" and "256" are colours too
    return not environ.get("NO_COLOR") and environ.get("TERM") not in {None, "dumb"}
