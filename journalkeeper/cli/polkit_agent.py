# SPDX-License-Identifier: LGPL-2.1-or-later
"""Start polkit's agent, which asks for a password on the terminal, as systemctl does.

Only a user at a terminal who is not root needs it; without an agent polkit refuses. Source: pkttyagent(1), --notify-fd
and --fallback.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from journalkeeper.cli.output import is_terminal

PROGRAM = "pkttyagent"


@contextmanager
def for_terminal() -> Iterator[None]:
    """Run an agent during the block, unless the session has one already (--fallback)."""
    if os.geteuid() == 0 or not is_terminal(0) or not is_terminal(2):
        yield
        return

    readable, writable = os.pipe()
    words = [PROGRAM, "--notify-fd", str(writable), "--fallback"]
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
