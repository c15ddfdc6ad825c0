# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs inside a guest: lets its system.journal live through FLUSHES real flushes of MESSAGES messages.

The one rule: journald itself does every flush (SIGRTMIN+1) and nothing but Python's own
library is needed. Usage: python3 ager.py FLUSHES MESSAGES
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

STATE_OFFSET, ONLINE = 16, 1


def entry(flush: int, number: int) -> bytes:
    """One message by journald's native protocol."""
    fields = {
        "MESSAGE": f"flush {flush} message {number}: connection from 192.0.2.{number} port {40000 + flush} accepted",
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "ager",
        "AGER_REQUEST": f"{time.time_ns():016x}-{number:04x}",
    }
    words = ((name.encode(), value.encode()) for name, value in fields.items())
    return b"".join(name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n" for name, value in words)


def wait_until(active: Path, *, online: bool) -> None:
    """Wait for the state byte of the active file: ONLINE once appended to, else once synced."""
    deadline = time.monotonic() + 60
    while True:
        with active.open("rb") as file:
            if (os.pread(file.fileno(), 1, STATE_OFFSET)[0] == ONLINE) == online:
                return
        if time.monotonic() > deadline:
            raise SystemExit(f"ager: {active} did not become {'ONLINE' if online else 'OFFLINE'} in 60 s")
        time.sleep(0.002)


def main() -> None:
    """Age the journal."""
    flushes, messages = int(sys.argv[1]), int(sys.argv[2])
    show = ["systemctl", "show", "--property=MainPID", "--value", "systemd-journald.service"]
    journald = int(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
    active = Path("/var/log/journal", Path("/etc/machine-id").read_text().strip(), "system.journal")
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.connect("/run/systemd/journal/socket")
    for flush in range(flushes):
        for number in range(messages):
            channel.send(entry(flush, number))
        wait_until(active, online=True)
        os.kill(journald, signal.SIGRTMIN + 1)
        wait_until(active, online=False)


if __name__ == "__main__":
    main()
