# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus contract as tables: interfaces, signals, records and arguments.

Pure. The properties are those of the records in model/, and the methods are those of objects.py. Introspect's answers,
the installed XML and org.journalkeeper1(5) are generated from these tables.
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from journalkeeper.bus import names
from journalkeeper.model import JournalFile, Request
from journalkeeper.model.errors import UsageError
from journalkeeper.model.manager import Treatment
from journalkeeper.model.schema import Row, list_bus_rows
from journalkeeper.model.units import parse_compression

Args = tuple[tuple[str, str], ...]
"""Pairs of a name and a signature."""

Values = dict[str, tuple[str, Any]]
"""A signature and a value by name: an a{sv} on the bus."""


def join_signatures(args: Args) -> str:
    """Return the signatures of all arguments joined to one, "" for no argument."""
    return "".join(signature for _, signature in args)


class Method(NamedTuple):
    """A method. `action` is the polkit action that a call requires; None: every user may call it.

    `run` answers a call. It takes the Daemon, the path of the object, the Caller, and the values that `takes` lists.
    The docstring of `run` is the published description.
    """

    name: str
    run: Callable[..., Awaitable[Any]]
    takes: Args = ()
    gives: Args = ()
    action: str | None = None


class Signal(NamedTuple):
    """A broadcast signal of `interface`."""

    interface: str
    name: str
    takes: Args
    doc: str = ""


class Interface(NamedTuple):
    """An interface. `properties` are values of records, each with a name on the bus."""

    name: str
    doc: str = ""
    methods: tuple[Method, ...] = ()
    signals: tuple[Signal, ...] = ()
    properties: tuple[Row, ...] = ()


REQUEST: Final = (("paths", "as"), ("compress", "s"), ("flags", "t"))
"""The arguments of Plan and Defragment. No method takes a variant: it would be converted before the method sees it."""

JOB: Final = ("job", "o")

FILE: Final = (*list_bus_rows(JournalFile), *list_bus_rows(Treatment))
"""The keys of a file in the answer of ListFiles."""

JOB_NEW: Final = Signal(names.MANAGER, "JobNew", (("id", "u"), JOB), "A job was put into the queue.")
JOB_OVER: Final = "A job is over and its object gone. The result is done, failed or canceled; Result has the outcome."
JOB_REMOVED: Final = Signal(names.MANAGER, "JobRemoved", (("id", "u"), JOB, ("result", "s")), JOB_OVER)
FILE_DEFRAGMENTED: Final = Signal(
    names.MANAGER,
    "FileDefragmented",
    (("path", "s"), ("before", "t"), ("after", "t"), ("written", "t"), ("reclaimed", "t")),
    "A file was rewritten: extents before and after, bytes written, and bytes freed, 0 if that is not known.",
)
PROPERTIES_CHANGED: Final = Signal(
    names.PROPERTIES, "PropertiesChanged", (("interface", "s"), ("changed", "a{sv}"), ("invalidated", "as"))
)

# -- The arguments of Plan and Defragment: a Request as paths, a compression and flags --------------

MOST_CHARACTERS: Final = 1 << 16
"""The greatest length of all paths together: a call with them is shorter than a message that the service reads."""

LONGEST: Final = 4096
"""A path has fewer characters than this (PATH_MAX)."""

FLAGS: Final = ("active", "archived", "now", "allow_unshare", "before_shutdown", "asked")
"""The fields of a Request that are flags: the bits 1, 2, 4, 8, 16 and 32."""


def list_arguments(request: Request) -> tuple[list[str], str, int]:
    """Return the paths in ASCII, the compression ("" for none) and the sum of all FLAGS of `request`."""
    flags = sum(getattr(request, name) << bit for bit, name in enumerate(FLAGS))
    return [names.to_ascii(path) for path in request.paths], request.compress or "", flags


def make_request(paths: Sequence[str], compress: str, flags: int, directories: tuple[str, ...]) -> Request:
    """Return the Request that these arguments describe, with `upkeep`, and each path once, as it is given.

    Raises: UsageError for unknown flags or compression, and above MOST_CHARACTERS; as `check_path`.
    """
    if flags >> len(FLAGS):
        raise UsageError(f"{flags} has unknown flags; known are {', '.join(FLAGS)}, which are 1, 2, 4, ...")
    if sum(map(len, paths)) > MOST_CHARACTERS:
        raise UsageError(f"paths may have {MOST_CHARACTERS} characters together; for all files give none")
    if compress:
        try:
            parse_compression(compress if len(compress) <= 100 else f"{compress[:100]}...")
        except ValueError as error:
            raise UsageError(f"compress: {error}") from error
    checked = tuple(dict.fromkeys(check_path(one, directories) for one in paths))
    given = {name: bool(flags >> bit & 1) for bit, name in enumerate(FLAGS)}
    return Request(checked, compress=compress or None, upkeep=True, **given)


def check_path(path: str, directories: tuple[str, ...]) -> str:
    """Return `path` if it is normalized, below one of `directories` and shorter than LONGEST, else raise UsageError."""
    is_below = any(path.startswith(f"{directory.rstrip('/')}/") for directory in directories)
    if not is_below or len(path) >= LONGEST or posixpath.normpath(path) != path:
        raise UsageError(f"{names.shorten(path)} is not below {' or '.join(directories)}, or has . or .. in it")
    return path
