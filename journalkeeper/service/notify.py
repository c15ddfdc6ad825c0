# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the service manager hears: ready, what we do, still alive, about to end.

The one rule: without a service manager all of this says nothing and costs nothing.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from systemd import daemon

from journalkeeper.model.escape import shown


class Notify:
    """The protocol of Type=notify. `watchdog_s` is how often to call `alive`; None: nobody waits for it."""

    def __init__(self) -> None:
        wait_us = os.environ.get("WATCHDOG_USEC", "")
        ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(wait_us) / 2e6 if ours and wait_us.isdecimal() and int(wait_us) else None
        self._said = ""

    def ready(self) -> None:
        """The watches are set: whoever waits for us may go on."""
        _send("READY=1")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` ends it."""
        _send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def status(self, sentence: str) -> None:
        """One line for `systemctl status`; a name in it may have any bytes, and each line is a command."""
        if sentence != self._said:
            self._said = sentence
            _send(f"STATUS={shown(sentence)}")

    def alive(self) -> None:
        """The event loop turns."""
        _send("WATCHDOG=1")

    def stopping(self) -> None:
        """We are about to end."""
        _send("STOPPING=1")


def _send(message: str) -> None:
    """One message; a service manager that has gone away meanwhile misses it, and our work does not."""
    with suppress(OSError):
        daemon.notify(message)
