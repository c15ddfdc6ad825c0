# SPDX-License-Identifier: LGPL-2.1-or-later
"""The objects on the bus: which there are, with which interfaces and values.

An object is made when somebody asks for it. A host may have ten thousand
files, and an object for each would take as many KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from dbus_fast import Variant

from journalkeeper.bus import contract, names, options, properties
from journalkeeper.bus.contract import Interface
from journalkeeper.bus.properties import Reads
from journalkeeper.model import Request
from journalkeeper.model.errors import NoSuchJobError
from journalkeeper.service.job import Job
from journalkeeper.service.jobs import Jobs
from journalkeeper.service.snapshot import Findings, Snapshot

Values = dict[str, Variant]

MANAGER: Final = (*contract.OF_AN_OBJECT, contract.OBJECT_MANAGER, contract.MANAGER)
FILE: Final = (*contract.OF_AN_OBJECT, contract.FILE)
JOB: Final = (*contract.OF_AN_OBJECT, contract.JOB_INTERFACE)
BRANCHES: Final = {"/": ("org",), "/org": ("journalkeeper1",)}
OURS: Final = {interface.name: interface for interface in (contract.MANAGER, contract.FILE, contract.JOB_INTERFACE)}


class Objects:
    """The objects of a service, by its `snapshot` and `jobs`.

    `awaited`: somebody asked for files before the first look was over.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], jobs: Jobs) -> None:
        self._snapshot = snapshot
        self._jobs = jobs
        self._manager: Values | None = None
        self.awaited = False

    def changed(self) -> None:
        """What was true is no longer."""
        self._manager = None

    def interfaces(self, path: str) -> tuple[Interface, ...] | None:
        """Those of the object at `path`; of a branch those that every object has; None: there is nothing."""
        if path == names.MANAGER_PATH:
            return MANAGER
        if self._file(path, properties.anybody) is not None:
            return FILE
        if self._job(path) is not None:
            return JOB
        return contract.EVERYWHERE if path in BRANCHES or path in {names.FILE_PATHS, names.JOB_PATHS} else None

    def children(self, path: str) -> Iterator[str]:
        """The names right below a path."""
        if path == names.MANAGER_PATH:
            found = self._findings()
            yield from ["file"] if found is not None and any(True for _ in found.files) else []
            yield from ["job"] if self._jobs.queue else []
        elif path in {names.FILE_PATHS, names.JOB_PATHS}:
            found = self._findings()
            files = () if found is None or path == names.JOB_PATHS else found.files
            jobs = self._jobs.queue if path == names.JOB_PATHS else ()
            yield from (names.file_path(one).rpartition("/")[2] for one in files)
            yield from (str(job.number) for job in jobs)
        else:
            yield from BRANCHES.get(path, ())

    def values(self, path: str, interface: str, reads: Reads) -> Values:
        """The properties that an object has by one of its interfaces, for one who `reads`."""
        plain: dict[str, object] | None = None
        if interface == names.MANAGER:
            return self.manager()
        if interface == names.FILE:
            plain = self._file(path, reads)
        elif interface == names.JOB:
            job = self._job(path)
            return {} if job is None else job_values(job)
        return {} if plain is None else variants(OURS[interface], plain)

    def manager(self) -> Values:
        """The manager's properties, made anew only when something changed."""
        if self._manager is None:
            self._manager = variants(contract.MANAGER, properties.manager(self._snapshot()))
        return self._manager

    def objects(self, reads: Reads) -> Iterator[tuple[str, dict[str, Values]]]:
        """What the manager manages: every file and job, each with its properties by interface, for one who `reads`."""
        found = self._findings()
        for path in () if found is None else found.files:
            plain = None if found is None else properties.file_of(found, path, reads)
            yield names.file_path(path), {names.FILE: variants(contract.FILE, plain or {})}
        for job in self._jobs.queue:
            yield names.job_path(job.number), {names.JOB: job_values(job)}

    def _findings(self) -> Findings | None:
        """What there is of files, for somebody who asks."""
        found = self._snapshot().findings
        self.awaited = self.awaited or found is None
        return found

    def _file(self, path: str, reads: Reads) -> dict[str, object] | None:
        named = names.file_named(path) if path.startswith(names.FILE_PATHS) else None
        found = None if named is None else self._findings()
        return None if named is None or found is None else properties.file_of(found, named, reads)

    def _job(self, path: str) -> Job | None:
        number = names.job_number(path)
        try:
            return None if number is None else self._jobs.find(number)
        except NoSuchJobError:
            return None


def variants(interface: Interface, plain: dict[str, object]) -> Values:
    """Plain values with the contract's signatures."""
    found: Values = {}
    for row in interface.properties:
        if row.bus in plain:
            signature, value = row.type.signature, plain[row.bus]
            found[row.bus] = Variant(signature, CARRIED[signature](value) if signature in CARRIED else value)
    return found


def _options(request: Request) -> Values:
    return {name: Variant(*pair) for name, pair in options.options(request).items()}


CARRIED: Final[dict[str, Callable[[Any], object]]] = {
    "s": names.shown,
    "as": lambda texts: [names.shown(text) for text in texts],
    "a{sv}": _options,
}
"""How values of some signatures are made such that clients can carry them."""


def job_values(job: Job) -> Values:
    """The properties of a job."""
    return variants(contract.JOB_INTERFACE, properties.job(job))
