# SPDX-License-Identifier: LGPL-2.1-or-later
"""The terminal: its size and colours, and the pager for long output.

A root tool starts no program that the environment names: the pager is less, and less starts no other program.
Source: systemd(1), "Environment", for the options of less; https://no-color.org/; less(1), LESSSECURE.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

DEFAULT_COLUMNS: Final = 80
"""The width of a terminal that does not report one."""

LESS: Final = {"LESS": "FRSXMK", "LESSCHARSET": "utf-8", "LESSSECURE": "1"}
"""The pager's part of its environment."""


def columns() -> int | None:
    """Return COLUMNS=, else the width of the terminal on stdout, or None if neither is known."""
    return shutil.get_terminal_size((0, 0)).columns or None


def wants_colours(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal gets colours: not if TERM is not set or "dumb", or if NO_COLOR is not empty."""
    return not environ.get("NO_COLOR") and environ.get("TERM") not in {None, "dumb"}


def page(lines: Sequence[str], environ: Mapping[str, str]) -> bool:
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
