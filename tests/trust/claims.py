# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare what the history claims with what other programs measure: filefrag(8), compsize(8), lsattr(1).

The history is read by SQLite itself, from a copy: a transaction that was cut off is rolled back there, and the
history under test stays as it is. A file that changed since its row was written makes no claim. The extents of a file
that journald has not synced make none either: pages that were dirty at the rewrite move later, with the same mtime.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from journalkeeper.journald.journal_file import read_state
from journalkeeper.model import KIB, State
from tests.btrfs.journals import is_nocow
from tests.volumes import disk_bytes, filefrag

DATABASE: Final = "history.db"
EXTENTS_SHARE: Final = 0.1
"""By how much of it a claimed count of extents may differ from filefrag's: the look may have been before writeback."""

DISK_SLACK_BYTES: Final = 128 * KIB
"""By how much a claimed disk usage may differ from compsize's: one compressed extent."""


class Rewrite(NamedTuple):
    """One row of `rewrites`: what a file was right after its last rewrite."""

    inode: int
    verb: str
    size_bytes: int
    mtime_ns: int
    extents: int


class Done(NamedTuple):
    """One row of `outcomes` with the result "done"."""

    path: str
    action: str
    extents_after: int
    disk_bytes_after: int | None

    @property
    def name(self) -> str:
        """The file's name: a volume may be mounted at another place when its claims are checked."""
        return os.path.basename(self.path)


class Claims(NamedTuple):
    """All that a history claims, each part the oldest first."""

    rewrites: tuple[Rewrite, ...] = ()
    done: tuple[Done, ...] = ()


def read_claims(state: Path) -> Claims:
    """Return the claims of the history in `state`; none if there is no history, or if it is damaged."""
    if not (state / DATABASE).exists():
        return Claims()
    with tempfile.TemporaryDirectory() as copy:
        for path in state.glob(f"{DATABASE}*"):
            shutil.copy(path, copy)
        with closing(sqlite3.connect(Path(copy) / DATABASE)) as database, suppress(sqlite3.DatabaseError):
            rewrites = "SELECT inode, verb, size_bytes, mtime_ns, extents FROM rewrites ORDER BY when_us"
            done = (
                "SELECT path, action, extents_after, disk_bytes_after FROM outcomes WHERE result = 'done' ORDER BY id"
            )
            return Claims(
                tuple(Rewrite(*row) for row in database.execute(rewrites)),
                tuple(Done(os.fsdecode(path), *row) for path, *row in database.execute(done)),
            )
    return Claims()


def find_false_claims(top: Path, claims: Claims) -> list[str]:
    """Return a sentence for each claim about a file or directory below `top` that a measurement contradicts."""
    rewrites = {row.inode: row for row in claims.rewrites}
    done = {row.name: row for row in claims.done}
    found: list[str] = []
    for directory, _, names in os.walk(top):
        row = done.get(os.path.basename(directory))
        if row is not None and row.action == "set-nocow" and not is_nocow(Path(directory)):
            found.append(f"{row.name}: set-nocow is claimed, and lsattr shows no C")
        for name in names:
            path = Path(directory, name)
            status = path.lstat()
            rewrite = rewrites.get(status.st_ino)
            if rewrite is None or (rewrite.size_bytes, rewrite.mtime_ns) != (status.st_size, status.st_mtime_ns):
                continue
            found += _contradict_rewrite(path, rewrite)
            outcome = done.get(name)
            if outcome is not None and outcome.disk_bytes_after is not None and outcome.action == rewrite.verb:
                found += _contradict_disk_bytes(path, outcome.disk_bytes_after)
    return found


def contradict_extents(path: Path, claimed: int) -> list[str]:
    """Return a sentence if filefrag(8) counts another number of extents than is claimed."""
    (extents,) = filefrag(path, sync=True)
    if abs(extents - claimed) <= max(1, EXTENTS_SHARE * claimed):
        return []
    return [f"{path.name}: {claimed} extents are claimed, filefrag counts {extents}"]


def _contradict_rewrite(path: Path, claim: Rewrite) -> list[str]:
    found = [] if claim.verb == "rotate" or _is_unsynced(path) else contradict_extents(path, claim.extents)
    if claim.verb in {"compress", "rewrite"} and is_nocow(path):
        found.append(f"{path.name}: {claim.verb} is claimed, and lsattr shows C")
    return found


def _contradict_disk_bytes(path: Path, claimed: int) -> list[str]:
    occupied = disk_bytes(path)
    if abs(occupied - claimed) <= DISK_SLACK_BYTES:
        return []
    return [f"{path.name}: {claimed} bytes on disk are claimed, compsize shows {occupied}"]


def _is_unsynced(path: Path) -> bool:
    with open(path, "rb") as file:
        return read_state(file.fileno()) is State.ONLINE


def compare_with_report(claims: Claims, before: Claims, report: Mapping[str, Any], complaints: str) -> list[str]:
    """Return the differences between the done outcomes in the JSON of `defrag` and the new rows of the history.

    A row may be missing where `complaints`, the command's stderr, name the history: the user was told.
    """
    rows = {(row.name, row.action, row.extents_after) for row in claims.done[len(before.done) :]}
    said = {
        (os.path.basename(one["path"]), one["action"], one["extents_after"])
        for one in report["outcomes"]
        if one["result"] == "done"
    }
    unrecorded = [] if DATABASE in complaints else sorted(said - rows)
    return [f"{row} is reported and not recorded" for row in unrecorded] + [
        f"{row} is recorded and not reported" for row in sorted(rows - said)
    ]
