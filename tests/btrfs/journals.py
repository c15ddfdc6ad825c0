# SPDX-License-Identifier: LGPL-2.1-or-later
"""Journal files in every form that the hands meet, and what an outsider sees of them.

What is counted is read with the system's own tools.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from journalkeeper.btrfs import fiemap, inode
from journalkeeper.btrfs.defrag import HAS_LEVELS
from journalkeeper.config.directives import Budget, Config, Defrag
from journalkeeper.engine import Engine
from journalkeeper.execute.executor import execute
from journalkeeper.execute.pace import Pace
from journalkeeper.model import MIB, Action, Host, JournalFile, Outcome, Plan, Reason, Request, Result
from journalkeeper.model.run import Done, Progress, Report
from journalkeeper.observe.observer import Observer
from journalkeeper.policy.plan import plan
from journalkeeper.probe import scratch_volume as volume
from journalkeeper.probe.bed import ONLINE, PrivateJournald
from journalkeeper.probe.scratch_volume import run
from tests import volumes
from tests.journal_files import OLD_NS
from tests.patience import eventually

ALWAYS = Config(budget=Budget(bytes_per_day=None, keep_free_bytes=0), defrag=Defrag(min_extents=1, min_reclaim_bytes=0))
"""A configuration by which every gain pays and every byte may be used."""

NOW = Request(now=True)
FORMS = pytest.mark.parametrize("nocow", [False, True], ids=["datacow", "nocow"])
"""Files that are worked on in place, and those that are copied."""

QUICK = """
[Watch]
SettleSec=500ms
NocowSettleSec=500ms
[Nocow]
Nocow=no
[Defrag]
MinReclaim=64K
[Window]
MarginSec=500ms
PressureMax=100%
"""
"""The configuration of a service that a test can wait for."""


class Bearing(NamedTuple):
    """All that a rewrite must leave as it was. An ACL is one of the xattrs."""

    sha256: str
    size_bytes: int
    owner: tuple[int, int]
    mode: int
    times_ns: tuple[int, int]
    xattrs: dict[str, bytes]
    flags: int
    data: tuple[tuple[int, int], ...]


def bearing(path: Path) -> Bearing:
    """What `path` bears, without moving its access time or starting a program; its NOCOW flag apart."""
    with open(os.open(path, os.O_RDONLY | os.O_NOATIME), "rb") as file:
        fd, status = file.fileno(), os.stat(file.fileno())
        return Bearing(
            hashlib.file_digest(file, "sha256").hexdigest(),
            status.st_size,
            (status.st_uid, status.st_gid),
            status.st_mode,
            (status.st_atime_ns, status.st_mtime_ns),
            {name: os.getxattr(fd, name) for name in os.listxattr(fd)},
            inode.get_flags(fd) & ~inode.FS_NOCOW_FL,
            tuple(fiemap.find_data(fd, sync=True)),
        )


def with_unwritten(path: Path, offset: int, length: int) -> None:
    """Allocate what was a hole and leave it unwritten, as journald's fallocate does; the times stay."""
    status = path.stat()
    run("fallocate", "--keep-size", "--offset", str(offset), "--length", str(length), path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def allocate_ahead(path: Path) -> None:
    """Allocate space at two places of the file without writing it, as journald's fallocate does. The times stay."""
    status = path.stat()
    size = -(-status.st_size // MIB) * MIB
    os.truncate(path, size + 16 * MIB)
    for offset, length in ((size, 8 * MIB), (size + 16 * MIB, MIB)):
        with_unwritten(path, offset, length)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


MORE = b"one entry more"


def append(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(MORE)


def touch(path: Path) -> None:
    os.utime(path, ns=(OLD_NS, OLD_NS + 2))


def export(path: Path) -> str:
    """What readers get out of it."""
    return run("journalctl", "--quiet", "--output=export", f"--file={path}")


def extents(path: Path) -> int:
    """filefrag(8)'s count, after dirty pages were written."""
    return volumes.extents(path, sync=True)


def is_nocow(path: Path) -> bool:
    """What lsattr(1) says."""
    return "C" in run("lsattr", "-d", path).split()[0]


def look(*paths: Path) -> tuple[JournalFile, ...]:
    """The files as the observer sees them."""
    return Observer().look_at(map(str, paths), now_us=time.time_ns() // 1000).files


def planned(*paths: Path, request: Request = NOW, config: Config = ALWAYS, **words: Any) -> Plan:
    """The plan for these files; `words` change the host that it is made of."""
    now_us = time.time_ns() // 1000
    seen = Observer().look_at(map(str, paths), now_us=now_us)
    host = Host(now_us, seen.files, seen.instances, seen.volumes, {}, 0, has_levels=HAS_LEVELS)
    return plan(host._replace(**words), request, config)


def action(path: Path, request: Request = NOW) -> Action:
    """What the plan would do to this file."""
    found = planned(path, request=request)
    assert found.actions, found.skipped
    return found.actions[0]


def how(done: Done) -> tuple[Result, Reason]:
    """How it ended, and why."""
    return done.outcome.result, done.outcome.reason


def do(
    what: Action,
    *,
    stop: Callable[[], bool] = lambda: False,
    tell: Callable[[int], None] = lambda _: None,
    chunk_bytes: int = 16 * MIB,
) -> Done:
    """Have it done."""

    def ask(_piece_us: int) -> Reason | None:
        return Reason.INTERRUPTED if stop() else None

    return execute(what, Pace(most_bytes=chunk_bytes, piece_us=None, ask=ask, tell=tell))


def go(
    engine: Engine,
    request: Request = NOW,
    *,
    origin: str = "defrag",
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Report:
    """One run of an engine."""
    return engine.run(request, on_progress=on_progress, on_outcome=on_outcome, stop=stop, origin=origin)


def log_until_online(journald: PrivateJournald, message: str, **fields: str) -> None:
    """Log a message, and wait until journald has it: its file is ONLINE, and its timer runs."""
    journald.log(message, **fields)
    assert eventually(lambda: journald.read_state() == ONLINE)


def readable_for(path: Path, mode: int) -> None:
    """Let strangers through to `path`, which gets `mode`."""
    for parent in path.parents:
        parent.chmod(0o755)
        if parent.name.startswith(volume.PREFIX):
            break
    path.chmod(mode)
