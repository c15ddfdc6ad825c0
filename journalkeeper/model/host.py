# SPDX-License-Identifier: LGPL-2.1-or-later
"""The input of a plan."""

from __future__ import annotations

from typing import NamedTuple

from journalkeeper.model.files import Instance, JournalFile, Volume
from journalkeeper.model.plans import Past, Refusal


class Host(NamedTuple):
    """The state of all journals, volumes and journalds at `now_us`.

    `past` has the last rewrite of each file by (device, inode), `refused` the last failed try. `written_bytes` is the
    number of bytes written in the budget's present day. `rotations` is the number of rotations requested in the last 24
    hours. `unshared` are the directories in which a file that a snapshot shared was recently rewritten, as recorded.
    `began_us` is the start of the service, None for a command.
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
    began_us: int | None = None
