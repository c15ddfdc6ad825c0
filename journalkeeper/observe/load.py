# SPDX-License-Identifier: LGPL-2.1-or-later
"""How busy the disks of a volume are with the work of others."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from psutil import disk_io_counters

from journalkeeper.btrfs.maintenance import list_disks

LOOK_S: Final = 0.25
"""How long to watch the disks before a run: the kernel counts their time in ticks of 1 to 10 ms."""


def others_busy_percent(uuids: Iterable[str], length_s: float) -> dict[str, int]:
    """Do nothing for so long: the share of that time in which the busiest disk of each volume was at work.

    What we did before was written back by then, so it is the work of others. A volume of which
    nobody can tell is left out.
    """
    names = {uuid: list_disks(uuid) for uuid in uuids}
    began_s, before = time.monotonic(), _busy_ms()
    time.sleep(length_s)
    after, length_ms = _busy_ms(), (time.monotonic() - began_s) * 1000
    shares = {
        name: min(100, round(100 * (after[name] - ms) / length_ms)) for name, ms in before.items() if name in after
    }
    known = {uuid: [shares[name] for name in found if name in shares] for uuid, found in names.items()}
    return {uuid: max(found) for uuid, found in known.items() if found}


def _busy_ms() -> dict[str, int]:
    """For how long each block device has been busy since the machine started."""
    counters: dict[str, Any] = disk_io_counters(perdisk=True, nowrap=False) or {}
    return {name: one.busy_time for name, one in counters.items()}
