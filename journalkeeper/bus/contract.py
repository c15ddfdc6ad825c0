# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus contract as tables: what an interface is, the signals and records, and Introspect's answer.

Pure. The properties are those of the records in model/, and the methods are those of objects.py. Introspect's answers,
the installed XML and org.journalkeeper1(5) are generated from these tables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple
from xml.etree.ElementTree import Element, SubElement, tostring

from journalkeeper.bus import names
from journalkeeper.model import JournalFile
from journalkeeper.model.manager import Treatment
from journalkeeper.model.schema import Row, bus_rows

Args = tuple[tuple[str, str], ...]
"""Pairs of a name and a signature."""

Values = dict[str, tuple[str, Any]]
"""A signature and a value by name: an a{sv} on the bus."""


def join_signatures(args: Args) -> str:
    """Return the signatures of all arguments joined to one, "" for no argument."""
    return "".join(signature for _, signature in args)


class Method(NamedTuple):
    """A method. `action` is the polkit action that a call requires; None: every user may call it.

    `run` answers a call. It takes an Objects, the path of the object, the Caller, and the values that `takes` lists.
    """

    name: str
    doc: str
    takes: Args
    gives: Args
    action: str | None
    run: Callable[..., Awaitable[Any]]


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
ID: Final = ("id", "u")

FILE: Final = (*bus_rows(JournalFile), *bus_rows(Treatment))
"""The keys of a file in the answer of ListFiles."""

JOB_NEW: Final = Signal(names.MANAGER, "JobNew", (ID, JOB), "A job was put into the queue.")
JOB_REMOVED: Final = Signal(
    names.MANAGER,
    "JobRemoved",
    (ID, JOB, ("result", "s")),
    "A job is over and its object gone. The result is done, failed (something failed, a path that was named is no"
    " journal file, or nothing could be done at all) or canceled. Its Result can be asked for.",
)
FILE_DEFRAGMENTED: Final = Signal(
    names.MANAGER,
    "FileDefragmented",
    (("path", "s"), ("before", "t"), ("after", "t"), ("written", "t"), ("reclaimed", "t")),
    "A file was rewritten, by a job or by the service itself: extents before and after, bytes written, and bytes that"
    " it occupies less: 0 where that is not known, as under the confinement of journalkeeper.service, which may not ask"
    " (CAP_SYS_ADMIN).",
)
PROPERTIES_CHANGED: Final = Signal(
    names.PROPERTIES, "PropertiesChanged", (("interface", "s"), ("changed", "a{sv}"), ("invalidated", "as"))
)

DOCTYPE: Final = """\
<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">
"""
CONSTANT: Final = {"name": f"{names.BUS}.Property.EmitsChangedSignal", "value": "const"}


def introspection(interfaces: Iterable[Interface], children: Iterable[str]) -> str:
    """Return the XML that Introspect answers. Source: D-Bus specification, "Introspection Data Format"."""
    node = Element("node")
    for interface in interfaces:
        inside = SubElement(node, "interface", name=interface.name)
        for method in interface.methods:
            member = SubElement(inside, "method", name=method.name)
            _add_args(member, method.takes, direction="in")
            _add_args(member, method.gives, direction="out")
        for signal in interface.signals:
            _add_args(SubElement(inside, "signal", name=signal.name), signal.takes)
        for row in interface.properties:
            member = SubElement(inside, "property", name=row.bus, type=row.signature, access="read")
            if row.about.constant:
                SubElement(member, "annotation", CONSTANT)
    for child in children:
        SubElement(node, "node", name=child)
    return DOCTYPE + tostring(node, encoding="unicode")


def _add_args(member: Element, args: Args, **direction: str) -> None:
    for name, signature in args:
        SubElement(member, "arg", {"name": name, "type": signature, **direction})
