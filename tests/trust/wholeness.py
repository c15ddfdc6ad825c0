# SPDX-License-Identifier: LGPL-2.1-or-later
"""The oracle of all attacks: after any fault every journal file is whole, and in order after the next run."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from journalkeeper.btrfs import inode
from journalkeeper.config.directives import Nocow
from journalkeeper.engine import Engine
from journalkeeper.history.store import Record
from journalkeeper.journald.layout import is_leftover
from journalkeeper.model import Result
from journalkeeper.model.errors import KeeperError
from tests.btrfs.journals import ALWAYS, Bearing, bearing, go
from tests.trust.claims import find_false_claims, read_claims

NOBODY = 0xFFFFFFFF
CONFIG = ALWAYS.model_copy(update={"nocow": Nocow(nocow="no")})
ACL = struct.pack("<I" + "HHI" * 5, 2, 1, 6, NOBODY, 2, 4, 1234, 4, 4, NOBODY, 16, 4, NOBODY, 32, 0, NOBODY)
"""user::rw-,user:1234:r--,group::r--,mask::r--,other::---. Source: linux/posix_acl_xattr.h"""

STATE = "state"
"""The state directory, on the same volume as the journal: one power cut is for both."""


def adorn(path: Path) -> None:
    """Give a journal file another owner, an extended attribute and an ACL."""
    os.chown(path, 0, 4)
    os.chmod(path, 0o640)
    os.setxattr(path, "user.crtime_usec", b"12345678")
    os.setxattr(path, "system.posix_acl_access", ACL)


def whole(path: Path) -> Bearing:
    """Return what `path` bears, its access time and the flag of a compressed file apart."""
    found = bearing(path)
    return found._replace(times_ns=(0, found.times_ns[1]), flags=found.flags & ~inode.FS_COMPR_FL)


def differences(wanted: Bearing, path: Path, *, finished: bool) -> list[str]:
    """Return a sentence for each difference of a file. Its time counts if a run has `finished`."""
    try:
        found = whole(path)
    except FileNotFoundError:
        return [f"{path.name} is gone"]
    except OSError as error:
        return [f"{path.name}: {error}"]
    if not finished:
        found = found._replace(times_ns=wanted.times_ns)
    return [
        f"{path.name}: {field} was {getattr(wanted, field)}, is {getattr(found, field)}"
        for field in Bearing._fields
        if getattr(wanted, field) != getattr(found, field)
    ]


def verify_failures(journal: Path) -> list[str]:
    """Return the failures that `journalctl --verify` finds in a directory."""
    words = ("journalctl", "--verify", "--directory", journal)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if "FAIL" in line]


class Examined(NamedTuple):
    """What is lost after a fault, what the next run could not do or left behind, and how long that run took."""

    lost: list[str]
    unclean: list[str]
    took_s: float


def examine(
    top: Path, wanted: Mapping[str, Bearing], rows: int, meanwhile: Callable[[], object] = lambda: None
) -> Examined:
    """Look at the files below `top` after a fault, let the engine do its next run, call `meanwhile`, and look again.

    `wanted` contains files by their path below `top`, `rows` is the number of outcomes that the history must have.
    """

    def compare(*, finished: bool) -> list[str]:
        found = [line for name, one in wanted.items() for line in differences(one, top / name, finished=finished)]
        return found + find_false_claims(top, read_claims(top / STATE))

    lost = compare(finished=False)
    engine = Engine(CONFIG, directories=(os.fspath(top),), state_directory=os.fspath(top / STATE))
    began_s = time.monotonic()
    try:
        report = go(engine)
        unclean = [f"{one.path}: {one.detail}" for one in report.outcomes if one.result is Result.FAILED]
    except KeeperError as error:
        unclean = [f"the next run: {error}"]
    took_s = time.monotonic() - began_s
    meanwhile()
    return Examined(
        lost + compare(finished=True) + record_troubles(top / STATE, rows), unclean + find_leftovers(top), took_s
    )


def find_leftovers(top: Path) -> list[str]:
    """Return a sentence for each temporary file that is left below `top`."""
    return [f"{name} is left" for _, _, names in os.walk(top) for name in names if is_leftover(name)]


def record_troubles(state: Path, rows: int) -> list[str]:
    """Return a sentence if the history does not open, was set aside, or has fewer outcomes than `rows`."""
    set_aside = [f"{path.name} was set aside" for path in state.glob("history.db.*")]
    try:
        with Record(state, read_only=True) as record:
            found = len(record.list_entries())
            ignored = list(record.ignored)
    except KeeperError as error:
        return [*set_aside, str(error)]
    return set_aside + ignored + ([f"{found} of {rows} outcomes are recorded"] if found < rows else [])


def read_rows(state: Path) -> int:
    """Return the number of outcomes in the history."""
    with Record(state, read_only=True) as record:
        return len(record.list_entries())
