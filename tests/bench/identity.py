# SPDX-License-Identifier: LGPL-2.1-or-later
"""That nothing is lost: journal files of every kind before and after, and that a second run has nothing to do.

    sudo python -m tests.bench.identity
    sudo python -m tests.bench.identity --generations 12

A private journald makes system and user archives by real flushes and rotations, and unclean
files by being killed. Each is copied, torn into extents where it is datacow, to NOCOW, to a
namespace's directory and to remote/, and every file is given an owner, a mode, an ACL,
xattrs and a time of its own. Then `journalkeeper defrag --now` runs twice over all of them.

The content of a file is all its bytes, and where its holes are; its access time must stay, too. That
NOCOW files are checksummed afterwards is what the inode's flags say (btrfs inspect-internal dump-tree)
and what a scrub finds without a checksum.
"""

from __future__ import annotations

import array
import collections
import json
import os
import re
import shutil
import socket
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from journalkeeper.probe.bed import ONLINE, Bed, bed
from journalkeeper.probe.scratch_volume import ScratchVolume
from tests.bench.figures import Figure, at_least, count_is, engine, mib, need_a_bed, parser, run, show
from tests.btrfs.journals import bearing
from tests.volumes import disk_bytes

BLOCK = 4096
USER, REMOTE = 1000, 997
SETTINGS = ("SystemMaxFileSize=16M", "SystemMaxUse=800M", "SplitMode=uid")
FORMS = ("datacow", "nocow")
SECOND_NS = 1_000_000_000
EPOCH_NS = 1_700_000_000_123_456_789
NODATASUM = "NODATASUM"


def log_as_user(place: Bed, messages: int) -> None:
    """Send messages that journald takes for a user's, who then has a file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(f"/proc/{place.journald.pid}/root/run/systemd/journal/socket")
        sender = array.array("i", struct.unpack("3i", struct.pack("3i", os.getpid(), USER, USER)))
        for number in range(messages):
            text = f"MESSAGE=a user's message {number}\nPRIORITY=6\nBENCH_NUMBER={os.urandom(8).hex()}\n".encode()
            channel.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, sender)])


def generation(place: Bed, flushes: int) -> None:
    """One archive of the system and one of the user, and what a killed journald leaves of both."""
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


def renamed(name: str, number: int) -> str:
    """A name of the same kind that no other file has."""
    stem, _, rest = name.partition("@")
    if name.endswith("~"):
        return f"{stem}@{number:016x}-{os.urandom(8).hex()}.journal~"
    return f"{stem}@{os.urandom(16).hex()}{rest[32:]}"


def copy(source: Path, target: Path, *, nocow: bool) -> None:
    """The same bytes and holes in a new file; datacow ones torn into extents."""
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
    """Every file and its kind in words."""
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
                name = renamed(source.name, number)
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
    """Give each file a bearing of its own."""
    for number, (path, kind) in enumerate(kinds.items()):
        os.chown(path, REMOTE if kind.startswith("remote") else 0, 900 + number)
        os.chmod(path, (0o640, 0o600, 0o644)[number % 3])
        run("setfacl", "--modify", f"user:{2000 + number}:r,group:{3000 + number}:r", path)
        os.setxattr(path, "user.bench", f"number {number}".encode())
        os.setxattr(path, "trusted.bench", os.urandom(20))
        os.setxattr(path, "security.bench", os.urandom(20))
        os.utime(path, ns=(EPOCH_NS, EPOCH_NS - number * SECOND_NS))


def defrag(place: Bed) -> list[dict[str, Any]]:
    """The outcomes of one run over all files."""
    return list(json.loads(run(*engine("defrag", "--now", "-j", "-D", os.fspath(place.directory))))["outcomes"])


def without_checksums(volume: ScratchVolume, paths: list[Path]) -> int:
    """How many of these files btrfs keeps no checksums of, by their inodes' flags."""
    os.sync()
    tree = run("btrfs", "inspect-internal", "dump-tree", "--tree", "5", volume.device)
    found = re.findall(r"key \((\d+) INODE_ITEM 0\).*?flags 0x[0-9a-f]+\(([^)]*)\)", tree, re.DOTALL)
    flags = {int(inode): words for inode, words in found}
    return sum(NODATASUM in flags[path.stat().st_ino] for path in paths)


