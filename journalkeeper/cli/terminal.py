# SPDX-License-Identifier: LGPL-2.1-or-later
"""The terminal: its size and colours, the pager for long output, and polkit's agent, which asks for a password there.

A root tool starts no pager that the environment names, unless SYSTEMD_PAGERSECURE declares the environment trusted.
Source: systemd(1), "Environment": SYSTEMD_PAGER, SYSTEMD_PAGERSECURE, SYSTEMD_LESS; pkttyagent(1), --notify-fd and
--fallback.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from journalkeeper.model.units import parse_bool

DEFAULT_COLUMNS: Final = 80
"""The width of a terminal that does not report one."""

AGENT: Final = "pkttyagent"


def columns() -> int | None:
    """Return COLUMNS=, else the width of the terminal on stdout, or None if neither is known."""
    return shutil.get_terminal_size((0, 0)).columns or None


def wants_colours(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal gets colours: SYSTEMD_COLORS, else NO_COLOR, else TERM decides.

    Source: systemd(1), "Environment"; https://no-color.org/.
    """
    asked = environ.get("SYSTEMD_COLORS", "")
    if asked:
        return parse_switch(asked) is not False  # "16" and "256" are colours too
    return not environ.get("NO_COLOR") and environ.get("TERM") not in {None, "dumb"}


def parse_switch(text: str) -> bool | None:
    """Return the value of a boolean environment variable; None if it is not a boolean."""
    try:
        return parse_bool(text.strip())
    except ValueError:
        return None


def list_pagers(environ: Mapping[str, str]) -> list[list[str]]:
    """Return the pagers to try in turn, each as words; empty if the environment turns paging off."""
    asked = environ.get("SYSTEMD_PAGER", environ.get("PAGER", "less"))
    if environ.get("TERM") == "dumb" or asked.strip() in {"", "cat"}:
        return []
    return [*([asked.split()] if "SYSTEMD_PAGERSECURE" in environ else []), ["less"]]


def make_pager_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the pager's environment: `environ` with less's options, and its shell escapes off by default."""
    secure = parse_switch(environ.get("SYSTEMD_PAGERSECURE", "")) is not False
    return {
        **environ,
        "LESS": environ.get("SYSTEMD_LESS", "FRSXMK"),
        "LESSCHARSET": environ.get("SYSTEMD_LESSCHARSET", "utf-8"),
        "LESSSECURE": "1" if secure else "0",
    }


def page(lines: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Show lines in the first pager that exists, and wait until it ends. Return False if there is none."""
    command = next((words for words in list_pagers(environ) if shutil.which(words[0])), None)
    if command is None:
        return False
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=make_pager_environment(environ))
    # The pager handles Ctrl-C while it runs: ending before it would leave the terminal in raw mode.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        # communicate() accepts a pager that ends before it has read everything.
        process.communicate("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
    finally:
        signal.signal(signal.SIGINT, before)
    return True


@contextmanager
def run_polkit_agent() -> Iterator[None]:
    """Run polkit's agent during the block, unless the session has one already (--fallback).

    Only an unprivileged user at a terminal needs it. Without an agent, or without polkit, the service decides.
    """
    if os.geteuid() == 0 or not os.isatty(0) or not os.isatty(2) or shutil.which(AGENT) is None:
        yield
        return
    readable, writable = os.pipe()
    agent = subprocess.Popen([AGENT, "--notify-fd", str(writable), "--fallback"], pass_fds=[writable])
    os.close(writable)
    with os.fdopen(readable, "rb") as ready:
        ready.read()  # ends when the agent is known to polkit, or has ended
    try:
        yield
    finally:
        agent.terminate()
        agent.wait()
