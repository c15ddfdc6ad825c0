# SPDX-License-Identifier: LGPL-2.1-or-later
"""The properties of the manager, of files and of jobs, from what the service knows.

Pure. Values here are plain ones, by the names and with the meaning of wire.records.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable
from typing import Final

from journalkeeper.bus import names
from journalkeeper.journald.names import classify
from journalkeeper.model import JournalFile, Outcome, Result
from journalkeeper.service import snapshot as snapshots
from journalkeeper.service.job import Job
from journalkeeper.service.snapshot import Doing, Findings, Snapshot
from journalkeeper.wire import records
from journalkeeper.wire.field import UNKNOWN, properties

Reads = Callable[[str], bool]
"""Whether somebody may know what is in the journal files of an owner."""


def manager(snapshot: Snapshot) -> dict[str, object]:
    """The properties of the manager."""
    return properties(records.MANAGER, snapshots.manager(snapshot))


def anybody(owner: str) -> bool:
    """What everybody may know: all but what is in users' journals."""
    return not owner.startswith(names.USER_PREFIX)


def for_reader(document: str, reads: Reads) -> str:
    """The JSON `document` of a plan or of a job as one who `reads` may see it: details of others' files are empty."""
    parsed = json.loads(document)
    for row in parsed.get("skipped", ()):
        if not reads(_owner(row["path"])):
            row |= {"detail": "", "until_us": None}
    if "details" in parsed:
        parsed["details"] = {path: text for path, text in parsed["details"].items() if reads(_owner(path))}
    return json.dumps(parsed, separators=(",", ":"))


def _owner(path: str) -> str:
    """Whose journal it is; what is said of a directory, whose name is no file's, may tell of any user's."""
    base = posixpath.basename(path)
    name = classify(base)
    if name is not None:
        return name.owner
    return "system" if ".journal" in base else "user:?"


PRIVATE: Final = {row.bus: UNKNOWN[row.type.signature] for row in (*records.FILE, *records.DOING) if row.private}
"""What a file shows to those who may not read it."""


def file(row: JournalFile, doing: Doing | None, reads: Reads = anybody) -> dict[str, object]:
    """The properties of a file for one who `reads`."""
    known = _file(row, doing)
    return known if reads(row.owner) else {**known, **PRIVATE}


def file_of(found: Findings, path: str, reads: Reads = anybody) -> dict[str, object] | None:
    """The properties of the file at `path` for one who `reads`, None if there is no such file."""
    known = found.file(path)
    return None if known is None else file(*known, reads)


def _file(row: JournalFile, doing: Doing | None) -> dict[str, object]:
    known = {**properties(records.FILE, row), **properties(records.DOING, doing)}
    if isinstance(doing, Outcome) and doing.result is Result.DONE:
        known["Extents"] = doing.extents_after
    return known


def job(one: Job) -> dict[str, object]:
    """The properties of a job; of Options the request that they say."""
    return {**properties(records.JOB, one), **properties(records.PROGRESS, one.progress)}
