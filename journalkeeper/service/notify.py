# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages to the service manager: ready, status, alive, stopping.

Without a service manager nothing is sent.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from systemd import daemon

from journalkeeper.model.escape import shown


class Notify:
    """The protocol of Type=notify. `watchdog_s` is the interval between calls of `alive`, None without a watchdog."""

    def __init__(self) -> None:
        wait_us = os.environ.get("WATCHDOG_USEC", "")
        ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(wait_us) / 2e6 if ours and wait_us.isdecimal() and int(wait_us) else None
        self._said = ""

    def ready(self) -> None:
        """Report that the watches are set, so that units ordered after this one start."""
        _send("READY=1")

    def reloading(self) -> None:
        """Report that the configuration is being read again, until `ready` is called."""
        _send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def status(self, sentence: str) -> None:
        """Set the line in `systemctl status`. Control characters are escaped, because each line is a command."""
        if sentence != self._said:
            self._said = sentence
            _send(f"STATUS={shown(sentence)}")

    def alive(self) -> None:
        """Report that the event loop still runs."""
        _send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that the service is about to end."""
        _send("STOPPING=1")


def _send(message: str) -> None:
    """Send one message. If the service manager has gone, the message is lost and the service continues."""
    with suppress(OSError):
        daemon.notify(message)
