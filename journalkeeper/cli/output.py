# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write a command's output: to stdout, a pager, as JSON, and notes to stderr.

Standard output has the answer and nothing else; everything on stderr is one line each.

A root tool starts no program that the environment names: the pager is less, and less starts no other program.
Source: systemd(1), "Environment", for the options of less; https://no-color.org/; less(1), LESSSECURE.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from journalkeeper.cli.table import Table, render, stack_blocks, wrap_sentence
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.schema import write_json
from journalkeeper.model.units import escape

DEFAULT_COLUMNS: Final = 80
"""The width of a terminal that does not report one."""

LESS: Final = {"LESS": "FRSXMK", "LESSCHARSET": "utf-8", "LESSSECURE": "1"}
"""The pager's part of its environment."""

LEAST_COLUMNS: Final = 40
Block: TypeAlias = Table[Any] | Sequence[str | tuple[str, str]]
"""A part of a command's text: a table, or sentences. A sentence can have a head, which stays at the left of its lines;
one that is indented by four spaces, such as a command, stays whole.
"""


class Output:
    """The form of a command's output, from its options and its terminal.

    `json` is "off", "short" or "pretty"; `quiet` allows only JSON and notes. `legend` permits headings and footers.
    `width` is `find_width`, at least LEAST_COLUMNS. If it is not known, it is DEFAULT_COLUMNS on a terminal, or else
    None: for a program, nothing is shortened.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.json: str = args.json
        self.quiet: bool = args.quiet
        self.legend: bool = not args.no_legend
        terminal = os.isatty(1)
        self._pager = terminal and not args.no_pager
        self.colours = terminal and wants_colours(os.environ)
        known = find_width() or (DEFAULT_COLUMNS if terminal else None)
        self.width = None if known is None else max(LEAST_COLUMNS, known)

    def write_document(self, value: object) -> None:
        """Write `value` as `write_json`, indented with --json=pretty. Ignore --quiet. Raises: as `write`."""
        write(write_json(value, indent=2 if self.json == "pretty" else None))

    def show(self, document: object, *blocks: Block, legend: Sequence[Block] = ()) -> None:
        """Write an answer to stdout: with --json only `document`, else `blocks`, then `legend`. Raises: as `write`.

        Text that fills the terminal goes through a pager, unless --no-pager is given. With --quiet no text is written.
        """
        if self.json != "off":
            self.write_document(document)
            return
        lines = stack_blocks([self.format(block) for block in (*blocks, *(legend if self.legend else ()))])
        is_long = len(lines) >= shutil.get_terminal_size().lines
        if not lines or self.quiet or (self._pager and is_long and show_in_pager(lines, os.environ)):
            return
        write("\n".join(lines))

    def format(self, block: Block) -> list[str]:
        """Return the lines of `block`: a table with aligned columns, or sentences that are wrapped to the width."""
        if isinstance(block, Table):
            return render(block, legend=self.legend, colours=self.colours, width=self.width)
        pairs = (one if isinstance(one, tuple) else ("", one) for one in block)
        return [line for head, text in pairs for line in wrap_sentence(text, self.width, head)]

    def note(self, *texts: str) -> None:
        """Write each text to stderr as `complain` does, also with --quiet: a warning, no part of the answer."""
        complain(*texts)


def write(text: str) -> None:
    """Write `text` and a line end to stdout and flush at once, so that an error such as a full disk shows here.

    After an error, stdout leads to /dev/null.

    Raises: BrokenPipeError if the reader has gone; KeeperError if the text cannot be written (ENOSPC, EIO).
    """
    try:
        print(text, flush=True)
    except OSError as error:
        if isinstance(sys.stdout, io.TextIOWrapper):  # the interpreter would write the rest at exit, and fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise KeeperError(f"cannot write the output: {error.strerror}") from error


def complain(*texts: str) -> None:
    """Write each text to stderr as a line "journalkeeper: TEXT", with control characters escaped. Raises: OSError."""
    for text in texts:
        print(f"journalkeeper: {escape(text)}", file=sys.stderr)


def find_width() -> int | None:
    """Return COLUMNS=, else the width of the terminal on stdout, or None if neither is known."""
    return shutil.get_terminal_size((0, 0)).columns or None


def wants_colours(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal gets colours: not if TERM is not set or "dumb", or if NO_COLOR is not empty."""
    return not environ.get("NO_COLOR") and environ.get("TERM") not in {None, "dumb"}


def show_in_pager(lines: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Show lines in less, wait until it ends, and return True. Meanwhile Ctrl-C does not end this process.

    Return False and show nothing if less is not installed, if SYSTEMD_PAGER or else PAGER is empty or "cat", or with
    TERM=dumb. Any other value of these variables also means less.
    """
    asked = environ.get("SYSTEMD_PAGER", environ.get("PAGER", "less"))
    if environ.get("TERM") == "dumb" or asked.strip() in {"", "cat"} or shutil.which("less") is None:
        return False
    process = subprocess.Popen(["less"], stdin=subprocess.PIPE, env={**environ, **LESS})
    # The pager handles Ctrl-C while it runs: ending before it would leave the terminal in raw mode.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # communicate() accepts a pager that ends before it has read everything.
        process.communicate("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
    finally:
        signal.signal(signal.SIGINT, before)
    return True
