# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a command's words go: stdout, a pager, JSON, and notes on stderr.

The one rule: stdout has the answer and nothing else; everything on stderr is one line each.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from journalkeeper.cli.text import shown, switched
from journalkeeper.model.errors import KeeperError

if TYPE_CHECKING:
    import argparse


class Output:
    """How the command line said that answers are to be written.

    `json` is "off", "short" or "pretty"; `legend` whether tables have headings and footers;
    `terminal` whether a person reads along; `colours` whether that person's terminal has them.
    """

    def __init__(self, args: argparse.Namespace, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self.json: str = args.json
        self.legend: bool = not args.no_legend
        self.terminal = is_terminal(1)
        self._pager = self.terminal and not args.no_pager
        self.colours = self.terminal and colours_wanted(self._environ)

    def document(self, value: object) -> None:
        r"""Write JSON: one line, or indented with --json=pretty.

        Always ASCII: a byte of a path that is not UTF-8 is \udcXX, XX being the byte, which
        json.loads and os.fsencode turn back into it (PEP 383).
        """
        import json  # noqa: PLC0415 - 5 ms that only --json needs

        pretty = self.json == "pretty"
        write(json.dumps(value, indent=2) if pretty else json.dumps(value, separators=(",", ":")))

    def lines(self, lines: Sequence[str], *, paged: bool = True) -> None:
        """Write text, through a pager where a person reads and did not ask for none."""
        if paged and self._pager:
            from journalkeeper.cli.pager import page  # noqa: PLC0415 - subprocess is for terminals only

            if page(lines, self._environ):
                return
        if lines:
            write("\n".join(lines))

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
        # what is buffered would be tried again at exit, with a complaint of the interpreter's own
        if isinstance(sys.stdout, io.TextIOWrapper):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise KeeperError(f"cannot write the output: {error.strerror}") from error


def complain(text: str) -> None:
    """Write one line on stderr, whatever `text` contains."""
    print(f"journalkeeper: {shown(text)}", file=sys.stderr)


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
