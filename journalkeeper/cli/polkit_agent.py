# SPDX-License-Identifier: LGPL-2.1-or-later
"""Somebody who can ask for a password: polkit's agent for terminals, as systemctl starts it.

The one rule: only where a person sits at a terminal who is not root; without it polkit says no.
Source: pkttyagent(1), --notify-fd and --fallback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from journalkeeper.cli.output import is_terminal

PROGRAM = "pkttyagent"


@contextmanager
def for_terminal() -> Iterator[None]:
    """Have an agent as long as the block lasts, unless the session has one already (--fallback)."""
    if os.geteuid() == 0 or not is_terminal(0) or not is_terminal(2):
        yield
        return
    import subprocess  # noqa: PLC0415 - for terminals of plain users only

    readable, writable = os.pipe()
    words = [PROGRAM, "--notify-fd", str(writable), "--fallback"]
    try:
        agent = subprocess.Popen(words, pass_fds=[writable])
    except FileNotFoundError:  # no polkit here: the service says who may
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
