# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a file, an action or the service is described with, and what is made of a description.

Fields are rows in the order of the JSON keys. Keys are added at the end and never renamed: others script against them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

from journalkeeper.model import Reason

T = TypeVar("T")


class Type(NamedTuple):
    """What a value may be: its JSON Schema, its D-Bus signature, and how a document's value is read back."""

    schema: Mapping[str, Any]
    signature: str = ""
    read: Callable[[Any], Any] = lambda value: value
    optional: bool = False


class Field(NamedTuple):
    """One value of a description.

    `key` is its JSON key, and the attribute that has it unless `get` gets it. `bus` is its D-Bus property, `doc` that
    one's sentence. `note` is what the JSON section of journalkeeper(1) adds to the key. `constant`: the property never
    changes; `private`: of a user's file it is shown to nobody else; `none` stands for null there; `before` is the
    property before which it is listed, "" is the order of the rows. `log` is its field in the log, without the prefix.
    `metric` is the help of the metric that has the sum over all files.
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
    """Rows of which there is no more to say."""
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
"""What a property of a signature is while its value is not known."""


def words(kind: type[StrEnum]) -> Type:
    """One of some fixed words."""
    return Type({"enum": [word.value for word in kind]}, "s", kind)


def nullable(one: Type) -> Type:
    """The same, or null."""
    if "type" in one.schema:
        schema = {**one.schema, "type": [one.schema["type"], "null"]}
    else:
        schema = {"anyOf": [one.schema, {"type": "null"}]}
    return one._replace(schema=schema, read=lambda value: None if value is None else one.read(value), optional=True)


def described(one: Type, sentence: str) -> Type:
    """The same with a description in its schema."""
    return one._replace(schema={**one.schema, "description": sentence})


def nested(fields: Fields, sometimes: Fields = ()) -> Type:
    """An object, which may have the keys of `sometimes`, too."""
    keys = {row.key: row.type.schema for row in (*fields, *sometimes)}
    return Type({"type": "object", "required": [row.key for row in fields], "properties": keys})


def listed(fields: Fields) -> Type:
    """An array of objects."""
    return Type({"type": "array", "items": nested(fields).schema})


def got(row: Field, value: object) -> Any:
    """What a row says of a value."""
    return getattr(value, row.key) if row.get is None else row.get(value)


def document(fields: Fields, value: object) -> dict[str, Any]:
    """A value as JSON."""
    return {row.key: got(row, value) for row in fields}


def parsed(kind: Callable[..., T], fields: Fields, written: Mapping[str, Any]) -> T:
    """What `kind` makes of a document, its keys being arguments; keys that an older version did not write are left out.

    Raises: TypeError where something is missing, ValueError for a word that another version wrote.
    """
    return kind(**{row.key: row.type.read(written[row.key]) for row in fields if row.key in written})


def on_bus(fields: Fields) -> Fields:
    """The rows that are D-Bus properties, in the interface's order."""
    found: list[Field] = []
    for row in fields:
        if row.bus:
            names = [other.bus for other in found]
            found.insert(names.index(row.before) if row.before else len(found), row)
    return tuple(found)


def properties(fields: Fields, value: object) -> dict[str, object]:
    """A value's D-Bus properties; what is not known is 0 or empty, if the row does not say otherwise."""
    found: dict[str, object] = {}
    for row in fields:
        if row.bus:
            one = got(row, value)
            if one is None:
                one = UNKNOWN[row.type.signature] if row.none is None else row.none
            found[row.bus] = str(one) if isinstance(one, StrEnum) else one
    return found


def from_properties(kind: Callable[..., T], fields: Fields, values: Mapping[str, Any]) -> T:
    """What `kind` makes of D-Bus properties; those that an older version does not have are left out."""
    there = [row for row in fields if row.bus in values]
    return kind(**{row.key: None if values[row.bus] == row.none else values[row.bus] for row in there})


def column(row: Field) -> str:
    """The column of the record in SQLite: a span is in whole microseconds there."""
    return row.key.removesuffix("_s") + "_us" if row.type is SECONDS else row.key


def stored(row: Field, value: object) -> Any:
    """What the log and the record keep of a value."""
    one = got(row, value)
    return round(one * 1e6) if row.type is SECONDS else one


def log_fields(fields: Fields, value: object) -> dict[str, str]:
    """A value's fields in the log; what is not known, or empty, is left out."""
    kept = {row.log: stored(row, value) for row in fields if row.log}
    return {f"JOURNALKEEPER_{name}": str(one) for name, one in kept.items() if one not in {None, ""}}
