# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the machine says of itself: versions, the length of a queue, where its journald writes."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Final

from journalkeeper.health.evidence import Storage, System, Unknown
from journalkeeper.journald import conf, control, layout
from journalkeeper.model.errors import FileError
from journalkeeper.report.retention import target_in

QLEN: Final = "/proc/sys/net/unix/max_dgram_qlen"
RETENTION: Final = "/etc/systemd/journald.conf.d/60-journalkeeper-retention.conf"
"""The drop-in of `journalkeeper retention --apply`."""


def system() -> System:
    """The kernel's and systemd's versions, and the queue's length."""
    name = os.uname()
    return System(name.release, name.version, _systemd(), _queue())


def _systemd() -> str | Unknown:
    """systemd's version as its package has it; Source: --version, "systemd 252 (252.39-1~deb12u2)"."""
    try:
        said = subprocess.run(["journalctl", "--version"], capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return Unknown(f"journalctl cannot be run: {error.strerror}")
    found = re.match(r"systemd (\d+)(?: \((\d[^)]*)\))?", said.stdout)
    if found is None:
        return Unknown(f"journalctl --version says {said.stdout[:80]!r}")
    return found[2] or found[1]


def _queue() -> int | None:
    try:
        with open(QLEN, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None  # the rule says that it is not known


def storage() -> Storage | Unknown:
    """Where the main journald writes."""
    if not os.path.exists(control.socket_path()):
        return Unknown("no journald runs here")
    try:
        settings = conf.settings()
        target = retention_bytes()
    except (FileError, OSError) as error:
        return Unknown(str(error))
    return Storage(
        storage=settings.storage,
        persistent_directory=os.path.isdir(layout.TOP),
        flushed=os.path.exists(f"{control.RUNTIME}/flushed"),
        retention_bytes=target,
    )


def retention_bytes() -> int | None:
    """What our drop-in for journald wants the journal to really take, None without one. Raises: OSError."""
    try:
        with open(RETENTION, encoding="utf-8", errors="replace") as file:
            return target_in(file.read(4096))
    except FileNotFoundError:
        return None
