# SPDX-License-Identifier: LGPL-2.1-or-later
"""The one description of records: JSON, D-Bus, the log, SQL columns and metrics are made from a record's own fields.

A record is a NamedTuple. The annotation of a field has its type, its unit and its limits in pydantic's terms, and the
string below the field is its meaning in the man pages. Every field is published under its own name. A `Key` contains
the differences: another name, a name on the bus, a metric. A property of the class is published if its return
annotation has a `Key`. Keys are only ever added and never renamed, because scripts use them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from journalkeeper.model.units import TIME_LIMIT_US

T = TypeVar("T")


class Key(NamedTuple):
    """The publication of a value, where its name and its type do not determine it.

    `name` is its JSON key. `bus` is its D-Bus property, None if it has none, and `signature` that property's type.
    `none` is the property's value while the value is unknown. A `constant` property never changes. A `private` value of
    a user's file is shown only to that user. `metric` is the help text of its metric, and `metric_name` the name of
    the metric if it is not the key; the metric of a file's value is the sum over all files. The keys of an `inline`
    record become keys of the record that contains it. An `optional` key is left out if it is None. A `hidden` value is
    not published.
    """

    name: str = ""
    bus: str | None = ""
    signature: str = ""
    none: object = None
    constant: bool = False
    private: bool = False
    metric: str = ""
    metric_name: str = ""
    inline: bool = False
    optional: bool = False
    hidden: bool = False


Count = Annotated[int, Field(ge=0)]
Moment = Annotated[int, Field(description="Microseconds since 1970.")]
PastMoment = Annotated[int, Field(ge=0, lt=TIME_LIMIT_US, description="Microseconds since 1970.")]
Span = Annotated[int, Field(ge=0, description="Microseconds of a span.")]
Seconds = Annotated[float, Field(ge=0)]
Word = Annotated[
    str, Field(pattern="^[a-z][a-z-]*$", description="A fixed word of journalkeeper-reasons(7); words may be added.")
]
RuleWord = Annotated[str, Field(pattern="^[a-z][a-z0-9-]*$", description="A fixed word of journalkeeper-reasons(7).")]
Hidden = Annotated[T, Key(hidden=True)]
Inline = Annotated[T, Key(inline=True)]
Sometimes = Annotated[T | None, Key(optional=True)]

SIGNATURES: Final[dict[Any, str]] = {bool: "b", int: "t", float: "d", list: "as", tuple: "as", dict: "a{sv}"}
"""The D-Bus types of Python's types, where a `Key` has no other; the words of an enumeration are strings."""

UNKNOWN: Final[dict[str, object]] = {"s": "", "as": [], "aa{sv}": [], "b": False, "t": 0, "u": 0, "d": 0.0}
"""The value of a property whose value is unknown, by signature."""


class Row(NamedTuple):
    """A published value of the record `kind`. `nullable` is whether it may be None.

    `bus` is its D-Bus property, HeadTimeUSec for head_time_us and Size for size_bytes unless the Key names it, and
    `signature` that property's type.
    """

    kind: type
    attribute: str
    key: str
    hint: Any
    nullable: bool
    bus: str
    signature: str
    about: Key


def split_hint(hint: Any) -> tuple[Any, bool, list[Any]]:
    """Return the parts of a type annotation: (type, permits None, metadata), also of an Annotated type in a union.

    A union without None is a type. Raises: ValueError for a union of None and several other types.
    """
    if get_origin(hint) is Annotated:
        bare, nullable, inside = split_hint(get_args(hint)[0])
        return bare, nullable, [*inside, *hint.__metadata__]
    if get_origin(hint) in {Union, UnionType} and type(None) in get_args(hint):
        (only,) = (one for one in get_args(hint) if one is not type(None))
        bare, _, inside = split_hint(only)
        return bare, True, inside
    return hint, False, []


