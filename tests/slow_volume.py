# SPDX-License-Identifier: LGPL-2.1-or-later
"""A btrfs on a disk that does as it is told (journalkeeper/lab/slowdisk.py)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from journalkeeper.lab.slowdisk import Control, slow_disk
from journalkeeper.lab.volume import PREFIX, ScratchVolume, run


@contextmanager
def on_slow_disk(size: str) -> Iterator[tuple[ScratchVolume, Control]]:
    """A volume of this size, sparse, and its disk."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as place:
        image = Path(place, "disk0.img")
        run("truncate", "-s", size, image)
        run("mkfs.btrfs", "-q", "-d", "single", image)
        with slow_disk(image) as disk, ScratchVolume(base=Path(place)) as volume:
            yield volume, disk
