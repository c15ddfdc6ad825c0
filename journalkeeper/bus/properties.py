# SPDX-License-Identifier: LGPL-2.1-or-later
"""The properties of the manager, of files and of jobs, from what the service knows.

Pure. Values here are plain ones, in the order of the contract's tables, and
what is not known is 0, "" or, of a budget, the highest number.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable
from typing import Final

from journalkeeper import __version__
from journalkeeper.bus import names
from journalkeeper.journald.names import classify
from journalkeeper.model import Action, JournalFile, Outcome, Result, Skip
from journalkeeper.service.job import Job
from journalkeeper.service.snapshot import UNLIMITED, Doing, Findings, Snapshot, state

Reads = Callable[[str], bool]
"""Whether somebody may know what is in the journal files of an owner."""


def manager(snapshot: Snapshot) -> dict[str, object]:
    """The properties of the manager."""
    word, reason = state(snapshot)
    found = snapshot.findings
    status = None if found is None else found.status
    left = None if status is None else status.budget_left_bytes
    return {
        "Version": __version__,
        "State": word,
        "StateReason": names.shown(reason),
        "Directories": [names.shown(path) for path in snapshot.directories],
        "FileCount": 0 if status is None else status.files,
        "Extents": 0 if status is None else status.extents,
        "ActiveExtents": 0 if status is None else status.active_extents,
        "FragmentedFiles": 0 if status is None else status.fragmented_files,
        "WindowOpen": status is not None and status.window_open,
        "NextFlushUSec": 0 if found is None else found.next_flush_us,
        "LastRunUSec": snapshot.tally.last_us,
        "BytesWritten": snapshot.tally.written_bytes,
        "BytesReclaimed": snapshot.tally.reclaimed_bytes,
        "BudgetLeft": UNLIMITED if left is None else left,
        "IntakeDelayP99USec": snapshot.intake_p99_us,
        "Paused": snapshot.paused,
        "Limits": [names.shown(sentence) for sentence in snapshot.limits],
    }


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


PRIVATE: Final = {"Entries": 0, "HeadTimeUSec": 0, "TailTimeUSec": 0, "Detail": ""}
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
    done = doing if isinstance(doing, Outcome) and doing.result is Result.DONE else None
    return {
        "Path": names.shown(row.path),
        "Device": row.device,
        "Inode": row.inode,
        "Kind": str(row.kind),
        "Owner": names.shown(row.owner),
        "Instance": names.shown(row.instance),
        "State": str(row.state),
        "Size": row.size_bytes,
        "AllocatedSize": row.allocated_bytes,
        "SharedSize": row.extents.shared_bytes,
        "Extents": row.extents.total if done is None else done.extents_after,
        "IdealExtents": row.ideal_extents,
        "Compressed": row.compressed,
        "NoCOW": row.nocow,
        "Entries": row.entries,
        "HeadTimeUSec": row.head_time_us,
        "TailTimeUSec": row.tail_time_us,
        "Problem": "" if row.problem is None else str(row.problem),
        "Action": "" if doing is None or isinstance(doing, Skip) else str(doing.action),
        "Reason": "" if doing is None else str(doing.reason),
        "Detail": "" if doing is None or isinstance(doing, Action) else names.shown(doing.detail),
    }


def job(one: Job) -> dict[str, object]:
    """The properties of a job, but for its Options."""
    at = one.progress
    return {
        "Id": one.number,
        "State": one.state,
        "Progress": min(1.0, at.done_bytes / at.total_bytes) if at.total_bytes else 0.0,
        "File": names.shown(at.path),
        "FileNumber": at.number,
        "FileTotal": at.total,
        "BytesDone": at.done_bytes,
        "BytesTotal": at.total_bytes,
    }
