# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read where the machine's journald stores its journal, and the size that our drop-in allows it."""

from __future__ import annotations

import os
from typing import Final

from journalkeeper.health.evidence import Storage, Unknown
from journalkeeper.journald import conf, control, layout
from journalkeeper.model.errors import FileError

RETENTION: Final = "/etc/systemd/journald.conf.d/60-journalkeeper-retention.conf"
"""The drop-in that `journalkeeper retention --apply` writes."""


def read_storage() -> Storage | Unknown:
    """Return the storage of the host's main journald, or Unknown if its socket or a configuration cannot be read."""
    if not os.path.exists(control.get_socket_path()):
        return Unknown("no journald runs here")
    try:
        settings = conf.read_settings()
        target = read_retention_target()
    except (FileError, OSError) as error:
        return Unknown(str(error))
    return Storage(
        storage=settings.storage,
        persistent_directory=os.path.isdir(layout.TOP),
        flushed=os.path.exists(f"{control.RUNTIME}/flushed"),
        retention=target,
    )


def read_retention_target() -> tuple[int, int] | None:
    """Return the target of our drop-in for journald as `conf.parse_target`, or None without a drop-in.

    Raises: OSError if the drop-in cannot be read.
    """
    try:
        with open(RETENTION, encoding="utf-8", errors="replace") as file:
            return conf.parse_target(file.read(4096))
    except FileNotFoundError:
        return None
