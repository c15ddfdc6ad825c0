# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare journal files of every kind before and after a run, and show that a second run has nothing to do.

    sudo python -m tests.bench.identity
    sudo python -m tests.bench.identity --generations 12

A private journald makes system and user archives by real flushes and rotations, and unclean
files by being killed. Each is copied, torn into extents where it is datacow, to NOCOW, to a
namespace's directory and to remote/, and every file is given an owner, a mode, an ACL,
xattrs and a time of its own. Then `journalkeeper defrag --now` runs twice over all of them.

The content of a file is all its bytes, and where its holes are; its access time must stay, too.
"""

from __future__ import annotations

import array
import collections
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from journalkeeper.probe.bed import ONLINE, Bed, bed
from journalkeeper.probe.scratch_volume import run
from tests.bench.figures import Figure, Option, at_least, count_is, engine, mib, parser, show, start
from tests.btrfs.journals import bearing
from tests.volumes import disk_bytes

BLOCK = 4096
USER, REMOTE = 1000, 997
SETTINGS = ("SystemMaxFileSize=16M", "SystemMaxUse=800M", "SplitMode=uid")
FORMS = ("datacow", "nocow")
SECOND_NS = 1_000_000_000
EPOCH_NS = 1_700_000_000_123_456_789


def log_as_user(place: Bed, messages: int) -> None:
    """Send messages with the credentials of a user, so that journald makes a file for this user."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(f"/proc/{place.journald.pid}/root/run/systemd/journal/socket")
        sender = array.array("i", [os.getpid(), USER, USER])
        for number in range(messages):
            text = f"MESSAGE=a user's message {number}\nPRIORITY=6\nBENCH_NUMBER={os.urandom(8).hex()}\n".encode()
            channel.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, sender)])


def generation(place: Bed, flushes: int) -> None:
    """Make an archive of the system and one of the user, and unclean files of both by killing journald."""
    for killed in (False, True):
        for _ in range(flushes):
            log_as_user(place, 20)
            place.journald.age(1, 40)
        if not killed:
            place.journald.rotate()
            continue
        log_as_user(place, 1)
        place.journald.log("never synced")
        while place.journald.state() != ONLINE:
            time.sleep(0.001)
        place.journald.kill()
        place.journald.start()


def rename(name: str, number: int) -> str:
    """Return a new name of the same kind."""
    stem, _, rest = name.partition("@")
    if name.endswith("~"):
        return f"{stem}@{number:016x}-{os.urandom(8).hex()}.journal~"
    return f"{stem}@{os.urandom(16).hex()}{rest[32:]}"


def copy(source: Path, target: Path, *, nocow: bool) -> None:
    """Copy the bytes and holes of a file to a new one, and fragment the copy if it is datacow."""
    target.touch()
    run("chattr", "+C" if nocow else "-C", target)
    run("cp", "--reflink=never", "--sparse=auto", source, target)
    os.sync()
    if nocow:
        return
    with open(target, "r+b", buffering=0) as file:
        for offset in range(0, target.stat().st_size - BLOCK, 4 * BLOCK):
            block = os.pread(file.fileno(), BLOCK, offset)
            if any(block):
                os.pwrite(file.fileno(), block, offset)
        os.fsync(file.fileno())


def make_files(place: Bed, generations: int, flushes: int) -> dict[Path, str]:
    """Make all files, and return the kind of each in words."""
    for _ in range(generations):
        generation(place, flushes)
    place.journald.stop()
    journal = place.journald.journal
    kinds = {path: f"{_what(path)} datacow" for path in sorted(journal.iterdir())}
    sources = [path for path in kinds if "@" in path.name]
    for where in (journal, journal.with_name(f"{journal.name}.app"), journal.with_name("remote")):
        where.mkdir(exist_ok=True)
        for form in FORMS:
            if (where, form) == (journal, "datacow"):
                continue
            for number, source in enumerate(sources):
                name = rename(source.name, number)
                remote = where.name == "remote"
                target = where / (f"remote-{name}" if remote else name)
                copy(source, target, nocow=form == "nocow")
                word = "remote" if remote else _what(source)
                kinds[target] = f"{word} {form}" + (" of a namespace" if where.name.endswith(".app") else "")
    return kinds


def _what(path: Path) -> str:
    words = ["user" if path.name.startswith("user-") else "system"]
    words.append("active" if "@" not in path.name else "unclean" if path.name.endswith("~") else "archive")
    return " ".join(words)


def dress(kinds: dict[Path, str]) -> None:
    """Give each file its own owner, mode, ACL, xattrs and time."""
    for number, (path, kind) in enumerate(kinds.items()):
        os.chown(path, REMOTE if kind.startswith("remote") else 0, 900 + number)
        os.chmod(path, (0o640, 0o600, 0o644)[number % 3])
        run("setfacl", "--modify", f"user:{2000 + number}:r,group:{3000 + number}:r", path)
        os.setxattr(path, "user.bench", f"number {number}".encode())
        os.setxattr(path, "trusted.bench", os.urandom(20))
        os.setxattr(path, "security.bench", os.urandom(20))
        os.utime(path, ns=(EPOCH_NS, EPOCH_NS - number * SECOND_NS))


def defrag(place: Bed) -> list[dict[str, Any]]:
    """Run journalkeeper over all files, and return the outcomes."""
    return list(json.loads(run(*engine("defrag", "--now", "-j", "-D", os.fspath(place.directory))))["outcomes"])


def measure(place: Bed, kinds: dict[Path, str]) -> tuple[list[str], list[Figure]]:
    """Run journalkeeper twice, and return notes and rows about the files before and after."""
    nocow = [path for path, kind in kinds.items() if "nocow" in kind]
    before = {path: bearing(path) for path in kinds}
    disk = disk_bytes(place.volume.mountpoint)
    first, second = defrag(place), defrag(place)
    same = {path for path in kinds if bearing(path) == before[path]}
    after = disk_bytes(place.volume.mountpoint)
    notes = [
        *(f"{kind}: {count} files" for kind, count in sorted(collections.Counter(kinds.values()).items())),
        f"all on disk: {mib(disk)} before, {mib(after)} after",
        f"first run: {dict(collections.Counter(outcome['result'] for outcome in first))}",
        f"second run: {dict(collections.Counter(outcome['reason'] for outcome in second))}",
    ]
    figures = [
        at_least("files", len(kinds), 50),
        count_is("identical in content, owner, mode, ACL, xattrs and mtime", len(same), len(kinds)),
        count_is("failed", sum(outcome["result"] == "failed" for outcome in first + second), 0),
        count_is("bytes written by the second run", sum(outcome["bytes_written"] for outcome in second), 0),
        count_is("NOCOW files still NOCOW (lsattr)", sum("C" in run("lsattr", path).split()[0] for path in nocow), 0),
    ]
    return notes, figures


OPTIONS = {
    "generations": Option(4, "of real archives; each makes some 24 files"),
    "flushes": Option(15, "that an archive lives through"),
}


def main() -> None:
    """Measure and print."""
    asked = start(parser(__doc__, OPTIONS))
    with bed(*SETTINGS, size="4G") as place:
        os.environ["STATE_DIRECTORY"] = os.fspath(place.volume.base / "state")
        kinds = make_files(place, asked.generations, asked.flushes)
        dress(kinds)
        notes, figures = measure(place, kinds)
    show("Files of every kind", notes, figures)


if __name__ == "__main__":
    main()
