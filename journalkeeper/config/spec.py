# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a directive of journalkeeper.conf may be: its form, its range, how it is read and written.

Reading and writing are inverse: what `written` says, `read` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from shlex import join, split
from typing import Annotated, Any, NamedTuple

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from journalkeeper.model import GIB, KIB, MIB, compression
from journalkeeper.model.units import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    MS_US,
    SECOND_US,
    parse_bool,
    parse_size,
    parse_span_us,
)


class Form(StrEnum):
    """What a directive's value looks like, in the words that an error message uses."""

    BOOL = "yes or no"
    COMPRESSION = compression.ALLOWED
    COUNT = "a whole number"
    PATH = "an absolute path without '..'"
    PATHS = "absolute paths without '..', separated by spaces, and quoted if they contain some"
    PERCENT = "a percentage such as 40%"
    SIZE = "a size in bytes such as 64M"
    SPAN = "a time span such as 10s or 1h 30min"
    WORD = "one of"


UNITS = {
    Form.SIZE: ((1 << 40, "T"), (GIB, "G"), (MIB, "M"), (KIB, "K")),
    Form.SPAN: ((DAY_US, "d"), (HOUR_US, "h"), (MINUTE_US, "min"), (SECOND_US, "s"), (MS_US, "ms"), (1, "us")),
    Form.PERCENT: ((1, "%"),),
}


class Spec(NamedTuple):
    """What the annotation of a field says about its directive.

    `basis` is the measurement or source behind the default. `low` and `high` bound the
    field's value in the field's unit; `endless` admits "infinity", which is None.
    """

    name: str
    form: Form
    doc: str
    basis: str
    low: int = 0
    high: int | None = None
    words: tuple[str, ...] = ()
    endless: bool = False

    @property
    def allowed(self) -> str:
        """What may be written, in words."""
        text = str(self.form)
        if self.words:
            text += " " + ", ".join(self.words)
        if self.high is not None:
            text += f", from {self.written(self.low)} to {self.written(self.high)}"
        return text + (", or infinity" if self.endless else "")

    def written(self, value: object) -> str:
        """`value` as it would be written in a file."""
        match value:
            case None:
                return "infinity"
            case bool():
                return "yes" if value else "no"
            case int():
                return _scaled(value, UNITS.get(self.form, ()))
            case tuple():
                return join(value)
        return str(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic makes a value: a file's text is read by us, then type and range are checked."""

        def value(given: object) -> object:
            return self.read(given) if isinstance(given, str | list) else given

        bounded = source if self.high is None else Annotated[source, Field(ge=self.low, le=self.high)]
        return core_schema.no_info_before_validator_function(value, handler.generate_schema(bounded))

    def read(self, text: str | list[str]) -> object:
        """The value that the text of one directive stands for; a list's texts add up. Ranges are not looked at.

        Raises: ValueError saying what is wrong with it.
        """
        if isinstance(text, list):
            return tuple(dict.fromkeys(path for line in text for path in _paths(line)))
        if self.endless and text == "infinity":
            return None
        if {"yes", "no"} <= set(self.words) and text not in self.words:
            return self._yes_or_no(text)
        return READERS[self.form](text)

    def _yes_or_no(self, text: str) -> str:
        """The word that another of systemd's words for a boolean stands for; what is none is left to the check."""
        try:
            return self.written(READERS[Form.BOOL](text))
        except ValueError:
            return text


def _scaled(value: int, units: Iterable[tuple[int, str]]) -> str:
    """`value` in the largest of `units` that says it exactly."""
    unit, suffix = next((unit for unit in units if value and value % unit[0] == 0), (1, ""))
    return f"{value // unit}{suffix}"


def _compression(text: str) -> str:
    """Checked here, and kept as the word that a plan and a command line hand on."""
    compression.parse_compression(text)
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(Form.COUNT)
    return int(text)


def _absolute(text: str) -> str:
    """The path without slashes that say nothing; names are not looked up."""
    if not text.startswith("/") or ".." in text.split("/"):
        raise ValueError(Form.PATH)
    return "/" + "/".join(name for name in text.split("/") if name not in ("", "."))


def _paths(text: str) -> list[str]:
    """The paths in one line; quotes keep a path with spaces together, as in systemd's lists."""
    return [_absolute(path) for path in split(text)]


READERS: dict[Form, Callable[[str], object]] = {
    Form.BOOL: parse_bool,
    Form.COMPRESSION: _compression,
    Form.COUNT: _count,
    Form.PATH: _absolute,
    Form.PERCENT: lambda text: _count(text.removesuffix("%")),
    Form.SIZE: parse_size,
    Form.SPAN: parse_span_us,
    Form.WORD: str,
}
"""How each form but PATHS is read."""
