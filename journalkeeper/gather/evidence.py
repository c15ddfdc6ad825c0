# SPDX-License-Identifier: LGPL-2.1-or-later
"""All parts of the evidence, each looked at where it is.

What cannot be looked at becomes an `Unknown` in its part, and the others are looked at all the same; only a
journalctl that breaks off ends the whole, because half an answer looks like a whole one.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Final

from journalkeeper.bus.unit_states import units
from journalkeeper.config import Config
from journalkeeper.gather import machine
from journalkeeper.gather.journal import journal
from journalkeeper.health.evidence import UNASKED, Evidence, Hung, Look, Recorded, Unknown, Wanted
from journalkeeper.health.service_rules import present
from journalkeeper.history.record import NAME, Record
from journalkeeper.journald import layout, opening
from journalkeeper.model import Host, Plan, Reason, Request
from journalkeeper.model.errors import FileError, KeeperError, NeedsRootError, NotBtrfsError
from journalkeeper.model.manager import Manager
from journalkeeper.model.units import DAY_US

if TYPE_CHECKING:
    from journalkeeper.engine import Engine

SNAPSHOTS_US: Final = 30 * DAY_US
"""As long as in a plan: a rewrite beside a snapshot is evidence that snapshots are taken of a journal."""

ELSEWHERE: Final = Unknown("-D names a journal that this machine's journald does not write")


def gather(
    engine: Engine,
    config: Config,
    *,
    wanted: Wanted,
    state_directory: str,
    now_us: int,
    service: Manager | Hung | Unknown | None = None,
) -> Evidence:
    """All that is wanted. Raises: KeeperError if journalctl breaks off."""
    record = recorded(state_directory, wanted, now_us)
    look, plan = _looked(engine, wanted, record, now_us)
    instances = () if isinstance(look, Unknown) else look.host.instances
    ours = wanted.directory is None or any(one.rotatable for one in instances)
    namespaces = tuple(one.namespace for one in instances if one.namespace)
    found = journal(wanted.directory, wanted.entries, namespaces, ours=ours) if wanted.entries else UNASKED
    evidence = Evidence(
        now_us=now_us,
        look=look,
        plan=plan,
        config=config,
        record=record,
        journal=found,
        units=units(namespaces) if ours else ELSEWHERE,
        system=machine.system() if ours else ELSEWHERE,
        storage=machine.storage() if ours else ELSEWHERE,
        service=service if ours else ELSEWHERE,
    )
    return evidence._replace(present=present(evidence))


def _looked(
    engine: Engine, wanted: Wanted, record: Recorded | Unknown, now_us: int
) -> tuple[Look | Unknown, Plan | Unknown]:
    """What the engine sees, and its plan where that is wanted."""
    plan: Plan | Unknown = UNASKED
    try:
        if wanted.plan and not isinstance(record, Unknown):
            host, plan = engine.judged(Request(upkeep=True))
        else:
            unshared = frozenset[str]() if isinstance(record, Unknown) else record.unshared
            host = engine.look(Request())._replace(unshared=unshared)
    except NotBtrfsError as error:
        return Look(Host(now_us, (), (), (), {}, 0), foreign=(error.path,)), UNASKED
    except KeeperError as error:
        why = Unknown(str(error), needs_root=isinstance(error, NeedsRootError))
        return why, why
    if wanted.plan and isinstance(record, Unknown):
        plan = record
    here = {one.directory for one in host.instances}
    foreign = tuple(file.path for file in host.files if file.problem is Reason.NOT_BTRFS and file.path not in here)
    return Look(host, tuple(path for path in foreign if os.path.isdir(path)), _leftovers(host)), plan


def _leftovers(host: Host) -> tuple[str, ...]:
    """The temporary files of ours that are there."""
    found: list[str] = []
    for one in host.instances:
        try:
            with opening.directory(one.directory) as fd:
                found += [f"{one.directory}/{name}" for name in layout.listing(fd).leftovers]
        except (FileError, OSError):
            continue  # it could be opened a moment ago; its files then say what is wrong
    return tuple(found)


def recorded(state_directory: str, wanted: Wanted, now_us: int) -> Recorded | Unknown:
    """What the record says of the wanted time and directory."""
    try:
        os.stat(os.path.join(state_directory, NAME))
        with closing(Record(state_directory, read_only=True)) as record:
            paths = [wanted.directory] if wanted.directory else []
            entries = record.history(paths, wanted.since_us)
            samples = record.samples(paths, wanted.since_us)
            totals = record.totals(wanted.since_us)
            times = [row.when_us for rows in (entries, samples, totals) for row in rows[:1]]
            return Recorded(
                first_us=min(times, default=None),
                entries=tuple(entries),
                samples=tuple(samples),
                totals=tuple(totals),
                last_run=record.last_run(),
                waiting=tuple(record.waiting().values()),
                unshared=record.list_unsharing_directories(now_us - SNAPSHOTS_US),
                counters=record.counters(),
                ignored=record.ignored,
            )
    except FileNotFoundError:
        return Unknown(f"there is no record in {state_directory}: journalkeeper has not run here")
    except PermissionError:
        return Unknown(f"{state_directory}: only root may read the record", needs_root=True)
    except KeeperError as error:
        return Unknown(str(error))
