# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus interface as prose, from the XML that is its contract.

The XML documents itself (org.gtk.GDBus.DocString); here it is only laid out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import roff

DBUS = Path(__file__).parent.parent / "dbus"
DOC = "annotation[@name='org.gtk.GDBus.DocString']"
CHANGES = "annotation[@name='org.freedesktop.DBus.Property.EmitsChangedSignal']"


def described(name: str) -> Iterator[str]:
    """One interface: what it is for, its methods, signals and properties."""
    root = ElementTree.parse(DBUS / f"{name}.xml").getroot()  # noqa: S314 - our own file
    interface = next(one for one in root.iter("interface") if one.get("name") == name)
    yield from roff.prose(_doc(interface))
    for tag, title in (("method", "Methods"), ("signal", "Signals"), ("property", "Properties")):
        members = interface.findall(tag)
        if members:
            yield f'.SS "{title} of {roff.literal(name.rpartition(".")[2])}"'
        for member in members:
            yield from roff.item(_signature(member), _doc(member))


def _doc(one: ElementTree.Element) -> str:
    found = one.find(DOC)
    return " ".join((found.get("value") or "").split()) if found is not None else ""


def _signature(member: ElementTree.Element) -> str:
    """How it is called: arguments with their types, what comes back; of a property its type."""
    name = roff.bold(member.get("name", ""))
    if member.tag == "property":
        constant = member.find(CHANGES) is not None
        return f"{name}: {roff.literal(member.get('type', ''))}{', constant' if constant else ''}"
    given = [arg for arg in member.iter("arg") if arg.get("direction", "in") == "in"]
    back = [arg for arg in member.iter("arg") if arg.get("direction") == "out"]
    call = f"{name}({_arguments(given)})"
    return f"{call} \\(-> {_arguments(back)}" if back else call


def _arguments(arguments: list[ElementTree.Element]) -> str:
    return ", ".join(f"{roff.literal(arg.get('type', ''))} {roff.italic(arg.get('name', ''))}" for arg in arguments)
