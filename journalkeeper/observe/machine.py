# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read facts about the machine: versions, the length of a socket's queue, the storage of its journald."""

from __future__ import annotations

import os
import re
import subprocess
from typing import Final

from journalkeeper.health.evidence import Storage, Unknown
from journalkeeper.journald import conf, control, layout
from journalkeeper.model.errors import FileError

QLEN: Final = "/proc/sys/net/unix/max_dgram_qlen"
RETENTION: Final = "/etc/systemd/journald.conf.d/60-journalkeeper-retention.conf"
"""The drop-in that `journalkeeper retention --apply` writes."""


def read_systemd_version() -> str | Unknown:
    """Return the version of systemd's package, such as "252.39-1~deb12u2", or "252" if only that is known.

    Return Unknown if journalctl cannot be run or prints another form. Source: journalctl --version, "systemd 252
    (252.39-1~deb12u2)".
    """
    try:
        said = subprocess.run(["journalctl", "--version"], capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return Unknown(f"journalctl cannot be run: {error.strerror}")
    found = re.match(r"systemd (\d+)(?: \((\d[^)]*)\))?", said.stdout)
    if found is None:
        return Unknown(f"journalctl --version printed an unknown form: {said.stdout[:80]!r}")
    return found[2] or found[1]


def read_queue_length() -> int | Unknown:
    """Return the length of the queue of a new datagram socket (net.unix.max_dgram_qlen).

    Return Unknown if the kernel does not show it.
    """
    try:
        with open(QLEN, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return Unknown("the kernel does not show net.unix.max_dgram_qlen")


def read_storage() -> Storage | Unknown:
    """Return where the host's main journald stores its journal, or Unknown with the reason."""
    if not os.path.exists(control.get_socket_path()):
        return Unknown("no journald runs here")
    try:
        settings = conf.read_settings()
        target = read_retention_bytes()
    except (FileError, OSError) as error:
        return Unknown(str(error))
    return Storage(
        storage=settings.storage,
        persistent_directory=os.path.isdir(layout.TOP),
        flushed=os.path.exists(f"{control.RUNTIME}/flushed"),
        retention_bytes=target,
    )


def read_retention_bytes() -> int | None:
    """Return the disk usage that our drop-in for journald aims at, or None without a drop-in. Raises: OSError."""
    try:
        with open(RETENTION, encoding="utf-8", errors="replace") as file:
            return conf.parse_target(file.read(4096))
    except FileNotFoundError:
        return None
