# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages to the service manager: ready, status, alive, stopping.

Without a service manager nothing is sent.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
from contextlib import suppress

from systemd import daemon

from journalkeeper.model.escape import escape


class Notify:
    """The protocol of Type=notify. `watchdog_s` is the interval between two "WATCHDOG=1", None without a watchdog."""

    def __init__(self) -> None:
        wait_us = os.environ.get("WATCHDOG_USEC", "")
        ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(wait_us) / 2e6 if ours and wait_us.isdecimal() and int(wait_us) else None
        self._said = ""

    def send(self, message: str) -> None:
        """Send one message. If the service manager has gone, the message is lost and the service continues."""
        with suppress(OSError):
            daemon.notify(message)

    def status(self, sentence: str) -> None:
        """Set the line in `systemctl status`. Escape it, because each line is a command to the service manager."""
        if sentence != self._said:
            self._said = sentence
            self.send(f"STATUS={escape(sentence)}")
