# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON Schema of each command's answer, for /usr/share/journalkeeper/schema, from the records' annotations."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, get_args, get_origin

from meanings import describe
from pydantic import TypeAdapter

from journalkeeper.cli.check_config import ConfigAnswer
from journalkeeper.cli.doctor import DoctorAnswer
from journalkeeper.cli.history import HistoryAnswer
from journalkeeper.cli.isolate import IsolateAnswer
from journalkeeper.cli.pause import PauseAnswer
from journalkeeper.cli.probe import ProbeAnswer
from journalkeeper.cli.report import ReportAnswer
from journalkeeper.cli.retention import RetentionAnswer
from journalkeeper.cli.status import StatusAnswer
from journalkeeper.model import JournalFile, Plan, Reason
from journalkeeper.model.manager import Facts
from journalkeeper.model.run import Report
from journalkeeper.model.schema import Word, list_rows, split_hint
from journalkeeper.probe.compare import LabAnswer
from journalkeeper.report.story import DirectoriesAnswer, Story

ANSWERS: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    "scan": ("Every journal file. ", (tuple[JournalFile, ...],)),
    "plan": ("What would be done to which file, and why not. ", (Plan,)),
    "defrag": ("What a run did. ", (Report,)),
    "history": ("What was done and seen over time. ", (HistoryAnswer,)),
    "status": ("How things are, from the service and the history. ", (StatusAnswer,)),
    "explain": ("One file's story, or a directory's. ", (Story, DirectoriesAnswer)),
    "report": ("The page that was written. ", (ReportAnswer,)),
    "doctor": ("", (DoctorAnswer,)),
    "retention": ("How long a history fits the same bytes. ", (RetentionAnswer,)),
    "isolate": ("Whether the journal is in a subvolume of its own. ", (IsolateAnswer,)),
    "probe": ("What was measured. ", (ProbeAnswer,)),
    "lab": ("Each strategy on that disk. ", (LabAnswer,)),
    "pause": ("What was asked of the service. ", (PauseAnswer,)),
    "resume": ("What was asked of the service. ", (PauseAnswer,)),
    "check-config": ("The configuration, and what is wrong in it. ", (ConfigAnswer,)),
}
"""For each command, a description of its answer and the records of which it is one."""

FACTS: Final = {
    "type": "object",
    "additionalProperties": {
        "anyOf": [{"type": ["number", "string", "null"]}, {"type": "array", "items": {"type": "string"}}]
    },
}
"""The schema of health.finding.Facts."""


def make_answer_schema(command: str) -> dict[str, Any]:
    """Return the published schema of a command's answer."""
    what, answers = ANSWERS[command]
    added = "Keys and rules are" if command == "doctor" else "Keys are"
    found = [make_schema(answer) for answer in answers]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:journalkeeper:schema:1:{command}",
        "$comment": "SPDX-License-Identifier: LGPL-2.1-or-later",
        "title": f"journalkeeper {command} -j",
        "description": f"Version 1. {what}{added} only ever added.",
        **(found[0] if len(found) == 1 else {"oneOf": found}),
    }


def make_schema(hint: Any) -> dict[str, Any]:  # noqa: PLR0911 - one for each form of a type
    """Return the JSON Schema of an annotation, or of a record. Reasons may be added, so they are no enumeration."""
    kind, nullable, _ = split_hint(hint)
    if nullable:
        schema = make_schema(_drop_none(hint))
        if "type" in schema:
            return {**schema, "type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}
    if kind == Facts:
        return FACTS
    container, inside = get_origin(kind), get_args(kind)
    if container in {list, tuple}:
        return {"type": "array", "items": make_schema(inside[0])}
    if container is dict:
        return {"type": "object", "additionalProperties": make_schema(inside[1])}
    if hasattr(kind, "_fields"):
        return _make_object(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum) and kind is not Reason:
        return {"enum": [word.value for word in kind]}
    return TypeAdapter(Word if kind is Reason else hint).json_schema()


def _make_object(kind: type) -> dict[str, Any]:
    """Return the schema of a record. The keys of an inline record are its own."""
    found: dict[str, Any] = {"type": "object", "required": [], "properties": {}}
    for row in list_rows(kind):
        schema = make_schema(_drop_none(row.hint) if row.about.optional else row.hint)
        if row.about.inline:
            found["required"] += [] if row.nullable else schema["required"]
            found["properties"] |= schema["properties"]
        else:
            found["required"] += [] if row.about.optional else [row.key]
            meanings = (describe(row), schema.get("description", ""))
            found["properties"][row.key] = schema | _describe(" ".join(filter(None, meanings)))
    return found


def _describe(meaning: str) -> dict[str, str]:
    return {"description": meaning} if meaning else {}


def _drop_none(hint: Any) -> Any:
    """Return the annotation of the values other than None."""
    if get_origin(hint) is Annotated:
        return _drop_none(get_args(hint)[0])
    (only,) = (one for one in get_args(hint) if one is not type(None))
    return only
