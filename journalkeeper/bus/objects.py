# SPDX-License-Identifier: LGPL-2.1-or-later
"""The objects on the bus, their methods, the values that they show of the service's state, and Introspect's answer.

The docstring of a method in STANDARD or MANAGER is its published description. No message library is needed here: a
variant is a pair of a signature and a value.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final, TypeVar
from xml.etree.ElementTree import Element, SubElement, tostring

from journalkeeper.bus import contract, names
from journalkeeper.bus.contract import JOB, REQUEST, Args, Interface, Method, Values
from journalkeeper.bus.names import CallError, shorten
from journalkeeper.journald.layout import classify
from journalkeeper.model import JournalFile, Outcome, Plan, Result
from journalkeeper.model.errors import BusyError
from journalkeeper.model.manager import JobState, Manager, Treatment
from journalkeeper.model.run import Progress, Report
from journalkeeper.model.schema import SIGNATURES, UNKNOWN, list_bus_rows, to_json, write_json
from journalkeeper.model.units import U64_MAX
from journalkeeper.service import snapshot as snapshots

if TYPE_CHECKING:
    from journalkeeper.bus.callers import Caller
    from journalkeeper.service.daemon import Daemon

T = TypeVar("T")

ERROR: Final = f"{names.BUS}.Error"


def make_tree(service: Daemon) -> dict[str, tuple[Interface, Callable[[], Values]]]:
    """Return for each path the object's own interface, and a function for its properties (of a job, those of now)."""
    tree = {names.MANAGER_PATH: (MANAGER, lambda: to_values(snapshots.make_manager(service.snapshot())))}
    for job in service.jobs.queue:
        state = JobState(job.number, job.state, job.progress.fraction)
        tree[names.job_path(job.number)] = JOB_INTERFACE, partial(to_values, state, job.progress)
    return tree


def list_interfaces(service: Daemon, path: str) -> tuple[Interface, ...]:
    """Return the interfaces of the object at `path`: those of the D-Bus standard, then its own.

    Without an object: the first two if objects are below `path`, else the first.
    """
    tree = make_tree(service)
    if path in tree:
        return *STANDARD, tree[path][0]
    return STANDARD[:2] if _list_child_names(service, path) else STANDARD[:1]


def _list_child_names(service: Daemon, path: str) -> tuple[str, ...]:
    """Return the next part of each object's path below `path`, each once."""
    above = f"{path.rstrip('/')}/"
    return tuple({one[len(above) :].partition("/")[0]: 0 for one in make_tree(service) if one.startswith(above)})


def find_method(service: Daemon, path: str, interface: str, member: str) -> Method:
    """Return the method `member` of `interface` (exact names) of the object at `path`. Every path has Peer.

    Raises: CallError: UnknownObject if no object is at `path` or below, else UnknownMethod.
    """
    interfaces = list_interfaces(service, path)
    methods = {(one.name, method.name): method for one in interfaces for method in one.methods}
    if (interface, member) in methods:
        return methods[interface, member]
    if interfaces == STANDARD[:1]:
        raise CallError(f"{ERROR}.UnknownObject", f"there is no object {shorten(path)}")
    raise CallError(f"{ERROR}.UnknownMethod", f"{shorten(path)} has no method {interface}.{member}")


# -- The methods -----------------------------------------------------------------------------------


async def ping(_service: Daemon, _path: str, _caller: Caller) -> None:
    """Answer, and do nothing."""


async def introspect(service: Daemon, path: str, _caller: Caller) -> str:
    """Return the interfaces of the object, and the objects below."""
    return introspection(list_interfaces(service, path), _list_child_names(service, path))


async def get(service: Daemon, path: str, caller: Caller, interface: str, name: str) -> tuple[str, Any]:
    """Return one property. Error UnknownProperty: the interface has none of that name. Other errors: as GetAll.

    For the manager, the answer can take a moment, as that of GetAll.
    """
    values = await get_all(service, path, caller, interface)
    if name not in values:
        raise CallError(f"{ERROR}.UnknownProperty", f"{interface} has no property {shorten(name)}")
    return values[name]


