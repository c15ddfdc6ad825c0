# SPDX-License-Identifier: LGPL-2.1-or-later
"""The objects on the bus, their properties, and the records of ListFiles, from what the service knows.

Plain values come from the records of model/; here they get the contract's signatures.
"""

from __future__ import annotations

import heapq
import json
import posixpath
from collections.abc import Callable, Iterable
from typing import Any, Final

from dbus_fast import Variant

from journalkeeper.bus import contract, names, options
from journalkeeper.bus.contract import DOCUMENT_MOST, LISTED_MOST, Interface
from journalkeeper.journald.names import classify
from journalkeeper.model import JournalFile, Outcome, Request, Result
from journalkeeper.model.manager import JobState, Treatment
from journalkeeper.model.record import Row, to_properties
from journalkeeper.model.units import U64_MAX
from journalkeeper.service import snapshot as snapshots
from journalkeeper.service.jobs import Job, Jobs
from journalkeeper.service.snapshot import Doing, Findings, Snapshot

Values = dict[str, Variant]

Reads = Callable[[str], bool]
"""Returns whether a caller may know what is in the journal files of an owner."""

MANAGER: Final = (*contract.OF_AN_OBJECT, contract.MANAGER)
JOB: Final = (*contract.OF_AN_OBJECT, contract.JOB_INTERFACE)

PRIVATE: Final = frozenset(row.bus for row in contract.FILE if row.about.private)
"""The keys of a file that are left out for callers who may not read it."""

TEXT_MOST: Final = 400_000
"""Characters of all texts in one answer of ListFiles; the rest of an answer has some 450 KiB."""


LISTS: Final = ("actions", "notices", "outcomes", "details", "skipped")
"""The parts of a document that are cut where it is too long, the most important first."""


class Objects:
    """The D-Bus objects of the service: its manager, and one object for each of its `jobs`.

    `snapshot` returns the present state of the service.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], jobs: Jobs) -> None:
        self._snapshot = snapshot
        self._jobs = jobs

    def interfaces(self, path: str) -> tuple[Interface, ...]:
        """Return the interfaces of the object at `path`; () if there is no object at `path` or below."""
        if path == names.MANAGER_PATH:
            return MANAGER
        if path in self._job_paths():
            return JOB
        return contract.EVERYWHERE if self.children(path) else ()

    def children(self, path: str) -> tuple[str, ...]:
        """Return the names of the objects directly below `path`."""
        above = f"{path.rstrip('/')}/"
        below = (one for one in (names.MANAGER_PATH, *self._job_paths()) if one.startswith(above))
        return tuple(dict.fromkeys(one[len(above) :].partition("/")[0] for one in below))

    def values(self, path: str, interface: str) -> Values:
        """Return the properties of the object at `path` that belong to `interface`; {} if it is not one of ours."""
        if interface == names.MANAGER:
            return self.manager()
        return job_values(self._job_paths()[path]) if interface == names.JOB else {}

    def manager(self) -> Values:
        """Return the manager's properties."""
        return to_variants(contract.MANAGER.properties, to_properties(snapshots.manager(self._snapshot())))

    def _job_paths(self) -> dict[str, Job]:
        return {names.job_path(job.number): job for job in self._jobs.queue}


def to_variants(rows: Iterable[Row], plain: dict[str, Any]) -> Values:
    """Return the values in `plain` as D-Bus variants, by property name. `rows` have their signatures.

    Rows without a value in `plain` are left out. Texts become ASCII.
    """
    found: Values = {}
    for row in rows:
        if row.bus in plain:
            signature, value = row.signature, plain[row.bus]
            found[row.bus] = Variant(signature, CARRIED[signature](value) if signature in CARRIED else value)
    return found


def _options(request: Request) -> Values:
    return {name: Variant(*pair) for name, pair in options.options(request).items()}


CARRIED: Final[dict[str, Callable[[Any], object]]] = {
    "s": names.to_ascii,
    "as": lambda texts: [names.to_ascii(text) for text in texts],
    "a{sv}": _options,
}
"""Functions that make values of these signatures safe for all clients."""


