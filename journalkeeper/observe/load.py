# SPDX-License-Identifier: LGPL-2.1-or-later
"""The load that other programs put on the disks of a volume, and the host's power supply."""

from __future__ import annotations

import time
from collections.abc import Iterable
from glob import glob
from typing import Any, Final

from psutil import disk_io_counters

from journalkeeper.btrfs.maintenance import list_disks
from journalkeeper.observe.disk_usage import read_text

LOOK_S: Final = 0.25
"""How long to watch the disks before a run. The kernel counts their busy time in ticks of 1 to 10 ms."""

SUPPLIES: Final = "/sys/class/power_supply"


def is_on_battery(supplies: str = SUPPLIES) -> bool:
    """Return whether a battery of the host discharges while no mains supply is online. An unknown state is no battery.

    psutil takes the battery of a mouse for the host's, and knows no supply that is not named AC or AC0.

    Source: Documentation/ABI/testing/sysfs-class-power; systemd, battery-util.c.
    """
    found = [
        [read_text(f"{one}/{name}").strip() for name in ("type", "scope", "status", "online")]
        for one in glob(f"{supplies}/*")
    ]
    if any(kind == "Mains" and online not in {"", "0"} for kind, _, _, online in found):
        return False
    return any(one[0] == "Battery" and one[1] != "Device" and one[2] == "Discharging" for one in found)


def measure_busy_percent(uuids: Iterable[str], length_s: float) -> dict[str, int]:
    """Sleep for `length_s`, and return by volume how busy its busiest disk was, in percent.

    A volume without known disks or statistics is missing. The caller has written back its own work before.
    """
    names = {uuid: list_disks(uuid) for uuid in uuids}
    began_s, before = time.monotonic(), _read_busy_ms()
    time.sleep(length_s)
    after, length_ms = _read_busy_ms(), (time.monotonic() - began_s) * 1000
    shares = {
        name: min(100, round(100 * (after[name] - ms) / length_ms)) for name, ms in before.items() if name in after
    }
    known = {uuid: [shares[name] for name in found if name in shares] for uuid, found in names.items()}
    return {uuid: max(found) for uuid, found in known.items() if found}


def _read_busy_ms() -> dict[str, int]:
    counters: dict[str, Any] = disk_io_counters(perdisk=True, nowrap=False) or {}
    return {name: one.busy_time for name, one in counters.items()}
