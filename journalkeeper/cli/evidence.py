# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collect all parts of the evidence.

A part that cannot be read becomes an `Unknown`, and the others are still collected. Only a journalctl that fails midway
ends the whole, because half of its output looks like a complete one.
"""

from __future__ import annotations

import os
from typing import Final

from journalkeeper.bus.unit_states import units
from journalkeeper.cli.context import Context
from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.health.evidence import UNASKED, Evidence, Look, Recorded, Unknown, Wanted
from journalkeeper.health.verdict import present
from journalkeeper.model import Host, Plan, Reason, Request
from journalkeeper.model.errors import KeeperError, NeedsRootError, NotBtrfsError
from journalkeeper.observe import machine
from journalkeeper.observe.journal import read_journal

ELSEWHERE: Final = Unknown("-D names a directory to which this host's journald does not write")


def gather(context: Context, wanted: Wanted, config: Config) -> Evidence:
    """Collect the evidence for a command. A part that cannot be read is Unknown with the reason.

    The plan and the journal are UNASKED unless `wanted` asks for them. The service's report is None if no service runs.
    With -D, `units`, `storage` and `service` are ELSEWHERE, which is Unknown. They are read only if the look shows that
    this host's journald writes to the directory.

    Raises: KeeperError if journalctl fails midway, or for a -D that is no directory; NeedsRootError if nothing in -D
        may be read; OSError for a -D that cannot be examined.
    """
    now_us = context.now_us
    record = _read_history(context, wanted)
    look, plan = _look(context.engine(config), wanted, record, now_us)
    instances = () if isinstance(look, Unknown) else look.host.instances
    ours = wanted.directory is None or any(one.rotatable for one in instances)
    namespaces = tuple(one.namespace for one in instances if one.namespace)
    found = read_journal(wanted.directory, wanted.entries, namespaces) if wanted.entries else UNASKED
    evidence = Evidence(
        now_us=now_us,
        look=look,
        plan=plan,
        config=config,
        record=record,
        journal=found,
        units=units() if ours else ELSEWHERE,
        storage=machine.read_storage() if ours else ELSEWHERE,
        service=context.read_service() if ours else ELSEWHERE,
    )
    return evidence._replace(present=present(evidence))


def _read_history(context: Context, wanted: Wanted) -> Recorded | Unknown:
    """Return the contents of the history, as `Context.read_history` for `wanted.since_us` and `wanted.directory`.

    Return Unknown with the reason if the user may not read the history, or if the history is locked or damaged.
    """
    try:
        return context.read_history(wanted.since_us, wanted.directory)
    except KeeperError as error:
        return Unknown(str(error))


def _look(
    engine: Engine, wanted: Wanted, record: Recorded | Unknown, now_us: int
) -> tuple[Look | Unknown, Plan | Unknown]:
    """Look at the files, and return the look and the plan.

    The plan is UNASKED unless `wanted.plan` is set. The look's `foreign` lists the directories that are not on
    btrfs. There are three special cases:
    - The plan is wanted, but `record` is Unknown: the plan becomes that Unknown. The look is made as usual.
    - No journal directory is on btrfs: the look has no files, `foreign` has only the first directory, and the
      plan is UNASKED, even if it is wanted.
    - The look or the plan fails with another KeeperError: both are Unknown with the reason. A NeedsRootError sets
      `needs_root`.
    """
    plan: Plan | Unknown = UNASKED
    try:
        if wanted.plan and not isinstance(record, Unknown):
            host, plan = engine.look_and_plan(Request(upkeep=True))
        else:
            made_nocow = frozenset[str]() if isinstance(record, Unknown) else record.made_nocow
            host = engine.look(Request())._replace(made_nocow=made_nocow)
    except NotBtrfsError as error:
        return Look(Host(now_us, (), (), (), {}, 0), foreign=(error.path,)), UNASKED
    except KeeperError as error:
        why = Unknown(str(error), needs_root=isinstance(error, NeedsRootError))
        return why, why
    if wanted.plan and isinstance(record, Unknown):
        plan = record
    here = {one.directory for one in host.instances}
    foreign = tuple(file.path for file in host.files if file.problem is Reason.NOT_BTRFS and file.path not in here)
    return Look(host, tuple(path for path in foreign if os.path.isdir(path))), plan
