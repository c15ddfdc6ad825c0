# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make FLUSHES real flushes of MESSAGES messages to a system.journal: a program for a guest, without other modules.

journald makes every flush, after a signal (SIGRTMIN+1).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path

STATE_OFFSET, ONLINE = 16, 1


def entry(flush: int, number: int) -> bytes:
    """Return one message of journald's native protocol."""
    fields = {
        "MESSAGE": f"flush {flush} message {number}: connection from 192.0.2.{number} port {40000 + flush} accepted",
        "PRIORITY": "6",
        "SYSLOG_IDENTIFIER": "ager",
        "AGER_REQUEST": f"{time.time_ns():016x}-{number:04x}",
    }
    words = ((name.encode(), value.encode()) for name, value in fields.items())
    return b"".join(name + b"\n" + struct.pack("<Q", len(value)) + value + b"\n" for name, value in words)


def have_synced(active: Path, journald: int) -> None:
    """Ask journald to sync, and repeat that each second, because an append ends the state OFFLINE."""
    for _ in range(60):
        os.kill(journald, signal.SIGRTMIN + 1)
        if await_state(active, online=False, timeout_s=1):
            return
    raise SystemExit(f"ager: {active} did not become OFFLINE in 60 s")


def await_state(active: Path, *, online: bool, timeout_s: float) -> bool:
    """Wait until the active file is ONLINE (appended to) or OFFLINE (synced); return False if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while True:
        # while it is rotated, there is none for a moment, then an empty one
        with contextlib.suppress(FileNotFoundError), active.open("rb") as file:
            if (os.pread(file.fileno(), 1, STATE_OFFSET) == bytes([ONLINE])) == online:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)


def main() -> None:
    """Age the journal."""
    words = argparse.ArgumentParser()
    words.add_argument("flushes", type=int)
    words.add_argument("messages", type=int)
    words.add_argument("--namespace", default="")
    asked = words.parse_args()
    suffixes = [asked.namespace] if asked.namespace else []
    unit = f"systemd-journald@{asked.namespace}.service" if suffixes else "systemd-journald.service"
    subprocess.run(["systemctl", "start", unit], check=True)  # a namespace's ends when it is idle
    show = ["systemctl", "show", "--property=MainPID", "--value", unit]
    journald = int(subprocess.run(show, capture_output=True, text=True, check=True).stdout)
    if not journald:  # or the signal would be sent to this process's group
        raise SystemExit(f"ager: {unit} does not run")
    instance = ".".join([Path("/etc/machine-id").read_text().strip(), *suffixes])
    active = Path("/var/log/journal", instance, "system.journal")
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.connect(f"/run/systemd/{'.'.join(['journal', *suffixes])}/socket")
    for flush in range(asked.flushes):
        for number in range(asked.messages):
            channel.send(entry(flush, number))
        if not await_state(active, online=True, timeout_s=60):
            raise SystemExit(f"ager: {active} did not become ONLINE in 60 s")
        have_synced(active, journald)


if __name__ == "__main__":
    main()
