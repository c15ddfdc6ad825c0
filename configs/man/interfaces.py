# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus interfaces as prose and as the XML that is installed, from the tables that the service answers by."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Final
from xml.sax.saxutils import escape

import roff
from meanings import describe

from journalkeeper.bus.contract import CONSTANT, FILE, Args, Interface, Method
from journalkeeper.bus.objects import JOB_INTERFACE, MANAGER
from journalkeeper.model.record import Row

COLUMNS: Final = 120
INTERFACES: Final = {one.name: one for one in (MANAGER, JOB_INTERFACE)}
CONST: Final = f'      <annotation name="{CONSTANT["name"]}" value="{CONSTANT["value"]}"/>\n'
HEAD: Final = """\
<?xml version="1.0" encoding="UTF-8"?> <!-- SPDX-License-Identifier: LGPL-2.1-or-later -->
<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">
<node>
"""


def described(name: str) -> Iterator[str]:
    """One interface: what it is for, its methods, signals and properties."""
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
    """Show the keys of a file in the answer of ListFiles, each with its type and meaning."""
    for row in FILE:
        yield from roff.item(f"{roff.bold(row.bus)}: {roff.literal(row.signature)}", describe(row))


def _call(method: Method) -> str:
    """How it is called: arguments with their types, and what comes back."""
    call = f"{roff.bold(method.name)}({_arguments(method.takes)})"
    return f"{call} \\(-> {_arguments(method.gives)}" if method.gives else call


def _meaning(method: Method) -> str:
    """The description of the method, with the polkit action that it requires."""
    return method.doc if method.action is None else f"{method.doc} Asks for {method.action}."


def _property(row: Row) -> str:
    return f"{roff.bold(row.bus)}: {roff.literal(row.signature)}{', constant' if row.about.constant else ''}"


def _arguments(arguments: Args) -> str:
    return ", ".join(f"{roff.literal(signature)} {roff.italic(name)}" for name, signature in arguments)


def xml(interface: Interface) -> str:
    """One interface with its documentation (org.gtk.GDBus.DocString). Source: D-Bus specification."""
    members = [
        *(
            _member(
                "method",
                method.name,
                "",
                [_doc(8, _meaning(method)), *_args(method.takes, "in"), *_args(method.gives, "out")],
            )
            for method in interface.methods
        ),
        *(_member("signal", one.name, "", [_doc(8, one.doc), *_args(one.takes)]) for one in interface.signals),
        "".join(
            _member(
                "property",
                row.bus,
                f' type="{row.signature}" access="read"',
                [_doc(8, describe(row)), *([CONST] if row.about.constant else [])],
            )
            for row in interface.properties
        ),
    ]
    body = "\n".join([_doc(6, interface.doc), *members])
    return f'{HEAD}  <interface name="{interface.name}">\n{body}  </interface>\n</node>\n'


def _member(kind: str, name: str, more: str, inside: Iterable[str]) -> str:
    return f'    <{kind} name="{name}"{more}>\n{"".join(inside)}    </{kind}>\n'


def _args(args: Args, direction: str = "") -> list[str]:
    way = f' direction="{direction}"' if direction else ""
    return [f'      <arg name="{name}" type="{signature}"{way}/>\n' for name, signature in args]


def _doc(indent: int, text: str) -> str:
    """What something means, in as many lines as it takes; those after the first are indented by `indent`."""
    opening = f'{" " * (indent - 2)}<annotation name="org.gtk.GDBus.DocString" value="'
    value = escape(text, {'"': "&quot;"})
    lines = textwrap.wrap(
        f'{value}"/>', COLUMNS, initial_indent=opening, subsequent_indent=" " * indent, break_on_hyphens=False
    )
    return "".join(f"{line}\n" for line in lines)
