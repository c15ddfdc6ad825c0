# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the states of units from PID 1, where the machine's journald stores its journal, and the size that our drop-in
allows it.

Source: systemctl(1), show; org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from journalkeeper.health.evidence import Storage, Unit, Unknown
from journalkeeper.journald import conf, control, layout
from journalkeeper.model.errors import FileError

RETENTION: Final = "/etc/systemd/journald.conf.d/60-journalkeeper-retention.conf"
"""The drop-in that `journalkeeper retention --apply` writes."""

ANSWER_S: Final = 10.0
"""PID 1 answers in milliseconds, unless it is stopped or its bus is."""

OURS: Final = tuple(f"journalkeeper{name}" for name in (".service", ".timer", "-defrag.timer", "-shutdown.service"))
PROPERTIES: Final = "Id,ActiveState,SubState,UnitFileState,Result,StateChangeTimestampMonotonic"


def read_units(names: Sequence[str] = OURS) -> tuple[Unit, ...] | Unknown:
    """Return the state of each named unit, or Unknown with the reason if systemd does not answer within ANSWER_S."""
    words = ("systemctl", "show", f"--property={PROPERTIES}", "--", *names)
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=ANSWER_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()
        return Unknown(f"PID 1 cannot be asked for the states of units: {said}")
    now_us = time.monotonic_ns() // 1000
    shown = [dict(line.split("=", 1) for line in block.splitlines()) for block in done.stdout.strip().split("\n\n")]
    return tuple(
        Unit(
            *(one["Id"], one["ActiveState"], one["SubState"], one["UnitFileState"], one.get("Result", "")),
            age_us=max(0, now_us - int(one.get("StateChangeTimestampMonotonic") or now_us)),
        )
        for one in shown
    )


def read_storage() -> Storage | Unknown:
    """Return the storage of the main journald; Unknown if it has no socket, or a configuration cannot be read."""
    if not os.path.exists(control.get_socket_path()):
        return Unknown("no journald runs here")
    target = None
    try:
        settings = conf.read_settings()
        with suppress(FileNotFoundError), open(RETENTION, encoding="utf-8", errors="replace") as file:
            target = conf.parse_target(file.read(4096))
    except (FileError, OSError) as error:
        return Unknown(str(error))
    return Storage(
        storage=settings.storage,
        persistent_directory=os.path.isdir(layout.TOP),
        flushed=os.path.exists(f"{control.RUNTIME}/flushed"),
        retention=target,
    )
