# SPDX-License-Identifier: LGPL-2.1-or-later
"""The history that a rotation costs, computed as journald's vacuum computes.

journald deletes its oldest archives at each rotation and at its start while they take more than SystemMaxUse=, or all
files are more than SystemMaxFiles=. So an early rotation costs history in three ways: it brings a deletion forward by
the room that is left in the active file, once; it adds a file, whose hash tables and repeated values take room for
entries; and early files use up SystemMaxFiles= before they fill the bytes.

Source: journal_directory_vacuum(), journal-vacuum.c. Active files count in the sum since systemd 254 (#26932), which
252 of Debian 12 has, too (measured: 252.39). The file that just ended counts with all that was allocated for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from statistics import median
from typing import Final, NamedTuple

from journalkeeper.model import KIB, MIB, JournalFile

GROWTH_BYTES: Final = 8 * MIB
"""The allocated size of a new file (FILE_SIZE_INCREASE, journal-file.c)."""

TABLE_SHARE: Final = 36
"""A file's data hash table takes this part of the size that it may grow to: 3.6 MiB of 128
(journal_file_setup_data_hash_table(): 16 bytes for each 576 of the largest size)."""

REPEATED_BYTES: Final = 256 * KIB
"""The values that each file stores anew. With files of a quarter of the size, 64 instead of 16, a journal of 110 MiB
kept 13% less history (84 days of tests.bench.year): 300 KiB a file."""

NEARLY_FULL: Final = 3 / 4
"""The part of a full file from which an archive counts as ended by journald itself."""

FREE: Final = 1 / 4
"""The share of HistoryLoss= that early files of any size may take."""


class Limits(NamedTuple):
    """The limits of journald. `most_bytes` and `max_files` are 0 if they are off.

    journald ends a file at `full_file_bytes`, often long before SystemMaxFileSize= (`max_file_bytes`): its hash table
    for data is as large as 768 bytes an object need, and real ones have 300 to 500.
    """

    most_bytes: int
    max_file_bytes: int
    max_files: int
    full_file_bytes: int


class Loss(NamedTuple):
    """The cost of a rotation in bytes of history.

    journald deletes `deleted_bytes` at once. Against `of_bytes`, its mean history without early rotations, the history
    lacks `lost_bytes`: what was deleted too soon, what SystemMaxFiles= will delete before the bytes are full, and the
    `early_bytes` of tables and values of files that were ended early. `steady_bytes` are those of a journal that is
    rotated at this size each time that it has grown by as much as since the last early file.
    """

    deleted_bytes: int
    lost_bytes: int
    early_bytes: int
    steady_bytes: int
    of_bytes: int
    early_files: int = 0

    def explain_excess(self, most_percent: float) -> str:
        """Return why the rotation costs more than `most_percent` of the history, "" if it does not.

        It does if `lost_bytes` exceed this share, to which half a percent is added, or if `early_bytes` exceed FREE of
        it and `steady_bytes` the rest of it: the first rotations must not spend what later ones need.
        """
        percent = 100 / max(1, self.of_bytes)
        allowed = most_percent + 0.5  # rounded
        if self.lost_bytes * percent > allowed:
            return f"it costs {self.lost_bytes * percent:.0f}% of the history"
        if self.early_bytes * percent > FREE * allowed and self.steady_bytes * percent > (1 - FREE) * allowed:
            return f"rotations at this size cost {self.steady_bytes * percent:.0f}% of the history"
        return ""


def find_full_file_bytes(files: Iterable[JournalFile], max_file_bytes: int) -> int:
    """Return where a file ends: the median known `full_bytes`, clamped to 1 MiB..`max_file_bytes`, else the latter."""
    ends = [file.full_bytes for file in files if file.full_bytes]
    return min(max_file_bytes, max(MIB, round(median(ends)))) if ends else max_file_bytes


def count_vacuumed(archives: Sequence[int], actives: int, active_bytes: int, limits: Limits) -> int:
    """Return how many of `archives`, allocated bytes with the oldest first, journald's next vacuum deletes."""
    total, gone = sum(archives) + active_bytes, 0
    while gone < len(archives) and (
        0 < limits.most_bytes < total or 0 < limits.max_files < actives + len(archives) - gone
    ):
        total -= archives[gone]
        gone += 1
    return gone


def compute_loss(archives: Sequence[int], active: Sequence[tuple[int, int]], limits: Limits) -> Loss:
    """Return what a rotation of the active files costs, and the mean history without early rotations.

    It costs what journald deletes at once or later too soon, and the tables of files that end early; 0 without a limit.
    `archives` are allocated bytes, the oldest first; `active` are (allocated bytes, those of them that are unused).
    """
    full, ended = limits.full_file_bytes, [allocated - unused for allocated, unused in active]
    files = (*archives, *ended)
    most = limits.most_bytes or limits.max_files * full
    if not most:
        return Loss(0, 0, 0, 0, 0)
    new_bytes = len(ended) * min(GROWTH_BYTES, limits.max_file_bytes)
    gone = count_vacuumed(files, len(ended), new_bytes + sum(unused for _, unused in active), limits)
    left, deleted = files[gone:], sum(files[:gone])
    kept, ahead = sum(left), min(-full % GROWTH_BYTES, limits.max_file_bytes - full)
    room = most - new_bytes - len(ended) * ahead
    own = max(full, room // full * full)
    mean = own + full // 2
    too_soon = max(0, min(mean - sum(ended) // 2, kept + deleted) - kept)  # the next active file is half as large
    if limits.max_files:
        crowd = len(left) + len(ended) + max(0, room - kept) // full - limits.max_files
        too_soon += sum(left[: max(0, crowd)])
    each = limits.max_file_bytes // TABLE_SHARE + REPEATED_BYTES
    early_files = max(0, len(left) - -(-kept // full))
    grown = sum(takewhile(lambda size: size >= NEARLY_FULL * full, reversed(archives)), sum(ended))
    steady = round(each * max(0, len(ended) - sum(ended) / full) * own / max(1, grown))
    early = each * early_files
    return Loss(deleted, too_soon + early, early, steady, mean, early_files)
