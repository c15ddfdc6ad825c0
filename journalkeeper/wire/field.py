# SPDX-License-Identifier: LGPL-2.1-or-later
"""Descriptions of records by fields, and the documents, properties and columns that are made from them.

Fields are rows in the order of the JSON keys. Keys are added at the end and never renamed, because scripts use them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from journalkeeper.model import Reason

T = TypeVar("T")


class Type(NamedTuple):
    """The type of a value: its JSON Schema, its D-Bus signature, and the function that reads it from a document."""

    schema: Mapping[str, Any]
    signature: str = ""
    read: Callable[[Any], Any] = lambda value: value
    optional: bool = False


class Field(NamedTuple):
    """One value of a record.

    `key` is its JSON key, and the record's attribute unless there is a function `get`. `bus` is its D-Bus property,
    `doc` the property's description. `note` is added to the key in the JSON section of journalkeeper(1). A `constant`
    property never changes. A `private` one of a user's file is shown only to that user. `none` is its value on the bus
    instead of null. `before` is the property before which it is listed; "" keeps the order of the rows. `log` is its
    field in the log, without the prefix. `metric` is the help text of the metric with the sum over all files.
    """

    key: str
    type: Type
    bus: str = ""
    doc: str = ""
    note: str = ""
    get: Callable[[Any], object] | None = None
    constant: bool = False
    private: bool = False
    none: object = None
    before: str = ""
    log: str = ""
    metric: str = ""


Fields = tuple[Field, ...]


def rows(one: Type, *keys: str) -> Fields:
    """Return a field of type `one` for each key."""
    return tuple(Field(key, one) for key in keys)


TEXT: Final = Type({"type": "string"}, "s", str)
TEXTS: Final = Type({"type": "array", "items": TEXT.schema}, "as")
FLAG: Final = Type({"type": "boolean"}, "b", bool)
COUNT: Final = Type({"type": "integer", "minimum": 0}, "t")
NUMBER: Final = COUNT._replace(signature="u")
SECONDS: Final = Type({"type": "number", "minimum": 0}, "d")
TIME: Final = Type({"type": "integer", "description": "Microseconds since 1970."}, "t")
SPAN: Final = Type({"type": "integer", "minimum": 0, "description": "Microseconds of a span."}, "t")
OWNER: Final = Type({"type": "string", "pattern": "^(system|remote|user:[0-9]+)$"}, "s", str)
OPTIONS: Final = Type({"type": "object"}, "a{sv}")
REASON: Final = Type(
    {
        "type": "string",
        "pattern": "^[a-z][a-z-]*$",
        "description": "A fixed word of journalkeeper(1), REASONS; words may be added.",
    },
    "s",
    Reason,
)

UNKNOWN: Final[dict[str, object]] = {"s": "", "as": [], "b": False, "t": 0, "u": 0, "d": 0.0}
"""The value of a property whose value is unknown, by signature."""


def words(kind: type[StrEnum]) -> Type:
    """Return the type of a word of `kind`."""
    return Type({"enum": [word.value for word in kind]}, "s", kind)


def nullable(one: Type) -> Type:
    """Return the type that also permits null."""
    if "type" in one.schema:
        schema = {**one.schema, "type": [one.schema["type"], "null"]}
    else:
        schema = {"anyOf": [one.schema, {"type": "null"}]}
    return one._replace(schema=schema, read=lambda value: None if value is None else one.read(value), optional=True)


def described(one: Type, sentence: str) -> Type:
    """Return the type with a description in its schema."""
    return one._replace(schema={**one.schema, "description": sentence})


def nested(fields: Fields, sometimes: Fields = ()) -> Type:
    """Return the type of an object, which may also have the keys of `sometimes`."""
    keys = {row.key: row.type.schema for row in (*fields, *sometimes)}
    return Type({"type": "object", "required": [row.key for row in fields], "properties": keys})


def listed(fields: Fields) -> Type:
    """Return the type of an array of objects."""
    return Type({"type": "array", "items": nested(fields).schema})


def get_value(row: Field, value: object) -> Any:
    """Return the value of a field in a record."""
    return getattr(value, row.key) if row.get is None else row.get(value)


def document(fields: Fields, value: object) -> dict[str, Any]:
    """Return a record as JSON."""
    return {row.key: get_value(row, value) for row in fields}


def parse_record(kind: Callable[..., T], fields: Fields, written: Mapping[str, Any]) -> T:
    """Call `kind` with the values of a document as keyword arguments. A key that is missing in the document is left
    out.

    Raises: TypeError for a missing value, ValueError for an unknown word.
    """
    return kind(**{row.key: row.type.read(written[row.key]) for row in fields if row.key in written})


def on_bus(fields: Fields) -> Fields:
    """Return the fields that are D-Bus properties, in the interface's order."""
    found: list[Field] = []
    for row in fields:
        if row.bus:
            names = [other.bus for other in found]
            found.insert(names.index(row.before) if row.before else len(found), row)
    return tuple(found)


def properties(fields: Fields, value: object) -> dict[str, object]:
    """Return a record's D-Bus properties; an unknown value is `none` of its field, else 0 or empty."""
    found: dict[str, object] = {}
    for row in fields:
        if row.bus:
            one = get_value(row, value)
            if one is None:
                one = UNKNOWN[row.type.signature] if row.none is None else row.none
            found[row.bus] = str(one) if isinstance(one, StrEnum) else one
    return found


def from_properties(kind: Callable[..., T], fields: Fields, values: Mapping[str, Any]) -> T:
    """Call `kind` with D-Bus properties as keyword arguments. Properties that an older version lacks are left out."""
    there = [row for row in fields if row.bus in values]
    return kind(**{row.key: None if values[row.bus] == row.none else values[row.bus] for row in there})


def column(row: Field) -> str:
    """Return the field's column in SQLite, where a span is in whole microseconds."""
    return row.key.removesuffix("_s") + "_us" if row.type is SECONDS else row.key


def encode_value(row: Field, value: object) -> Any:
    """Return a field's value for the log and the history."""
    one = get_value(row, value)
    return round(one * 1e6) if row.type is SECONDS else one


def log_fields(fields: Fields, value: object) -> dict[str, str]:
    """Return a record's fields for the log; unknown and empty values are left out."""
    kept = {row.log: encode_value(row, value) for row in fields if row.log}
    return {f"JOURNALKEEPER_{name}": str(one) for name, one in kept.items() if one not in {None, ""}}
