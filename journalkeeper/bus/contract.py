# SPDX-License-Identifier: LGPL-2.1-or-later
"""The D-Bus interfaces as tables: methods and properties with signatures, meaning, and required rights.

Pure. The properties are those of the records in model/. Introspect's answers, the installed XML and
org.journalkeeper1(5) are generated from these tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from journalkeeper.bus import names
from journalkeeper.model import JournalFile
from journalkeeper.model.manager import JobState, Manager, Treatment
from journalkeeper.model.progress import Progress
from journalkeeper.model.record import Row, bus_rows

Args = tuple[tuple[str, str], ...]
"""Pairs of a name and a signature."""


class Method(NamedTuple):
    """A method. `action` is the polkit action that a call requires; None: every user may call it."""

    name: str
    doc: str = ""
    takes: Args = ()
    gives: Args = ()
    action: str | None = None

    @property
    def signature(self) -> str:
        """The signature of the whole call."""
        return "".join(signature for _, signature in self.takes)

    @property
    def meaning(self) -> str:
        """The description of the method, with the polkit action that it requires."""
        return self.doc if self.action is None else f"{self.doc} Asks for {self.action}."


class Signal(NamedTuple):
    """A broadcast signal."""

    name: str
    takes: Args
    doc: str = ""

    @property
    def signature(self) -> str:
        """The signature of the whole body."""
        return "".join(signature for _, signature in self.takes)


class Interface(NamedTuple):
    """An interface. `properties` are values of records, each with a name on the bus."""

    name: str
    doc: str = ""
    methods: tuple[Method, ...] = ()
    signals: tuple[Signal, ...] = ()
    properties: tuple[Row, ...] = ()


OPTIONS: Final = ("options", "a{sv}")
JOB: Final = ("job", "o")
ID: Final = ("id", "u")

LISTED_MOST: Final = 500
"""Files in one answer of ListFiles."""

DOCUMENT_MOST: Final = 900 << 10
"""Characters of a JSON document: one answer has at most 1 MiB."""

MANAGER: Final = Interface(
    names.MANAGER,
    "The service as a whole, at /org/journalkeeper1. Reading is for everyone, ListFiles, Plan and Result included; the"
    " other methods ask polkit, or without polkit are for root. What a user's own journal contains is shown to that"
    " user, root and the groups that may read it. A time is in microseconds of CLOCK_REALTIME; 0 is no time. A size is"
    " in bytes. A byte of a path that is not ASCII is shown as \\xXX. Changes are signalled at most four times a"
    " second.",
    methods=(
        Method(
            "ListFiles",
            f"List journal files as they were at the last look, sorted by path, at most {LISTED_MOST} in one answer."
            " Option after (s): begin after this Path. Call again with the last Path of each answer until an answer is"
            " empty. Error Busy: the first look is not over.",
            (OPTIONS,),
            (("files", "aa{sv}"),),
        ),
        Method(
            "Plan",
            "Show what a job with these options would do now, as `journalkeeper plan -j` writes it: a JSON document."
            " The options are those of Defragment. The answer waits while files are looked at or rewritten. The detail"
            " of another user's file is empty. A document that would be too long for one answer lacks rows, those of"
            " files without work first, and omitted counts the missing rows; option paths shows them.",
            (OPTIONS,),
            (("plan", "s"),),
        ),
        Method(
            "Defragment",
            "Queue a job that defragments what needs it. Options, as of `journalkeeper defrag`: paths (as): only these"
            " files, each absolute, without .. or links, and below one of Directories; active (b), archived (b): only"
            " such files; now (b): do not wait for a flush window, the settle time or the budget; compress (s):"
            " zstd[:LEVEL], zlib[:LEVEL], lzo or no; allow-unshare (b): also what a snapshot shares; before-shutdown"
            " (b): active and now; also count the extents that the last messages of a shutdown add. Error Busy: the"
            " queue is full.",
            (OPTIONS,),
            (JOB,),
            names.ACTION_DEFRAGMENT,
        ),
        Method(
            "Cancel",
            "Take a job out of the queue, or end it at the next chunk border.",
            (JOB,),
            action=names.ACTION_DEFRAGMENT,
        ),
        Method(
            "Result",
            "Show the outcome of the job that ended last: outcomes and totals as `journalkeeper defrag -j` writes"
            " them, then skipped (as in a plan), details (by path, the error in words) and notices (sentences about"
            " the run). A document that would be too long lacks rows, as in Plan. A job that failed as a whole returns"
            " its error. Error NoSuchJob: the job is not known, is not over, or is not the last one that ended.",
            (JOB,),
            (("document", "s"),),
        ),
        Method(
            "Pause",
            "Do no work of the service's own for this time; 0: until Resume. Work under way ends at the next chunk"
            " border. Jobs are still done.",
            (("usec", "t"),),
            action=names.ACTION_MANAGE,
        ),
        Method("Resume", "End a pause.", action=names.ACTION_MANAGE),
        Method(
            "Rescan",
            "Look at all files again, soon.",
            action=names.ACTION_MANAGE,
        ),
        Method(
            "Reload",
            "Read the configuration again; the answer comes when that is done. Error BadConfiguration: it names each"
            " wrong line, and the running values stay.",
            action=names.ACTION_MANAGE,
        ),
    ),
    signals=(
        Signal("JobNew", (ID, JOB), "A job was put into the queue."),
        Signal(
            "JobRemoved",
            (ID, JOB, ("result", "s")),
            "A job is over and its object gone. The result is done, failed (something failed, a path that was named is"
            " no journal file, or nothing could be done at all) or canceled. Its Result can be asked for.",
        ),
        Signal(
            "FileDefragmented",
            (("path", "s"), ("before", "t"), ("after", "t"), ("written", "t"), ("reclaimed", "t")),
            "A file was rewritten, by a job or by the service itself: extents before and after, bytes written, and"
            " bytes that it occupies less: 0 where that is not known, as under the confinement of"
            " journalkeeper.service, which may not ask (CAP_SYS_ADMIN).",
        ),
    ),
    properties=bus_rows(Manager),
)

FILE: Final = (*bus_rows(JournalFile), *bus_rows(Treatment))
"""The keys of a file in the answer of ListFiles."""

JOB_INTERFACE: Final = Interface(
    names.JOB,
    "Work that a caller asked for, at /org/journalkeeper1/job/ and its number, while it is queued or running. Jobs run"
    " one at a time, in the order of the calls. The caller need not stay.",
    properties=(*bus_rows(JobState), *bus_rows(Progress)),
)

PROPERTIES: Final = Interface(
    names.PROPERTIES,
    methods=(
        Method("Get", takes=(("interface", "s"), ("property", "s")), gives=(("value", "v"),)),
        Method("GetAll", takes=(("interface", "s"),), gives=(("properties", "a{sv}"),)),
    ),
    signals=(Signal("PropertiesChanged", (("interface", "s"), ("changed", "a{sv}"), ("invalidated", "as"))),),
)
INTROSPECTABLE: Final = Interface(names.INTROSPECTABLE, methods=(Method("Introspect", gives=(("xml", "s"),)),))
PEER: Final = Interface(names.PEER, methods=(Method("Ping"),))
EVERYWHERE: Final = (PEER, INTROSPECTABLE)
OF_AN_OBJECT: Final = (*EVERYWHERE, PROPERTIES)


def introspection(interfaces: Iterable[Interface], children: Iterable[str]) -> str:
    """Return the XML that Introspect answers. Source: D-Bus specification, "Introspection Data Format"."""
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
        for row in interface.properties:
            constant = [CONSTANT] if row.about.constant else []
            lines += _member("property", row.bus, constant, f' type="{row.signature}" access="read"')
        lines.append(" </interface>")
    lines += [f' <node name="{child}"/>' for child in children]
    return "\n".join([*lines, "</node>", ""])


CONSTANT: Final = '   <annotation name="org.freedesktop.DBus.Property.EmitsChangedSignal" value="const"/>'


def _args(args: Args, direction: str) -> list[str]:
    return [f'   <arg name="{name}" type="{signature}"{direction}/>' for name, signature in args]


def _member(kind: str, name: str, inside: list[str], more: str = "") -> list[str]:
    opening = f'  <{kind} name="{name}"{more}'
    return [f"{opening}>", *inside, f"  </{kind}>"] if inside else [f"{opening}/>"]
