# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a command's words go: stdout, a pager, JSON, and notes on stderr.

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
from journalkeeper.cli.table import Column, render, uncoloured
from journalkeeper.cli.text import shown, switched
from journalkeeper.model.errors import KeeperError

DEFAULT_COLUMNS, DEFAULT_LINES = 80, 24
"""Of a terminal that does not tell."""

T = TypeVar("T")


class Output:
    """How the command line said that answers are to be written.

    `json` is "off", "short" or "pretty"; `legend` whether tables have headings and footers;
    `terminal` whether a person reads along; `colours` whether that person's terminal has them. `width` is how
    many columns tables have: COLUMNS=, else the terminal's; None, nothing is shortened, where a program reads.
    """

    def __init__(self, args: argparse.Namespace, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self.json: str = args.json
        self.legend: bool = not args.no_legend
        self.terminal = is_terminal(1)
        self._pager = self.terminal and not args.no_pager
        self.colours = self.terminal and colours_wanted(self._environ)
        self.width = _width(self._environ, terminal=self.terminal)

    def document(self, value: object) -> None:
        r"""Write JSON: one line, or indented with --json=pretty.

        Always ASCII: a byte of a path that is not UTF-8 is \udcXX, XX being the byte, which
        json.loads and os.fsencode turn back into it (PEP 383).
        """
        pretty = self.json == "pretty"
        write(json.dumps(value, indent=2) if pretty else json.dumps(value, separators=(",", ":")))

    def lines(self, lines: Sequence[str], *, paged: bool = True) -> None:
        """Write text, through a pager where a person reads and did not ask for none."""
        height = terminal_size(1).lines or DEFAULT_LINES
        if paged and self._pager and len(lines) >= height and page(lines, self._environ):
            return
        if lines:
            write("\n".join(lines))

    def table(
        self, columns: tuple[Column[T], ...], rows: Sequence[T], colour: Callable[[T], str] = uncoloured
    ) -> list[str]:
        """The lines of a table as `render`."""
        return render(columns, rows, legend=self.legend, colours=self.colours, width=self.width, colour=colour)

    def note(self, text: str) -> None:
        """One line on stderr beside the answer."""
        complain(text)


def write(text: str) -> None:
    """Write to stdout what is then out, or not: a full disk behind it does not wait for the end.

    Raises: BrokenPipeError if nobody reads; KeeperError if it cannot be written (ENOSPC, EIO).
    """
    try:
        print(text, flush=True)
    except OSError as error:
        _discard_output()
        if isinstance(error, BrokenPipeError):
            raise
        raise KeeperError(f"cannot write the output: {error.strerror}") from error


def flush() -> bool:
    """Have stdout out before the process ends; False if nobody reads it any more, or its disk is full."""
    try:
        print(end="", flush=True)
    except OSError:
        _discard_output()
        return False
    return True


def _discard_output() -> None:
    """Let what is buffered go nowhere: the interpreter would try it again at exit, with a complaint of its own."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    """Write one line on stderr, whatever `text` contains."""
    print(f"journalkeeper: {shown(text)}", file=sys.stderr)


def _width(environ: Mapping[str, str], *, terminal: bool) -> int | None:
    """The columns that a table may have; at least 40."""
    found = columns(environ) or (DEFAULT_COLUMNS if terminal else None)
    return found and max(40, found)


def columns(environ: Mapping[str, str] = os.environ) -> int | None:
    """COLUMNS=, else the width of the terminal on stdout; None where neither tells."""
    asked = environ.get("COLUMNS", "")
    if asked.isdecimal() and len(asked) < 10 and int(asked) > 0:
        return int(asked)
    return terminal_size(1).columns or None


def terminal_size(descriptor: int) -> os.terminal_size:
    """The columns and lines of a terminal; 0 of what it does not tell, or where there is none."""
    try:
        return os.get_terminal_size(descriptor)
    except OSError:
        return os.terminal_size((0, 0))


def is_terminal(descriptor: int) -> bool:
    """Whether a person sees what is written to it; a closed descriptor is none."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def colours_wanted(environ: Mapping[str, str]) -> bool:
    """Whether a terminal is to have colours: SYSTEMD_COLORS, else NO_COLOR, else TERM decides.

    Source: systemd(1), "Environment"; https://no-color.org/.
    """
    asked = environ.get("SYSTEMD_COLORS", "")
    if asked:
        return switched(asked) is not False  # "16" and "256" are colours too
    return not environ.get("NO_COLOR") and environ.get("TERM") not in {None, "dumb"}
