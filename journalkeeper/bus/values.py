# SPDX-License-Identifier: LGPL-2.1-or-later
"""The values that the bus shows of the service's state: properties, the records of ListFiles, and documents.

They come from the records of model/; here they get the contract's signatures, and texts that every client can read.
"""

from __future__ import annotations

import posixpath
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final

from journalkeeper.bus import contract, names
from journalkeeper.bus.contract import Values
from journalkeeper.journald.names import classify
from journalkeeper.model import JournalFile, Outcome, Plan, Result
from journalkeeper.model.manager import JobState, Treatment
from journalkeeper.model.run import Report
from journalkeeper.model.schema import SIGNATURES, bus_rows, to_json, to_properties, write_json
from journalkeeper.model.units import U64_MAX
from journalkeeper.service.jobs import Job
from journalkeeper.service.snapshot import Doing, Findings

Reads = Callable[[str], bool]
"""Returns whether a caller may know what is in the journal files of an owner."""

PRIVATE: Final = frozenset(row.bus for row in contract.FILE if row.about.private)
"""The keys of a file that are left out for callers who may not read it."""

LISTED_MOST: Final = 500
"""Files in one answer of ListFiles."""

TEXT_MOST: Final = 400_000
"""Characters of all texts in one answer of ListFiles; the rest of an answer has some 450 KiB."""

FACT_MOST: Final = 10_000
"""Characters of the texts of one fact: the first ones that have no more together. 7,000 files can fail."""

DOCUMENT_MOST: Final = 900 << 10
"""Characters of a JSON document: one answer has at most 1 MiB."""

LISTS: Final = ("actions", "notices", "outcomes", "skipped")
"""The parts of a document that are cut where it is too long, the most important first."""

CARRIED: Final[dict[str, Callable[[Any], object]]] = {
    "s": names.to_ascii,
    "as": lambda texts: [names.to_ascii(text) for text in texts],
    "aa{sv}": lambda records: [to_values(one) for one in records],
    "a{sv}": lambda facts: {name: _encode_fact(fact) for name, fact in facts.items() if fact is not None},
}
"""Functions that make values of these signatures safe for all clients."""


def to_values(*records: object) -> Values:
    """Return the D-Bus properties of all `records` together: (signature, value) by name.

    Texts become ASCII. D-Bus has no None: an unknown value becomes the `none` of its Key, or else "", [], False or 0.
    """
    found: Values = {}
    for record in records:
        plain = to_properties(record)
        for row in bus_rows(type(record)):
            value = plain[row.bus]
            found[row.bus] = row.signature, CARRIED[row.signature](value) if row.signature in CARRIED else value
    return found


def _encode_fact(fact: int | float | str | list[str]) -> tuple[str, Any]:
    """Return (signature, value). A list ends before the text that exceeds FACT_MOST characters in all."""
    kind = "x" if isinstance(fact, int) else SIGNATURES.get(type(fact), "s")
    value = CARRIED[kind](fact) if kind in CARRIED else fact
    if isinstance(value, list):
        ends = accumulate(map(len, value))
        value = [text for text, end in zip(value, ends, strict=True) if end <= FACT_MOST]
    return kind, value


def job_values(job: Job) -> Values:
    """Return the D-Bus properties of a job: (signature, value) by name."""
    return to_values(JobState(job.number, job.state, job.progress.fraction), job.progress)


def list_files(found: Findings, offset: int, may_read: Reads) -> list[Values]:
    """Return the properties of files by path, from index `offset`: at most LISTED_MOST, in about TEXT_MOST characters.

    Private values of a file are left out if `may_read(owner)` is False.
    """
    listed: list[Values] = []
    text = 0
    for path in sorted(found.files, key=names.to_ascii)[offset : offset + LISTED_MOST]:
        one = _make_file_values(found.files[path], found.decided.get(path), may_read)
        text += sum(len(value) for signature, value in one.values() if signature == "s")
        if text > TEXT_MOST and listed:
            break
        listed.append(one)
    return listed


def _make_file_values(row: JournalFile, doing: Doing | None, may_read: Reads) -> Values:
    """Return the D-Bus properties of a file and of `doing`, without the private ones unless `may_read(owner)`."""
    known = to_values(row, Treatment(*(getattr(doing, name, None) for name in Treatment._fields)))
    if isinstance(doing, Outcome) and doing.result is Result.DONE:
        known["Extents"] = known["Extents"][0], doing.extents_after
    return known if may_read(row.owner) else {name: value for name, value in known.items() if name not in PRIVATE}


def write_document(answer: Plan | Report, may_read: Reads) -> str:
    """Return the JSON of `answer` in at most DOCUMENT_MOST characters.

    Details about files of an owner are hidden if `may_read(owner)` is False.
    """
    document = to_json(answer)
    for name in {"outcomes", "skipped"} & document.keys():
        document[name] = [row if may_read(_name_owner(row["path"])) else _hide(row) for row in document[name]]
    text = write_json(document)
    return text if len(text) <= DOCUMENT_MOST else write_json(_leave_out_rows(document))


def _leave_out_rows(document: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `document` of at most DOCUMENT_MOST characters of JSON. `omitted` counts the missing rows."""
    lists: dict[str, Any] = {name: document[name] for name in LISTS if name in document}
    lists["skipped"] = sorted(document["skipped"], key=lambda row: not row["puts_off"])
    rows = [(name, row) for name, some in lists.items() for row in some]
    empty: dict[str, Any] = {name: [] for name in lists}
    left = DOCUMENT_MOST - len(write_json({**document, **empty, "omitted": U64_MAX}))
    fitting = bisect(list(accumulate(len(write_json(row)) + 1 for _, row in rows)), left)
    cut = {name: [row for other, row in rows[:fitting] if other == name] for name in lists}
    return {**document, **cut, "omitted": len(rows) - fitting}


def _hide(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"detail": "", **({"until_us": None} if "until_us" in row else {})}


def _name_owner(path: str) -> str:
    """Return the owner of the journal file at `path`, from its name alone: "system", "user:UID", "remote" or "user:?".

    "user:?" is an unknown user, so that only callers with the right to read all users' files get its details.
    """
    base = posixpath.basename(path)
    name = classify(base)
    if name is not None:
        return name.owner
    return "system" if ".journal" in base else "user:?"
