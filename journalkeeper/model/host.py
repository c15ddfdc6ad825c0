# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a plan is made from."""

from __future__ import annotations

from typing import NamedTuple

from journalkeeper.model.files import Instance, JournalFile, Volume
from journalkeeper.model.plans import Past, Refusal


class Host(NamedTuple):
    """One look at everything, at `now_us`.

    `past` has the last rewrite of each file by (device, inode), `refused` the last try that
    came to nothing; `written_bytes` is what was written in the budget's present day.
    `rotations` is how many rotations were asked for in the last 24 hours. `unshared` are the directories in
    which something was rewritten beside a snapshot not long ago, as recorded.
    """

    now_us: int
    files: tuple[JournalFile, ...]
    instances: tuple[Instance, ...]
    volumes: tuple[Volume, ...]
    past: dict[tuple[int, int], Past]
    written_bytes: int
    refused: dict[tuple[int, int], Refusal] = {}  # noqa: RUF012 - never changed, like everything here
    rotations: int = 0
    unshared: frozenset[str] = frozenset()
