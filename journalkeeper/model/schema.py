# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON Schema of records, from their annotations."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter

from journalkeeper.model.record import Word, rows, split_hint
from journalkeeper.model.words import Reason


def make_schema(hint: Any) -> dict[str, Any]:  # noqa: PLR0911 - one for each form of a type
    """Return the JSON Schema of an annotation, or of a record. Reasons may be added, so they are no enumeration."""
    kind, nullable, _ = split_hint(hint)
    if nullable:
        (only,) = (one for one in get_args(_strip(hint)) if one is not type(None))
        schema = make_schema(only)
        if "type" in schema:
            return {**schema, "type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}
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
    for row in rows(kind):
        if row.about.inline:
            inside = make_schema(row.hint)
            found["required"] += [] if row.nullable else inside["required"]
            found["properties"] |= inside["properties"]
        else:
            found["required"] += [] if row.about.optional else [row.key]
            found["properties"][row.key] = make_schema(row.type if row.about.optional else row.hint)
    return found


def _strip(hint: Any) -> Any:
    return _strip(get_args(hint)[0]) if hasattr(hint, "__metadata__") else hint
