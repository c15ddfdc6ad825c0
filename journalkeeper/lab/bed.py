# SPDX-License-Identifier: LGPL-2.1-or-later
"""A scratch btrfs with a private journald that writes on it.

Journald ends before its volume goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from . import journald, volume
from .journald import PrivateJournald
from .volume import ScratchVolume


class Bed(NamedTuple):
    """The volume, and the journald whose directory is the volume's root."""

    volume: ScratchVolume
    journald: PrivateJournald

    @property
    def directory(self) -> Path:
        """What `journalkeeper -D` is given."""
        return self.journald.directory


def missing() -> str | None:
    """Why no bed can be made here, in one line; None if it can."""
    return volume.missing() or journald.missing()


@contextmanager
def bed(
    *settings: str, size: str = "1G", sync_interval: str = "5min", options: str = "", parent: str | None = None
) -> Iterator[Bed]:
    """Make a bed of `settings` (journald.conf(5)) on a volume of `size`, mounted with `options`."""
    with (
        ScratchVolume(size, options=options, parent=parent) as scratch,
        PrivateJournald(scratch.mountpoint, sync_interval=sync_interval, settings=settings) as daemon,
    ):
        yield Bed(scratch, daemon)
