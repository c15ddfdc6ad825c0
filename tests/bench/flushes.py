# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a flush of a real journald costs on this kernel: its extents, its bytes on the disk, and a later cold read."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from journalkeeper.btrfs import extent_count
from journalkeeper.probe.bed import Bed, bed
from journalkeeper.probe.scratch_volume import run
from tests.volumes import drop_caches

FLUSHES: Final = 60


def measure(place: Bed) -> tuple[int, int]:
    """Return the extents of the active file and the bytes written to the disk, after a sync."""
    run("sync", "-f", place.journald.journal)
    with place.journald.active.open("rb") as file:
        return extent_count.count(file.fileno(), sync=True), place.volume.count_written_bytes()


def main() -> None:
    """Print the figures of one run on a datacow file."""
    with bed() as place:
        journald = place.journald
        run("chattr", "-C", journald.journal)
        journald.rotate()
        journald.age(5)
        extents, written = measure(place)
        journald.age(FLUSHES)
        more_extents, more_written = measure(place)
        journald.stop()
        drop_caches()
        statistics = Path("/sys/class/block", Path(place.volume.device).name, "stat")
        before = int(statistics.read_text().split()[0])
        journald.active.read_bytes()
        requests = int(statistics.read_text().split()[0]) - before
    each, kib = (more_extents - extents) / FLUSHES, (more_written - written) / FLUSHES / 1024
    found = f"{each:.1f} extents and {kib:,.0f} KiB a flush, {requests} requests a cold read"
    sys.stdout.write(f"Linux {os.uname().release}: {found}\n")


if __name__ == "__main__":
    main()