async def get_all(service: Daemon, path: str, _caller: Caller, interface: str) -> Values:
    """Return the properties of an interface; {} for an interface of the D-Bus standard.

    For the manager, the service checks its configuration and directories, at most once a second, and the answer
    waits 0.2 s at most for that. Error UnknownInterface: the object has no such interface.
    """
    if interface not in {one.name for one in list_interfaces(service, path)}:
        raise CallError(f"{ERROR}.UnknownInterface", f"{shorten(path)} has no interface {shorten(interface)}")
    if interface == names.MANAGER:
        await service.refresh()
    own, values = make_tree(service)[path]
    return values() if own.name == interface else {}


async def list_files(service: Daemon, _path: str, caller: Caller, offset: int) -> list[Values]:
    """List journal files as they were at the last look, sorted by path, at most 500 in one answer.

    Leave out the first offset files, and of each file what the caller may not read. Call again with the number of
    files so far until an answer is empty. Error Busy: the first look is not over.
    """
    found = service.snapshot().findings
    if found is None:
        raise BusyError("the first look at the files is not over; try again later")
    paths = sorted(found.files, key=names.to_ascii)[offset : offset + LISTED_MOST]
    listed = [_make_file_values(found.files[path], found.decided.get(path), caller) for path in paths]
    lengths = (sum(len(value) for signature, value in one.values() if signature == "s") for one in listed)
    return _take_fitting(listed, lengths, TEXT_MOST)


async def plan(service: Daemon, _path: str, caller: Caller, paths: list[str], compress: str, flags: int) -> str:
    """Show what a job with these arguments would do now, as `journalkeeper plan -j` writes it: a JSON document.

    The arguments are those of Defragment, with one more flag: without 32 (asked) it is the service's own plan,
    which rests on battery; a job does not. The answer waits while files are looked at or rewritten, and for other
    plans. The detail of another user's file is empty. A document that would be too long for one answer lacks rows,
    those of files without work first, and omitted counts the missing rows; a call with paths shows them. Error
    LimitsExceeded: 8 long calls of the user are under way.
    """
    request = contract.make_request(paths, compress, flags, service.snapshot().directories)
    async with caller.user.count_long_call(), caller.user.turn:
        return write_document(await service.plan(request), caller)


async def defragment(service: Daemon, _path: str, _caller: Caller, paths: list[str], compress: str, flags: int) -> str:
    """Queue a job that defragments what needs it, as `journalkeeper defrag` does.

    paths: only these files, each absolute, without .., and below one of Directories; none: all. A link fails the job.
    compress: zstd[:LEVEL], zlib[:LEVEL], lzo or no; empty: as configured. flags: the sum of 1 (active) and 2
    (archived): only such files; 4 (now): do not wait for a flush window, the settle time or the budget; 8
    (allow-unshare): also what a snapshot shares; 16 (before-shutdown): active and now; also count the extents that
    the last messages of a shutdown add; 32 is implied. Error Busy: the queue is full.
    """
    request = contract.make_request(paths, compress, flags, service.snapshot().directories)
    return names.job_path(service.jobs.add(request).number)


async def cancel(service: Daemon, _path: str, _caller: Caller, job: str) -> None:
    """Take a job out of the queue, or end it at the next chunk border.

    Error NoSuchJob: the job is not known or is over.
    """
    service.jobs.cancel(names.job_number(job))


async def result(service: Daemon, _path: str, caller: Caller, job: str) -> str:
    """Wait for the end of a job, and show its outcome as a JSON document, as `journalkeeper defrag -j` writes it.

    A document that would be too long lacks rows, as in Plan. A job that failed as a whole returns its error. Error
    LimitsExceeded: as Plan. Error NoSuchJob: the job is not known, or it is over and another one has ended since.
    """
    async with caller.user.count_long_call():
        report = await service.jobs.wait_for_report(names.job_number(job))
    return write_document(report, caller)


async def pause(service: Daemon, _path: str, _caller: Caller, span_us: int) -> None:
    """Do no work of the service's own for this time; 0: until Resume.

    Work under way ends at the next chunk border. Jobs are still done. A new pause replaces the one before. The
    largest number, 2^64-1, also means until Resume.
    """
    service.pause(span_us % U64_MAX)  # "for ever" is 0


