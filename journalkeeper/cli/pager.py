# SPDX-License-Identifier: LGPL-2.1-or-later
"""Show long output in a pager, by the rules of journalctl.

A root tool starts no program that the environment names, unless SYSTEMD_PAGERSECURE declares the environment trusted.
Source: systemd(1), "Environment": SYSTEMD_PAGER, SYSTEMD_PAGERSECURE, SYSTEMD_LESS.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence

from journalkeeper.cli.text import parse_switch


def commands(environ: Mapping[str, str]) -> list[list[str]]:
    """Return the pagers to try in turn, each as words; empty if the environment turns paging off."""
    if environ.get("TERM") == "dumb":
        return []
    asked = environ.get("SYSTEMD_PAGER", environ.get("PAGER"))
    if asked is not None and asked.strip() in {"", "cat"}:
        return []
    if asked is None or "SYSTEMD_PAGERSECURE" not in environ:
        return [["less"]]
    return [shlex.split(asked), ["less"]]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
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
    for command in commands(environ):
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment(environ))
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
