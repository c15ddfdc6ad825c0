# SPDX-License-Identifier: LGPL-2.1-or-later
"""The form and range of a directive of journalkeeper.conf, and the conversion of its values.

Reading and writing are inverse: `read(format_value(value))` is `value`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from shlex import join, split
from typing import Annotated, Any, NamedTuple

from pydantic import Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from journalkeeper.config import weekly
from journalkeeper.model import units

parse_bool = TypeAdapter(bool).validate_python
"""Return the boolean for one of systemd's words, in any case. Source: parse_boolean()."""


class Form(StrEnum):
    """The form of a directive's value, in the words of error messages."""

    BOOL = "yes or no"
    COMPRESSION = units.COMPRESSION_ALLOWED
    COUNT = "a whole number"
    PATH = "an absolute path without '..'"
    PATHS = "absolute paths without '..', separated by spaces, and quoted if they contain some"
    PERCENT = "a percentage such as 40%"
    SIZE = "a size in bytes such as 64M"
    SPAN = "a time span such as 10s or 1h 30min"
    WEEKLY = weekly.ALLOWED
    WORD = "one of"


UNITS = {
    Form.SIZE: units.SIZE_UNITS,
    Form.SPAN: {words[0]: unit for unit, words in units.SPAN_UNITS},
    Form.PERCENT: {"%": 1},
}


class Spec(NamedTuple):
    """The description of a directive, in the annotation of its field.

    `low` and `high` limit the value in the field's unit; without `high` neither does. `endless`: "infinity" is None.
    """

    name: str
    form: Form
    low: int = 0
    high: int | None = None
    words: tuple[str, ...] = ()
    endless: bool = False

    @property
    def allowed(self) -> str:
        """The permitted values for an error message, such as "a time span such as 10s, from 1s to 1d, or infinity"."""
        text = str(self.form)
        if self.words:
            text += " " + ", ".join(self.words)
        if self.high is not None:
            text += f", from {self.format_value(self.low)} to {self.format_value(self.high)}"
        return text + (", or infinity" if self.endless else "")

    def format_value(self, value: object) -> str:
        """Return `value` as text for a configuration file: "2h", "64M", "yes", "infinity" for None."""
        match value:
            case None:
                return "infinity"
            case bool():
                return "yes" if value else "no"
            case int():
                return units.format_exact(value, UNITS.get(self.form, {}))
            case tuple():
                return join(value)
        return str(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return pydantic's schema for the field: `read` converts texts and lists, pydantic checks type and range."""

        def read_if_text_or_list(given: object) -> object:
            return self.read(given) if isinstance(given, str | list) else given

        bounded = source if self.high is None else Annotated[source, Field(ge=self.low, le=self.high)]
        return core_schema.no_info_before_validator_function(read_if_text_or_list, handler.generate_schema(bounded))

    def read(self, text: str | list[str]) -> object:
        """Return the value of a directive's text, or of the list of its texts for paths, each once. Infinity is None.

        pydantic later checks the range and the permitted words. Among words that include yes and no, other spellings
        of a boolean become these.
        Raises: ValueError with the reason, if the text does not have the directive's form.
        """
        if isinstance(text, list):
            return tuple(dict.fromkeys(path for line in text for path in map(_parse_absolute, split(line))))
        if self.endless and text == "infinity":
            return None
        if {"yes", "no"} <= set(self.words) and text not in self.words:
            with suppress(ValueError):
                return self.format_value(parse_bool(text))
        return READERS[self.form](text)


def _parse_count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(Form.COUNT)
    return int(text)


def _parse_absolute(text: str) -> str:
    """Return an absolute path, without empty and "." parts. Raises: ValueError for a relative one, and for ".."."""
    if not text.startswith("/") or ".." in text.split("/"):
        raise ValueError(Form.PATH)
    return "/" + "/".join(name for name in text.split("/") if name not in ("", "."))


READERS: dict[Form, Callable[[str], object]] = {
    Form.BOOL: parse_bool,
    Form.COMPRESSION: lambda text: str(units.parse_compression(text) or "no"),
    Form.COUNT: _parse_count,
    Form.PATH: _parse_absolute,
    Form.PERCENT: lambda text: _parse_count(text.removesuffix("%")),
    Form.SIZE: units.parse_size,
    Form.SPAN: units.parse_span_us,
    Form.WEEKLY: lambda text: weekly.parse_weekly(text) and text,
    Form.WORD: str,
}
"""The function that reads each form, except PATHS."""
