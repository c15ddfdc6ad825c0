# SPDX-License-Identifier: LGPL-2.1-or-later
"""The terminal: its size and colours, the pager for long output, and polkit's agent, which asks for a password there.

A root tool starts no pager that the environment names, unless SYSTEMD_PAGERSECURE declares the environment trusted.
Source: systemd(1), "Environment": SYSTEMD_PAGER, SYSTEMD_PAGERSECURE, SYSTEMD_LESS; pkttyagent(1), --notify-fd and
--fallback.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from journalkeeper.model.units import parse_bool

DEFAULT_COLUMNS, DEFAULT_LINES = 80, 24
"""The size of a terminal that does not report one."""

AGENT: Final = "pkttyagent"


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


def parse_switch(text: str) -> bool | None:
    """Return the value of a boolean environment variable; None if it is not a boolean."""
    try:
        return parse_bool(text.strip())
    except ValueError:
        return None


def list_pagers(environ: Mapping[str, str]) -> list[list[str]]:
    """Return the pagers to try in turn, each as words; empty if the environment turns paging off."""
    if environ.get("TERM") == "dumb":
        return []
    asked = environ.get("SYSTEMD_PAGER", environ.get("PAGER"))
    if asked is not None and asked.strip() in {"", "cat"}:
        return []
    if asked is None or "SYSTEMD_PAGERSECURE" not in environ:
        return [["less"]]
    return [shlex.split(asked), ["less"]]


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
    for command in list_pagers(environ):
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=make_pager_environment(environ))
        except FileNotFoundError:
            continue
        # The pager handles Ctrl-C while it runs: ending before it would leave the terminal in raw mode.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            # communicate() accepts a pager that ends before it has read everything.
            process.communicate("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
        finally:
            signal.signal(signal.SIGINT, before)
        return True
    return False


@contextmanager
def run_polkit_agent() -> Iterator[None]:
    """Run polkit's agent during the block, unless the session has one already (--fallback).

    Only an unprivileged user at a terminal needs it; without an agent polkit refuses.
    """
    if os.geteuid() == 0 or not is_terminal(0) or not is_terminal(2):
        yield
        return

    readable, writable = os.pipe()
    words = [AGENT, "--notify-fd", str(writable), "--fallback"]
    try:
        agent = subprocess.Popen(words, pass_fds=[writable])
    except FileNotFoundError:  # polkit is not installed: the service decides
        agent = None
    finally:
        os.close(writable)
    with os.fdopen(readable, "rb") as ready:
        ready.read()  # ends when the agent is known to polkit, or has ended
    try:
        yield
    finally:
        if agent is not None:
            agent.terminate()
            agent.wait()
