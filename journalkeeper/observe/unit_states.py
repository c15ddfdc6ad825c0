# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the states of units from PID 1 with systemctl.

Source: systemctl(1), show; org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from typing import Final

from journalkeeper.health.evidence import Unit, Unknown

ANSWER_S: Final = 10.0
"""PID 1 answers in milliseconds, unless it is stopped or its bus is."""

OURS: Final = tuple(f"journalkeeper{name}" for name in (".service", ".timer", "-defrag.timer", "-shutdown.service"))
PROPERTIES: Final = "Id,ActiveState,SubState,UnitFileState,Result,StateChangeTimestampMonotonic"


def read_units(names: Sequence[str] = OURS) -> tuple[Unit, ...] | Unknown:
    """Return the state of each named unit, or Unknown with the reason if systemd does not answer within ANSWER_S."""
    words = ("systemctl", "show", f"--property={PROPERTIES}", "--", *names)
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Unknown(f"PID 1 cannot be asked for the states of units: {error}")
    if done.returncode:
        return Unknown(f"PID 1 cannot be asked for the states of units: {done.stderr.strip()}")
    now_us = time.monotonic_ns() // 1000
    shown = [dict(line.split("=", 1) for line in block.splitlines()) for block in done.stdout.strip().split("\n\n")]
    return tuple(
        Unit(
            *(one["Id"], one["ActiveState"], one["SubState"], one["UnitFileState"], one.get("Result", "")),
            age_us=max(0, now_us - int(one.get("StateChangeTimestampMonotonic") or now_us)),
        )
        for one in shown
    )