async def resume(service: Daemon, _path: str, _caller: Caller) -> None:
    """End a pause, and look at all files. Without a pause, do nothing."""
    service.resume()


async def rescan(service: Daemon, _path: str, _caller: Caller) -> None:
    """Look at all files again, soon.

    During a pause, the look waits for the end of the pause.
    """
    service.rescan()


async def reload(service: Daemon, _path: str, _caller: Caller) -> None:
    """Read the configuration again; the answer comes when that is done.

    Then the service looks at all files, also after an error. Error BadConfiguration: it names each wrong line,
    and the running values stay. Error File: a file cannot be read, and the running values stay, too.
    """
    await service.reload()


GET: Final = Method("Get", get, (("interface", "s"), ("property", "s")), (("value", "v"),))
GET_ALL: Final = Method("GetAll", get_all, (("interface", "s"),), (("properties", "a{sv}"),))

STANDARD: Final = (
    Interface(names.PEER, methods=(Method("Ping", ping),)),
    Interface(names.INTROSPECTABLE, methods=(Method("Introspect", introspect, gives=(("xml", "s"),)),)),
    Interface(names.PROPERTIES, methods=(GET, GET_ALL), signals=(contract.PROPERTIES_CHANGED,)),
)
"""The interfaces of the D-Bus standard: of every path, also of paths above an object, and of objects."""

MANAGER: Final = Interface(
    names.MANAGER,
    "The service as a whole, at /org/journalkeeper1. A time is in microseconds of CLOCK_REALTIME; 0 is no time. A size"
    " is in bytes. A byte of a path that is not ASCII is shown as \\xXX. Changes are signalled four times a second.",
    (
        Method("ListFiles", list_files, (("offset", "t"),), (("files", "aa{sv}"),)),
        Method("Plan", plan, REQUEST, (("plan", "s"),)),
        Method("Defragment", defragment, REQUEST, (JOB,), names.ACTION_DEFRAGMENT),
        Method("Cancel", cancel, (JOB,), action=names.ACTION_DEFRAGMENT),
        Method("Result", result, (JOB,), (("document", "s"),)),
        Method("Pause", pause, (("usec", "t"),), action=names.ACTION_MANAGE),
        Method("Resume", resume, action=names.ACTION_MANAGE),
        Method("Rescan", rescan, action=names.ACTION_MANAGE),
        Method("Reload", reload, action=names.ACTION_MANAGE),
    ),
    (contract.JOB_NEW, contract.JOB_REMOVED, contract.FILE_DEFRAGMENTED),
    list_bus_rows(Manager),
)

JOB_INTERFACE: Final = Interface(
    names.JOB,
    "Work that a caller asked for, at /org/journalkeeper1/job/ and its number, while it is queued or running.",
    properties=(*list_bus_rows(JobState), *list_bus_rows(Progress)),
)


PRIVATE: Final = frozenset(row.bus for row in contract.FILE if row.about.private)
"""The keys of a file that are left out for callers who may not read it."""

LISTED_MOST: Final = 500
"""Files in one answer of ListFiles."""

TEXT_MOST: Final = 400_000
"""Characters of all texts in one answer of ListFiles; the rest of an answer has some 450 KiB."""

FACT_MOST: Final = 10_000
"""Characters of the texts of one fact: the first ones that have no more together. 7,000 files can fail."""

DOCUMENT_MOST: Final = 900 << 10
"""Characters of a JSON document: one answer has at most 1 MiB."""

HIDDEN: Final = {"detail": "", "until_us": None}
"""The values of these keys in a row about another user's file."""

LISTS: Final = ("actions", "notices", "outcomes", "skipped")
"""The parts of a document that are cut where it is too long, the most important first."""

CARRIED: Final[dict[str, Callable[[Any], object]]] = {
    "s": lambda text: names.to_ascii(str(text)),  # a word of an enumeration becomes plain, too
    "as": lambda texts: [names.to_ascii(text) for text in texts],
    "aa{sv}": lambda records: [to_values(one) for one in records],
    "a{sv}": lambda facts: {name: _encode_fact(fact) for name, fact in facts.items() if fact is not None},
}
"""Functions that make values of these signatures safe for all clients."""


