# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus interfaces as man(7) and as the XML that is installed, from the tables that the service answers by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree

import roff
from meanings import describe

from journalkeeper.bus.contract import FILE, Args, Interface, Method
from journalkeeper.bus.objects import JOB_INTERFACE, MANAGER, introspection
from journalkeeper.model.schema import Row

INTERFACES: Final = {one.name: one for one in (MANAGER, JOB_INTERFACE)}
DOCTYPE: Final = """\
<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">
"""
LICENSE: Final = '<?xml version="1.0" encoding="UTF-8"?> <!-- SPDX-License-Identifier: LGPL-2.1-or-later -->\n'


def describe_interface(name: str) -> Iterator[str]:
    """Yield the lines about one interface: its purpose, methods, signals and properties."""
    interface = INTERFACES[name]
    yield from roff.prose(interface.doc)
    for title, members in (
        ("Methods", [(_call(method), _meaning(method)) for method in interface.methods]),
        ("Signals", [(f"{roff.bold(one.name)}({_arguments(one.takes)})", one.doc) for one in interface.signals]),
        ("Properties", [(_property(row), describe(row)) for row in interface.properties]),
    ):
        if members:
            yield f'.SS "{title} of {roff.literal(name.rpartition(".")[2])}"'
        for term, meaning in members:
            yield from roff.item(term, meaning)


def list_keys(_: str) -> Iterator[str]:
    """Yield the keys of a file in the answer of ListFiles, each with its type and meaning."""
    for row in FILE:
        yield from roff.item(f"{roff.bold(row.bus)}: {roff.literal(row.signature)}", describe(row))


def _call(method: Method) -> str:
    """Return the call of a method: its arguments with their types, and the values that it returns."""
    call = f"{roff.bold(method.name)}({_arguments(method.takes)})"
    return f"{call} \\(-> {_arguments(method.gives)}" if method.gives else call


def _meaning(method: Method) -> str:
    """Return the description of a method, with the polkit action that it requires."""
    said = " ".join((method.run.__doc__ or "").split())
    return said if method.action is None else f"{said} Asks for {method.action}."


def _property(row: Row) -> str:
    return f"{roff.bold(row.bus)}: {roff.literal(row.signature)}{', constant' if row.about.constant else ''}"


def _arguments(arguments: Args) -> str:
    return ", ".join(f"{roff.literal(signature)} {roff.italic(name)}" for name, signature in arguments)


def make_xml(interface: Interface) -> str:
    """Return the XML of one interface, with its documentation in annotations org.gtk.GDBus.DocString."""
    root = ElementTree.fromstring(introspection([interface], []))  # noqa: S314 - made by journalkeeper
    (inside,) = root
    meanings = {method.name: _meaning(method) for method in interface.methods}
    meanings |= {signal.name: signal.doc for signal in interface.signals}
    meanings |= {row.bus: describe(row) for row in interface.properties}
    for member in inside:
        member.insert(0, _document(meanings[member.get("name", "")]))
    inside.insert(0, _document(interface.doc))
    ElementTree.indent(root)
    return f"{LICENSE}{DOCTYPE}{ElementTree.tostring(root, encoding='unicode')}\n"


def _document(meaning: str) -> ElementTree.Element:
    return ElementTree.Element("annotation", name="org.gtk.GDBus.DocString", value=meaning)
