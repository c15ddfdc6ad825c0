# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the states of the units that findings are about, from PID 1 with systemctl.

Source: systemctl(1), show; org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

from journalkeeper.bus.names import bus_address
from journalkeeper.health.evidence import Unit, Unknown

ANSWER_S: Final = 10.0
"""PID 1 answers in milliseconds, unless it is stopped or its bus is."""

JOURNALD: Final = "systemd-journald.service"
OURS: Final = tuple(f"journalkeeper{name}" for name in (".service", ".timer", "-defrag.timer", "-shutdown.service"))
RIVALS: Final = ("btrfs-defrag.timer", "beesd@*.service")
PROPERTIES: Final = "Id,LoadState,ActiveState,SubState,UnitFileState,Result,NRestarts"


def units(namespaces: Sequence[str] = ()) -> tuple[Unit, ...] | Unknown:
    """Return the states of journalkeeper's units, and of the installed units of journald and of rival tools.

    A unit of journalkeeper that is not installed is included. If systemd cannot be asked, return Unknown with the
    reason.
    """
    if bus_address() is None:
        return Unknown("there is no system bus, so the states of units are unknown")
    names = (*OURS, JOURNALD, *(f"systemd-journald@{name}.service" for name in namespaces), *RIVALS)
    words = ("systemctl", "show", f"--property={PROPERTIES}", "--", *names)
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMCTL_FORCE_BUS": "1"}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Unknown(f"PID 1 cannot be asked for the states of units: {error}")
    if done.returncode:
        return Unknown(f"PID 1 cannot be asked for the states of units: {done.stderr.strip()}")
    shown = [dict(line.split("=", 1) for line in block.splitlines()) for block in done.stdout.strip().split("\n\n")]
    return tuple(_unit(one) for one in shown if one["LoadState"] == "loaded" or one["Id"] in OURS)


def _unit(shown: dict[str, str]) -> Unit:
    return Unit(
        shown["Id"],
        shown["ActiveState"],
        shown["SubState"],
        enabled=shown["UnitFileState"],
        result=shown.get("Result", ""),
        restarts=int(shown.get("NRestarts", 0)),
    )
