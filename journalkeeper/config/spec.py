# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a directive of journalkeeper.conf may be: its form, its range, how it is read and written.

The one rule: reading and writing are inverse. What `written` says, `read` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from journalkeeper.model import GIB, KIB, MIB, compression

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

MS = 1_000
SECOND = 1_000 * MS
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE


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
    Form.SPAN: ((DAY, "d"), (60 * MINUTE, "h"), (MINUTE, "min"), (SECOND, "s"), (MS, "ms"), (1, "us")),
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
                from shlex import join  # noqa: PLC0415 - only who shows values needs it

                return join(value)
        return str(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic makes a value of the text: first our reading of it, then its check of type and range."""
        from pydantic import Field  # noqa: PLC0415 - pydantic is already loaded when it calls this
        from pydantic_core import core_schema  # noqa: PLC0415

        bounded = source if self.high is None else Annotated[source, Field(ge=self.low, le=self.high)]
        return core_schema.no_info_before_validator_function(self.read, handler.generate_schema(bounded))

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
        return _readers()[self.form](text)

    def _yes_or_no(self, text: str) -> str:
        """The word that another of systemd's words for a boolean stands for; what is none is left to the check."""
        try:
            return self.written(_readers()[Form.BOOL](text))
        except ValueError:
            return text


def _readers() -> dict[Form, Callable[[str], object]]:
    """How each form is read."""
    from journalkeeper.model.units import parse_bool, parse_size, parse_span_us  # noqa: PLC0415

    return {
        Form.BOOL: parse_bool,
        Form.COMPRESSION: _compression,
        Form.COUNT: _count,
        Form.PATH: _absolute,
        Form.PERCENT: lambda text: _count(text.removesuffix("%")),
        Form.SIZE: parse_size,
        Form.SPAN: parse_span_us,
        Form.WORD: str,
    }


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
    from shlex import split  # noqa: PLC0415 - only a file that names directories needs it

    return [_absolute(path) for path in split(text)]