def to_values(*records: object) -> Values:
    """Return the D-Bus properties (`list_bus_rows`) of all `records` together: (signature, value) by name.

    Texts become ASCII. D-Bus has no None: an unknown value becomes the `none` of its Key, or else "", [], False or 0.
    """
    found: Values = {}
    for record in records:
        for row in list_bus_rows(type(record)):
            value = getattr(record, row.attribute)
            if value is None:
                value = UNKNOWN[row.signature] if row.about.none is None else row.about.none
            found[row.bus] = row.signature, CARRIED[row.signature](value) if row.signature in CARRIED else value
    return found


def _encode_fact(fact: int | float | str | list[str]) -> tuple[str, Any]:
    """Return (signature, value), x for an int. A list, not a text, ends where its texts exceed FACT_MOST characters."""
    kind = "x" if isinstance(fact, int) else SIGNATURES.get(type(fact), "s")
    value = CARRIED[kind](fact) if kind in CARRIED else fact
    return kind, _take_fitting(value, map(len, value), FACT_MOST) if isinstance(value, list) else value


def _take_fitting(rows: Sequence[T], lengths: Iterable[int], most: int) -> list[T]:
    """Return the first rows whose lengths together are at most `most`."""
    return [row for row, end in zip(rows, accumulate(lengths), strict=True) if end <= most]


def _make_file_values(row: JournalFile, doing: snapshots.Doing | None, caller: Caller) -> Values:
    """Return D-Bus values of a file and `doing`: PRIVATE keys only if `caller` may. A done action replaces Extents."""
    known = to_values(row, Treatment(*(getattr(doing, name, None) for name in Treatment._fields)))
    if isinstance(doing, Outcome) and doing.result is Result.DONE:
        known["Extents"] = known["Extents"][0], doing.extents_after
    if caller.may_read(row.owner):
        return known
    return {name: value for name, value in known.items() if name not in PRIVATE}


def write_document(answer: Plan | Report, caller: Caller) -> str:
    """Return the JSON of `answer` in at most DOCUMENT_MOST characters.

    In outcomes and skips, HIDDEN replaces values of another user's files, and of names without .journal but for root.
    """
    document = to_json(answer)
    for row in chain(document.get("outcomes", ()), document["skipped"]):
        base = posixpath.basename(row["path"])
        name = classify(base)
        unknown = "system" if ".journal" in base else "user:?"
        if not caller.may_read(unknown if name is None else name.owner):
            row.update((key, HIDDEN[key]) for key in HIDDEN.keys() & row.keys())
    text = write_json(document)
    return text if len(text) <= DOCUMENT_MOST else write_json(_leave_out_rows(document))


def _leave_out_rows(document: dict[str, Any]) -> dict[str, Any]:
    """Return a copy, with `omitted`, of rows that fit DOCUMENT_MOST: LISTS in turn, `skipped` with `puts_off` first."""
    lists: dict[str, Any] = {name: document[name] for name in LISTS if name in document}
    lists["skipped"] = sorted(document["skipped"], key=lambda row: not row["puts_off"])
    rows = [(name, row) for name, some in lists.items() for row in some]
    left = DOCUMENT_MOST - len(write_json({**document, **dict.fromkeys(lists, ()), "omitted": U64_MAX}))
    fitting = _take_fitting(rows, (len(write_json(row)) + 1 for _, row in rows), left)
    cut = {name: [row for other, row in fitting if other == name] for name in lists}
    return {**document, **cut, "omitted": len(rows) - len(fitting)}


def introspection(interfaces: Iterable[Interface], children: Iterable[str]) -> str:
    """Return Introspect's XML, without a document type. Source: D-Bus specification, "Introspection Data Format"."""
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
                SubElement(member, "annotation", name=f"{names.BUS}.Property.EmitsChangedSignal", value="const")
    for child in children:
        SubElement(node, "node", name=child)
    return tostring(node, encoding="unicode")


def _add_args(member: Element, args: Args, **direction: str) -> None:
    for name, signature in args:
        SubElement(member, "arg", {"name": name, "type": signature, **direction})
