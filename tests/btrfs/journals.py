# SPDX-License-Identifier: LGPL-2.1-or-later
"""Journal files in every form that the hands meet, and what an outsider sees of them.

What is compared is read with the system's own tools where there is one.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from journalkeeper.btrfs import fiemap
from journalkeeper.config import Budget, Config, Defrag
from journalkeeper.execute.executor import execute
from journalkeeper.execute.pace import Pace
from journalkeeper.lab import volume
from journalkeeper.lab.volume import ScratchVolume, run
from journalkeeper.model import MIB, Action, Host, JournalFile, Plan, Reason, Request
from journalkeeper.model.run import Done
from journalkeeper.observe.observer import Observer
from journalkeeper.policy.plan import plan
from tests.journal_files import PAGE
from tests.patience import eventually

ALWAYS = Config(budget=Budget(bytes_per_day=None, keep_free_bytes=0), defrag=Defrag(min_extents=1, min_reclaim_bytes=0))
"""A configuration by which every gain pays and every byte may be used."""

NOW = Request(now=True)
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
    """All that a rewrite must leave as it was."""

    sha256: str
    size_bytes: int
    owner: tuple[int, int]
    mode: int
    times_ns: tuple[int, int]
    xattrs: dict[str, bytes]
    acl: str
    flags: str
    data: tuple[tuple[int, int], ...]


def bearing(path: Path) -> Bearing:
    """What `path` bears, without moving its access time; its compression and NOCOW flags apart."""
    fd = os.open(path, os.O_RDONLY | os.O_NOATIME)
    try:
        status = os.fstat(fd)
        with open(fd, "rb", closefd=False) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Bearing(
            digest,
            status.st_size,
            (status.st_uid, status.st_gid),
            status.st_mode,
            (status.st_atime_ns, status.st_mtime_ns),
            {name: os.getxattr(fd, name) for name in os.listxattr(fd)},
            run("getfacl", "--omit-header", "--absolute-names", "--numeric", path),
            run("lsattr", path).split()[0].replace("C", "-"),
            tuple(fiemap.data(fd, sync=True)),
        )
    finally:
        os.close(fd)


def export(path: Path) -> str:
    """What readers get out of it."""
    return run("journalctl", "--quiet", "--output=export", f"--file={path}")


def extents(path: Path) -> int:
    """filefrag(8)'s count, after dirty pages were written."""
    return volume.extents(path, sync=True)


def is_nocow(path: Path) -> bool:
    """What lsattr(1) says."""
    return "C" in run("lsattr", path).split()[0]


def look(*paths: Path) -> tuple[JournalFile, ...]:
    """The files as the observer sees them."""
    return Observer().look_at(map(str, paths), now_us=time.time_ns() // 1000).files


def planned(*paths: Path, request: Request = NOW, config: Config = ALWAYS, **words: Any) -> Plan:
    """The plan for these files; `words` change the host that it is made of."""
    now_us = time.time_ns() // 1000
    seen = Observer().look_at(map(str, paths), now_us=now_us)
    host = Host(now_us, seen.files, seen.instances, seen.volumes, {}, 0)
    return plan(host._replace(**words), request, config)


def action(path: Path, request: Request = NOW) -> Action:
    """What the plan would do to this file."""
    found = planned(path, request=request)
    assert found.actions, found.skipped
    return found.actions[0]


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


def let_go(volume: ScratchVolume) -> None:
    """Unmount a volume for good: another mount namespace that was just made may have it mounted still."""
    volume.unmount()

    def free() -> bool:
        try:
            os.close(os.open(volume.device, os.O_RDONLY | os.O_EXCL))
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    assert eventually(free)


def fill(path: Path) -> None:
    """Write to `path` until the volume has no room left."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (MIB, PAGE):
            try:
                while True:
                    os.write(fd, os.urandom(size))
                    os.fsync(fd)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    finally:
        os.close(fd)