@cache
def list_rows(kind: Any) -> tuple[Row, ...]:
    """Return the rows of a record class: its fields that are not hidden, then its properties with a Key."""
    hints = get_type_hints(kind, include_extras=True)
    for name, member in vars(kind).items():
        if isinstance(member, property):
            hint = get_type_hints(member.fget, include_extras=True).get("return")
            if any(isinstance(one, Key) for one in split_hint(hint)[2]):
                hints[name] = hint
    found = []
    for name, hint in hints.items():
        bare, nullable, extras = split_hint(hint)
        about = next((one for one in extras if isinstance(one, Key)), Key())
        if not about.hidden:
            key, plain = about.name or name, get_origin(bare) or bare
            words = "".join(word.capitalize() for word in key.removesuffix("_bytes").removesuffix("_us").split("_"))
            bus = about.bus or f"{words}{'USec' if key.endswith('_us') else ''}"
            signature = about.signature or SIGNATURES.get(plain, "s")
            found.append(Row(kind, name, key, hint, nullable, bus, signature, about))
    return tuple(found)


def to_json(value: Any) -> Any:
    """Return a record, or a container of records, as objects for `json.dumps`. Floats are rounded to nine decimals.

    A record has the keys of `list_rows`, but no None with an `optional` Key. Those of an inline record are merged in.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return round(value, 9)
    if isinstance(value, Mapping):
        return {key: to_json(one) for key, one in value.items()}
    if not hasattr(value, "_fields"):
        return [to_json(one) for one in value]
    found: dict[str, Any] = {}
    kind: Any = type(value)
    for row in list_rows(kind):
        one = getattr(value, row.attribute)
        if row.about.inline:
            found |= to_json(one) or {}
        elif one is not None or not row.about.optional:
            found[row.key] = to_json(one)
    return found


def write_json(value: object, *, indent: int | None = None) -> str:
    r"""Return a record, or a container of records, as JSON: one line, or indented.

    Always ASCII: a byte of a path that is not UTF-8 is \udcXX, XX being the byte, which json.loads and os.fsencode
    turn back into it (PEP 383).
    """
    return json.dumps(to_json(value), indent=indent, separators=(",", ":") if indent is None else None)


_make_adapter = cache(TypeAdapter)


def parse_record(kind: type[T], written: Mapping[str, Any]) -> T:
    """Return a record of class `kind` with the values of a JSON object or a row of the history.

    The keys are the names of the record's fields, not the names of columns or those that a `Key` can give them. Unknown
    keys are ignored. Raises: ValueError for an impossible value, or a missing one without a default.
    """
    record: Any = kind
    known = {name: written[name] for name in record._fields if name in written}
    try:
        adapter: TypeAdapter[T] = _make_adapter(record)
        return adapter.validate_python(known)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ValueError(f"{kind.__name__}.{wrong['loc'][-1]}: {wrong['input']!r:.40} is not possible") from error


def list_bus_rows(kind: type) -> tuple[Row, ...]:
    """Return the rows of a record class that are D-Bus properties: those of `list_rows` without `bus=None`."""
    return tuple(row for row in list_rows(kind) if row.about.bus is not None)


def name_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given D-Bus properties by the fields of record class `kind`, a Key's `none` as None. Ignore others."""
    there = [row for row in list_bus_rows(kind) if row.bus in values]
    return {row.attribute: None if values[row.bus] == row.about.none else values[row.bus] for row in there}


def name_column(name: str) -> str:
    """Return the name of the SQL column for a field. A field in seconds ("_s") has a column in microseconds ("_us")."""
    return f"{name.removesuffix('_s')}_us" if name.endswith("_s") else name


def to_columns(value: Any) -> dict[str, Any]:
    """Return all fields of a record, also hidden ones, by SQL column. Seconds become us; others stay as they are."""
    fields = value._asdict().items()
    return {name_column(name): round(one * 1e6) if name.endswith("_s") else one for name, one in fields}
