# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interfaces as tables: what can be called and read, by which signature and by whom.

Pure. The contract is configs/dbus/*.xml, which has the same names with their meaning; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from journalkeeper.bus import names

Args = tuple[tuple[str, str], ...]
"""Names with their signatures."""


class Method(NamedTuple):
    """`action` is what polkit is asked for before it is called; None: everybody may."""

    name: str
    takes: Args = ()
    gives: Args = ()
    action: str | None = None

    @property
    def signature(self) -> str:
        """Of the whole call."""
        return "".join(signature for _, signature in self.takes)


class Signal(NamedTuple):
    """What is said to everybody."""

    name: str
    takes: Args

    @property
    def signature(self) -> str:
        """Of the whole body."""
        return "".join(signature for _, signature in self.takes)


class Interface(NamedTuple):
    """`properties` have their signatures; those in `constant` never change."""

    name: str
    methods: tuple[Method, ...] = ()
    signals: tuple[Signal, ...] = ()
    properties: Args = ()
    constant: frozenset[str] = frozenset()


OPTIONS: Final = ("options", "a{sv}")
JOB: Final = ("job", "o")
ID: Final = ("id", "u")

MANAGER: Final = Interface(
    names.MANAGER,
    methods=(
        Method("Plan", (OPTIONS,), (("plan", "s"),)),
        Method("Defragment", (("path", "s"), OPTIONS), (JOB,), names.ACTION_DEFRAGMENT),
        Method("DefragmentAll", (OPTIONS,), (JOB,), names.ACTION_DEFRAGMENT),
        Method("Cancel", (JOB,), action=names.ACTION_DEFRAGMENT),
        Method("Result", (JOB,), (("document", "s"),)),
        Method("Pause", (("usec", "t"),), action=names.ACTION_MANAGE),
        Method("Resume", action=names.ACTION_MANAGE),
        Method("Rescan", action=names.ACTION_MANAGE),
        Method("Reload", action=names.ACTION_MANAGE),
    ),
    signals=(
        Signal("JobNew", (ID, JOB)),
        Signal("JobRemoved", (ID, JOB, ("result", "s"))),
        Signal(
            "FileDefragmented",
            (("path", "s"), ("before", "t"), ("after", "t"), ("written", "t"), ("reclaimed", "t")),
        ),
    ),
    properties=(
        ("Version", "s"),
        ("State", "s"),
        ("StateReason", "s"),
        ("Directories", "as"),
        ("FileCount", "u"),
        ("Extents", "t"),
        ("ActiveExtents", "t"),
        ("FragmentedFiles", "u"),
        ("WindowOpen", "b"),
        ("NextFlushUSec", "t"),
        ("LastRunUSec", "t"),
        ("BytesWritten", "t"),
        ("BytesReclaimed", "t"),
        ("BudgetLeft", "t"),
        ("IntakeDelayP99USec", "t"),
        ("Limits", "as"),
        ("Paused", "b"),
    ),
    constant=frozenset({"Version"}),
)

FILE: Final = Interface(
    names.FILE,
    properties=(
        ("Path", "s"),
        ("Device", "t"),
        ("Inode", "t"),
        ("Kind", "s"),
        ("Owner", "s"),
        ("Instance", "s"),
        ("State", "s"),
        ("Size", "t"),
        ("AllocatedSize", "t"),
        ("SharedSize", "t"),
        ("Extents", "t"),
        ("IdealExtents", "t"),
        ("Compressed", "b"),
        ("NoCOW", "b"),
        ("Entries", "t"),
        ("HeadTimeUSec", "t"),
        ("TailTimeUSec", "t"),
        ("Problem", "s"),
        ("Action", "s"),
        ("Reason", "s"),
        ("Detail", "s"),
    ),
    constant=frozenset({"Path"}),
)

JOB_INTERFACE: Final = Interface(
    names.JOB,
    properties=(
        ("Id", "u"),
        ("State", "s"),
        ("Options", "a{sv}"),
        ("Progress", "d"),
        ("File", "s"),
        ("FileNumber", "u"),
        ("FileTotal", "u"),
        ("BytesDone", "t"),
        ("BytesTotal", "t"),
    ),
    constant=frozenset({"Id", "Options"}),
)

PROPERTIES: Final = Interface(
    names.PROPERTIES,
    methods=(
        Method("Get", (("interface", "s"), ("property", "s")), (("value", "v"),)),
        Method("GetAll", (("interface", "s"),), (("properties", "a{sv}"),)),
        Method("Set", (("interface", "s"), ("property", "s"), ("value", "v"))),
    ),
    signals=(Signal("PropertiesChanged", (("interface", "s"), ("changed", "a{sv}"), ("invalidated", "as"))),),
)
INTROSPECTABLE: Final = Interface(names.INTROSPECTABLE, methods=(Method("Introspect", gives=(("xml", "s"),)),))
PEER: Final = Interface(names.PEER, methods=(Method("Ping"), Method("GetMachineId", gives=(("id", "s"),))))
OBJECT_MANAGER: Final = Interface(
    names.OBJECT_MANAGER,
    methods=(Method("GetManagedObjects", gives=(("objects", "a{oa{sa{sv}}}"),)),),
    signals=(
        Signal("InterfacesAdded", (("object", "o"), ("interfaces", "a{sa{sv}}"))),
        Signal("InterfacesRemoved", (("object", "o"), ("interfaces", "as"))),
    ),
)

EVERYWHERE: Final = (PEER, INTROSPECTABLE)
OF_AN_OBJECT: Final = (*EVERYWHERE, PROPERTIES)


def introspection(interfaces: Iterable[Interface], children: Iterable[str]) -> str:
    """What Introspect answers. Source: D-Bus specification, "Introspection Data Format"."""
    lines = [
        '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"',
        ' "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">',
        "<node>",
    ]
    for interface in interfaces:
        lines.append(f' <interface name="{interface.name}">')
        for method in interface.methods:
            args = [*_args(method.takes, ' direction="in"'), *_args(method.gives, ' direction="out"')]
            lines += _member("method", method.name, args)
        for signal in interface.signals:
            lines += _member("signal", signal.name, _args(signal.takes, ""))
        for name, signature in interface.properties:
            constant = [CONSTANT] if name in interface.constant else []
            lines += _member("property", name, constant, f' type="{signature}" access="read"')
        lines.append(" </interface>")
    lines += [f' <node name="{child}"/>' for child in children]
    return "\n".join([*lines, "</node>", ""])


CONSTANT: Final = '   <annotation name="org.freedesktop.DBus.Property.EmitsChangedSignal" value="const"/>'


def _args(args: Args, direction: str) -> list[str]:
    return [f'   <arg name="{name}" type="{signature}"{direction}/>' for name, signature in args]


def _member(kind: str, name: str, inside: list[str], more: str = "") -> list[str]:
    opening = f'  <{kind} name="{name}"{more}'
    return [f"{opening}>", *inside, f"  </{kind}>"] if inside else [f"{opening}/>"]