def job_values(job: Job) -> Values:
    """Return the properties of a job."""
    state = JobState(job.number, job.state, job.request, job.progress.fraction)
    known = {**to_properties(state), **to_properties(job.progress)}
    return to_variants(contract.JOB_INTERFACE.properties, known)


def list_files(found: Findings, after: str, reads: Reads) -> list[Values]:
    """Return the records of at most LISTED_MOST files, sorted by path, that follow the path `after`.

    The list is shorter if the texts exceed TEXT_MOST. Private values are left out of files whose owner `reads` rejects.
    """
    shown = ((names.to_ascii(path), path) for path in found.files)
    listed: list[Values] = []
    text = 0
    for _, path in heapq.nsmallest(LISTED_MOST, (one for one in shown if one[0] > after)):
        one = to_variants(contract.FILE, _file(found.files[path], found.decided.get(path), reads))
        text += sum(len(value.value) for value in one.values() if value.signature == "s")
        if text > TEXT_MOST and listed:
            break
        listed.append(one)
    return listed


def _file(row: JournalFile, doing: Doing | None, reads: Reads) -> dict[str, object]:
    """Return the properties of a file and of its treatment, by name.

    Private values are left out if `reads` rejects the file's owner. After a finished action, the extents are the new
    number.
    """
    treatment = Treatment(*(getattr(doing, name, None) for name in Treatment._fields))
    known = {**to_properties(row), **to_properties(treatment)}
    if isinstance(doing, Outcome) and doing.result is Result.DONE:
        known["Extents"] = doing.extents_after
    return known if reads(row.owner) else {name: value for name, value in known.items() if name not in PRIVATE}


def write_document(document: dict[str, Any], reads: Reads) -> str:
    """Return the JSON of `document`, the plan or the result of a job, for a caller.

    Details of files whose owner `reads` rejects are left out. If the JSON exceeds DOCUMENT_MOST, rows are left out,
    too: see `_leave_out_rows`.
    """
    skipped = [
        row if reads(_owner(row["path"])) else {**row, "detail": "", "until_us": None}
        for row in document.get("skipped", ())
    ]
    written = {**document, "skipped": skipped}
    if "details" in written:
        written["details"] = {path: text for path, text in document["details"].items() if reads(_owner(path))}
    text = to_json(written)
    return text if len(text) <= DOCUMENT_MOST else to_json(_leave_out_rows(written))


def _leave_out_rows(document: dict[str, Any]) -> dict[str, Any]:
    """Return `document` with its lists cut so that its JSON has at most DOCUMENT_MOST bytes.

    The lists are filled in the order of LISTS, skipped files with postponed work first. `omitted` is the number of rows
    that were left out of all lists together.
    """
    rows: dict[str, list[Any]] = {name: list(document[name]) for name in LISTS if name in document}
    rows["skipped"].sort(key=lambda row: not row.get("puts_off"))
    if "details" in rows:
        rows["details"] = list(document["details"].items())
    empty: dict[str, Any] = {name: [] for name in rows}
    left = DOCUMENT_MOST - len(to_json({**document, **empty, "omitted": U64_MAX}))
    omitted = 0
    for name, some in rows.items():
        fitting = 0
        for row in some:
            left -= len(to_json(row)) + 1
            if left < 0:
                break
            fitting += 1
        omitted += len(some) - fitting
        rows[name] = some[:fitting]
    cut: dict[str, Any] = {**document, **rows, "omitted": omitted}
    return {**cut, "details": dict(cut["details"])} if "details" in cut else cut


def to_json(document: object) -> str:
    """Return `document` as JSON in one line of ASCII, as -j writes it."""
    return json.dumps(document, separators=(",", ":"))


def _owner(path: str) -> str:
    """Return the owner of the journal file at `path`, from its name alone.

    A name that is no journal file's may be a directory, whose owner counts as an unknown user.
    """
    base = posixpath.basename(path)
    name = classify(base)
    if name is not None:
        return name.owner
    return "system" if ".journal" in base else "user:?"