def scrubbed(volume: ScratchVolume) -> tuple[int, int]:
    """Blocks that a scrub finds without a checksum, and its errors."""
    os.sync()  # or it finds what was just unlinked
    counts = dict(re.findall(r"(\w+): (\d+)", run("btrfs", "scrub", "start", "-BR", volume.mountpoint)))
    return int(counts["no_csum"]), sum(int(count) for name, count in counts.items() if name.endswith("_errors"))


def compressed(paths: list[Path]) -> int:
    """How many of these files have zstd extents, by compsize(8)."""
    return sum("\nzstd" in run("compsize", "-b", path) for path in paths)


def by_kind(kinds: dict[Path, str], outcomes: list[dict[str, Any]], same: set[Path]) -> Iterator[str]:
    """A line for each kind of file: how many, how many identical, and what became of them."""
    became = {outcome["path"]: f"{outcome['result']} {outcome['reason']}" for outcome in outcomes}
    for kind in sorted(set(kinds.values())):
        paths = [path for path, its in kinds.items() if its == kind]
        tally = collections.Counter(became[os.fspath(path)] for path in paths)
        what = ", ".join(f"{count} {words}" for words, count in tally.most_common())
        yield f"{kind}: {len(paths)}, identical {len(same & set(paths))}; {what}"


def measure(place: Bed, kinds: dict[Path, str]) -> tuple[list[str], list[Figure]]:
    """Both runs, and what they left."""
    nocow = [path for path, kind in kinds.items() if "nocow" in kind]
    before = {path: bearing(path) for path in kinds}
    disk = disk_bytes(place.volume.mountpoint)
    bare, (bare_blocks, _) = without_checksums(place.volume, nocow), scrubbed(place.volume)
    first, second = defrag(place), defrag(place)
    same = {path for path in kinds if bearing(path) == before[path]}
    after = disk_bytes(place.volume.mountpoint)
    for path in (path for path, kind in kinds.items() if "active" in kind):
        path.unlink()  # space that was allocated and not yet written has no checksums either
    blocks, errors = scrubbed(place.volume)
    notes = [
        *by_kind(kinds, first, same),
        f"all on disk: {mib(disk)} before, {mib(after)} after",
        f"NOCOW files without checksums: {bare} of {len(nocow)} before; blocks without, by a scrub: {bare_blocks}",
        f"second run: {dict(collections.Counter(outcome['reason'] for outcome in second))}",
    ]
    figures = [
        at_least("files", len(kinds), 50),
        count_is("identical in content, owner, mode, ACL, xattrs and mtime", len(same), len(kinds)),
        count_is("failed", sum(outcome["result"] == "failed" for outcome in first + second), 0),
        Figure("rewritten by the first run", str(sum(outcome["result"] == "done" for outcome in first))),
        count_is("bytes written by the second run", sum(outcome["bytes_written"] for outcome in second), 0),
        count_is("files that it says why it left alone", _left_alone(second, kinds), len(kinds)),
        count_is("NOCOW files still NOCOW (lsattr)", sum("C" in run("lsattr", path).split()[0] for path in nocow), 0),
        count_is("NOCOW files without checksums now", without_checksums(place.volume, nocow), 0),
        count_is("blocks without a checksum now (scrub)", blocks, 0),
        count_is("errors found by the scrub", errors, 0),
        count_is("NOCOW files compressed now (compsize)", compressed(nocow), len(nocow)),
    ]
    return notes, figures


def _left_alone(outcomes: list[dict[str, Any]], kinds: dict[Path, str]) -> int:
    files = [outcome for outcome in outcomes if Path(outcome["path"]) in kinds]
    return sum(outcome["result"] == "skipped" and bool(outcome["reason"]) for outcome in files)


def main() -> int:
    """Measure and print."""
    words = parser(__doc__)
    words.add_argument(
        "--generations", type=int, default=4, help="of real archives; each makes some 24 files (default: %(default)s)"
    )
    words.add_argument("--flushes", type=int, default=15, help="that an archive lives through (default: %(default)s)")
    asked = words.parse_args()
    need_a_bed(words)
    for tool in ("setfacl", "getfacl", "lsattr", "compsize"):
        if shutil.which(tool) is None:
            words.exit(1, f"{words.prog}: {tool} is not installed\n")
    with bed(*SETTINGS, size="4G") as place:
        os.environ["STATE_DIRECTORY"] = os.fspath(place.volume.base / "state")
        kinds = make_files(place, asked.generations, asked.flushes)
        dress(kinds)
        notes, figures = measure(place, kinds)
    show("Files of every kind", notes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
