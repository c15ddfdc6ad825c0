# SPDX-License-Identifier: LGPL-2.1-or-later
"""What must hold after any fault: every journal file whole, and in order after the next run."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from journalkeeper.btrfs import fiemap, inode, kernel, mtime_note
from journalkeeper.btrfs.writeback import FALLOC_FL_KEEP_SIZE
from journalkeeper.config import Nocow
from journalkeeper.engine import Engine
from journalkeeper.history.record import Record
from journalkeeper.journald.names import is_leftover
from journalkeeper.model import MIB, Result
from journalkeeper.model.errors import KeeperError
from tests.btrfs.journals import ALWAYS, NOW

NOBODY = 0xFFFFFFFF
CONFIG = ALWAYS.model_copy(update={"nocow": Nocow(nocow="no")})
ACL = struct.pack("<I" + "HHI" * 5, 2, 1, 6, NOBODY, 2, 4, 1234, 4, 4, NOBODY, 16, 4, NOBODY, 32, 0, NOBODY)
"""user::rw-,user:1234:r--,group::r--,mask::r--,other::---. Source: linux/posix_acl_xattr.h"""

STATE = "state"
"""The state directory, on the same volume as the journal: one power cut is for both."""


def adorn(path: Path) -> None:
    """Give a journal file all that one can bear."""
    os.chown(path, 0, 4)
    os.chmod(path, 0o640)
    os.setxattr(path, "user.crtime_usec", b"12345678")
    os.setxattr(path, "system.posix_acl_access", ACL)


def allocate_ahead(path: Path) -> None:
    """Have space in it that was allocated and never written, at two places, as journald's fallocate leaves it."""
    status = path.stat()
    size = -(-status.st_size // MIB) * MIB
    os.truncate(path, size + 16 * MIB)
    with open(path, "r+b") as file:
        for offset, length in ((size, 8 * MIB), (size + 16 * MIB, MIB)):
            kernel.fallocate(file.fileno(), FALLOC_FL_KEEP_SIZE, offset, length)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


class Whole(NamedTuple):
    """All that a journal file is and bears, but for NOCOW and compression. An ACL is one of the xattrs."""

    sha256: str
    size_bytes: int
    owner: tuple[int, int]
    mode: int
    mtime_ns: int
    xattrs: dict[str, bytes]
    flags: int
    data: tuple[tuple[int, int], ...]


def whole(path: Path) -> Whole:
    """What `path` is. No other program is asked: this is done after every fault, several times."""
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Whole(
            digest,
            status.st_size,
            (status.st_uid, status.st_gid),
            status.st_mode,
            status.st_mtime_ns,
            {name: os.getxattr(file.fileno(), name) for name in os.listxattr(file.fileno())},
            inode.get_flags(file.fileno()) & ~(inode.FS_NOCOW_FL | inode.FS_COMPR_FL),
            tuple(fiemap.find_data(file.fileno(), sync=True)),
        )


def differences(wanted: Whole, path: Path, *, finished: bool) -> list[str]:
    """What of a journal file is not what it was; its time and our note about it only when a run is over."""
    try:
        found = whole(path)
    except FileNotFoundError:
        return [f"{path.name} is gone"]
    except OSError as error:
        return [f"{path.name}: {error}"]
    if not finished:
        found.xattrs.pop(mtime_note.NAME, None)
        found = found._replace(mtime_ns=wanted.mtime_ns)
    return [
        f"{path.name}: {field} was {getattr(wanted, field)}, is {getattr(found, field)}"
        for field in Whole._fields
        if getattr(wanted, field) != getattr(found, field)
    ]


def verify_failures(journal: Path) -> list[str]:
    """What `journalctl --verify` finds wrong in a directory."""
    words = ("journalctl", "--verify", "--directory", journal)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if "FAIL" in line]


class NextRun(NamedTuple):
    """How the run after a fault went: what it could not do, what is still left after it, and how long it took.

    `cleaned`: it had something to remove or to put back.
    """

    failed: list[str]
    left: list[str]
    took_s: float
    cleaned: bool


def next_run(top: Path, state: Path) -> NextRun:
    """Have the engine do what it does at its next turn."""
    began = time.monotonic()
    engine = Engine(CONFIG, directories=(os.fspath(top),), state_directory=os.fspath(state))
    try:
        report = engine.run(NOW, on_progress=lambda _: None, stop=lambda: False)
    except KeeperError as error:
        return NextRun([f"the next run: {error}"], left_in(top), time.monotonic() - began, cleaned=False)
    took_s = time.monotonic() - began
    failed = [f"{one.path}: {one.detail}" for one in report.outcomes if one.result is Result.FAILED]
    cleaned = any("killed run" in line for line in report.notices)
    return NextRun(failed, left_in(top), took_s, cleaned)


def left_in(top: Path) -> list[str]:
    """The temporary files and notes that are there."""
    left = []
    for directory, _, names in os.walk(top):
        left += [f"{name} is left" for name in names if is_leftover(name)]
        paths = [os.path.join(directory, name) for name in names]
        left += [f"{path}: a note is left" for path in paths if mtime_note.NAME in os.listxattr(path)]
    return left


def record_troubles(state: Path, rows: int) -> list[str]:
    """What is wrong with the record: it opens, was not set aside, and has at least so many outcomes."""
    set_aside = [f"{path.name} was set aside" for path in state.glob("history.db.*")]
    try:
        with Record(state, read_only=True) as record:
            found = len(record.history())
            ignored = list(record.ignored)
    except KeeperError as error:
        return [*set_aside, str(error)]
    return set_aside + ignored + ([f"{found} of {rows} outcomes are recorded"] if found < rows else [])
