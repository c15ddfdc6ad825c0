# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collect all parts of the evidence.

A part that cannot be read becomes an `Unknown`, and the others are still collected. Only a journalctl that fails midway
ends the whole, because half of its output looks like a complete one.
"""

from __future__ import annotations

import os
from itertools import chain
from typing import Final

from journalkeeper.btrfs.volume import MOUNTINFO
from journalkeeper.cli.context import Context
from journalkeeper.config import Config
from journalkeeper.engine import Engine
from journalkeeper.health.evidence import UNASKED, Evidence, Look, Obstacle, Recorded, Unknown, Wanted
from journalkeeper.health.verdict import find_present
from journalkeeper.model import Host, Reason, Request
from journalkeeper.model.errors import KeeperError, NeedsRootError, NotBtrfsError
from journalkeeper.model.manager import Manager
from journalkeeper.observe import machine, obstacles
from journalkeeper.observe.obstacles import Places

ASK_S: Final = 10.0
"""How long a command waits for journald's answer. The longest ordinary flush took 3 s; a slow disk may need more."""

ELSEWHERE: Final = Unknown("-D names a directory to which this host's journald does not write")


def gather(context: Context, wanted: Wanted) -> Evidence:
    """Collect the evidence for a command. A part that cannot be read is Unknown with the reason. The journal's entries
    are UNASKED unless `wanted`; so is the look without `wanted.files`, if the service answers.

    If the service answers, the obstacles are (), because it judges them itself. An error of the configuration is in
    `config_error`, and the look uses the defaults. With -D, facts of this host are ELSEWHERE unless its journald
    writes there.

    Raises: KeeperError if journalctl fails midway, or for a -D that is no directory; NeedsRootError if nothing in -D
        may be read; OSError for a -D that cannot be examined.
    """
    try:
        config, wrong = context.read_config(), ""
    except (KeeperError, OSError) as error:
        config, wrong = Config(), str(error)
    record = context.read_history(wanted.since_us, wanted.directory)
    service = context.read_service()  # with -D none
    answers = isinstance(service, Manager)  # the service has judged its obstacles itself
    engine = context.make_engine(config)
    look = _look(engine, record, context.now_us) if wanted.files or not answers else UNASKED
    instances = () if isinstance(look, Unknown) else look.host.instances
    ours = wanted.directory is None or any(one.rotatable for one in instances)
    journal = machine.read_journal(wanted.directory, wanted.entries, boots=wanted.boots) if wanted.entries else UNASKED
    places = obstacles.list_places(() if answers else engine.directories)
    evidence = Evidence(
        now_us=context.now_us,
        look=look,
        config=Unknown("the configuration is wrong") if wrong else config,
        config_error=wrong,
        record=record,
        journal=journal,
        units=machine.read_units() if ours else ELSEWHERE,
        storage=machine.read_storage() if ours else ELSEWHERE,
        service=service if ours else ELSEWHERE,
        unwritable=() if answers else _find_unwritable(places, wanted.directory),
        silent=(() if answers else obstacles.find_silent(places, ASK_S)) if ours else ELSEWHERE,
        full=() if answers else obstacles.find_full(places),
    )
    return evidence._replace(present=find_present(evidence))


def _find_unwritable(places: Places, directory: str | None) -> tuple[tuple[str, Obstacle], ...]:
    """Return the obstacles of all `places`. With -D, and for users other than root, only READ_ONLY is one."""
    mounts = obstacles.read_mounts(MOUNTINFO)
    found = chain.from_iterable(obstacles.find_unwritable(*one, mounts).items() for one in places.items())
    ours = directory is None and os.geteuid() == 0
    return tuple(one for one in found if ours or one[1] is Obstacle.READ_ONLY)


def _look(engine: Engine, record: Recorded | Unknown, now_us: int) -> Look | Unknown:
    """Return a look at all files, with `made_nocow` of the record, or Unknown after a KeeperError, also NeedsRootError.

    `foreign` lists the directories that are not on btrfs. If none is on btrfs, it is the first, and there are no files.
    """
    made_nocow = frozenset[str]() if isinstance(record, Unknown) else record.made_nocow
    try:
        host = engine.look(Request())._replace(made_nocow=made_nocow)
    except NotBtrfsError as error:
        return Look(Host(now_us, (), (), (), {}, 0), foreign=(error.path,))
    except KeeperError as error:
        return Unknown(str(error), needs_root=isinstance(error, NeedsRootError))
    here = {one.directory for one in host.instances}
    foreign = tuple(file.path for file in host.files if file.problem is Reason.NOT_BTRFS and file.path not in here)
    return Look(host, tuple(path for path in foreign if os.path.isdir(path)))
