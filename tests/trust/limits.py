# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of memory, descriptors and watches, real ones, on whole hosts under the service's own unit.

    sudo python -m tests.trust.limits                    # both releases, 8 minutes
    sudo python -m tests.trust.limits --release trixie

Memory: a memory cgroup holds the service from its first instruction to the unit's MemoryMax= while it does its
most expensive work (20,000 names in a directory, an archive of 128 MiB that is copied, a job over all), and to
less and less; killed or not, archives stay whole, and without the limit all work is done. Descriptors:
LimitNOFILE= from 8 on. Watches: the service is in a user namespace of its own, which may have only so many.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from journalkeeper.journald.header import STATE_OFFSET
from journalkeeper.model.units import parse_size
from journalkeeper.probe.bed import ARCHIVED
from tests.btrfs.journals import Bearing, bearing
from tests.guest.host import Guest
from tests.guest.steps import archive, eventually, extents, property_of
from tests.journal_files import archive_name, put
from tests.trust import table
from tests.trust.gate import Gate
from tests.trust.rights import AGED, QUICK, RELEASES, SERVICE, UNITS, host
from tests.trust.tally import Tally

MIB = 1 << 20
MEMORY = Path("/sys/fs/cgroup/memory")
NAMES = 20_000
MANY_S = 600.0
"""How long to wait where so many names are looked at: after each look the service rests for 20 times its CPU time."""

BIG_BYTES = 128 * MIB
CONFIG = QUICK + "[Nocow]\nNocow=no\n[Budget]\nBytesPerDay=infinity\nKeepFree=0\n"


class Tried(NamedTuple):
    """A limit: what was seen under it, what was lost, and what is wrong."""

    what: str
    seen: str
    lost: list[str]
    unclean: list[str]
    outage_s: float = 0.0


class MemoryLimit:
    """A memory cgroup of `limit_bytes` for processes of a guest, and what it counted. Raises: OSError without one."""

    def __init__(self, limit_bytes: int) -> None:
        own = re.search(r"(?m)^\d+:memory:(.*)$", Path("/proc/self/cgroup").read_text())
        if own is None:
            raise OSError("no memory cgroup of version 1, which guests have no controllers besides")
        self._group = MEMORY / own[1].lstrip("/") / f"journalkeeper-{os.getpid()}-{random.randrange(1 << 30)}"  # noqa: S311 - a name
        self._group.mkdir()
        (self._group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        (self._group / "memory.swappiness").write_text("0")

    def hold(self, pid: int, _unit: str = "") -> None:
        """Put a process in."""
        (self._group / "cgroup.procs").write_text(str(pid))

    @property
    def peak_bytes(self) -> int:
        """The most that was used, with pages of files."""
        return int((self._group / "memory.max_usage_in_bytes").read_text())

    @property
    def kills(self) -> int:
        """How often the kernel killed somebody in it."""
        found = re.search(r"(?m)^oom_kill (\d+)$", (self._group / "memory.oom_control").read_text())
        assert found is not None
        return int(found[1])

    def close(self) -> None:
        """Remove it, when the last process in it is gone."""

        def gone() -> bool:
            return not (self._group / "cgroup.procs").read_text()

        if not eventually(gone, 10):
            for pid in (self._group / "cgroup.procs").read_text().split():
                (self._group.parent / "cgroup.procs").write_text(pid)
        self._group.rmdir()


def archived(path: Path) -> bytes:
    """What is in an archive once journald has said in it that it is one, which comes after the renaming."""

    def is_archived() -> bool:
        with path.open("rb") as file:
            return os.pread(file.fileno(), 1, STATE_OFFSET)[0] == ARCHIVED

    if not eventually(is_archived):
        raise RuntimeError(f"{path}: journald left it in another state")
    return path.read_bytes()


def kept(path: Path) -> Bearing:
    """What a file bears but for its access time, which who reads the guest's journal moves."""
    found = bearing(path)
    return found._replace(times_ns=(0, found.times_ns[1]))


class Host:
    """A guest with the service, and the archives that must stay as they are."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.borne: dict[Path, Bearing] = {}
        (guest.root / "etc/journalkeeper.conf").write_text(CONFIG)
        self._content = archived(guest.journal / archive(guest))
        self._number = 1000

    def put(self, *, nocow: bool = False, size_bytes: int = 0) -> Path:
        """A torn archive of which everything is known."""
        self._number += 1
        content = self._content + bytes(max(0, size_bytes - len(self._content)))
        if size_bytes:
            content = content[: len(self._content)] + os.urandom(size_bytes - len(self._content))
        path = put(self.guest.journal, content, archive_name(self._number), nocow=nocow)
        self.borne[path] = kept(path)
        return path

    def mended(self, path: Path) -> bool:
        """Whether the service has done it."""
        return extents(self.guest)[path.name] < AGED

    def lost(self) -> list[str]:
        """Archives that are no longer what they were."""
        return [f"{path.name} changed" for path, before in self.borne.items() if kept(path) != before]

    def said(self, since: str, *which: str) -> list[str]:
        """What the service's unit logged, or what matches `which`."""
        words = ("journalctl", "--quiet", "--output=cat", f"--since={since}", *(which or (f"--unit={SERVICE}",)))
        return self.guest.run(*words, check=False).stdout.splitlines()

    def troubles(self, since: str) -> list[str]:
        """What the service said that it never should have."""
        return [line for line in self.said(since) if "Traceback" in line or "internal-error" in line]

    def now(self) -> str:
        """For `said`."""
        return self.guest.shell("date '+%F %T'").strip()


def memory(place: Host, limit_bytes: int, *, heavy: bool) -> Tried:
    """The service under a limit; `heavy` with its most expensive work."""
    guest, limit, since = place.guest, MemoryLimit(limit_bytes), place.now()
    guest.run("systemctl", "stop", SERVICE)
    paths = [place.put(), place.put(nocow=True)]
    if heavy:
        paths.append(place.put(nocow=True, size_bytes=BIG_BYTES))
        remote = guest.journal.parent / "remote"
        remote.mkdir(exist_ok=True)
        for number in range(NAMES):
            (remote / archive_name(number, f"remote-{'x' * 100}")).write_bytes(b"LPKSHHRH" + bytes(300))
    unclean = []
    try:
        with Gate(guest, {SERVICE: UNITS[SERVICE]}, limit.hold):
            guest.run("systemctl", "start", "--no-block", SERVICE)
            patience_s = MANY_S if heavy else 120
            done = eventually(lambda: all(map(place.mended, paths)) or limit.kills > 0, patience_s)
            if heavy and not limit.kills:
                guest.run("journalkeeper", "plan")
                files = ("org.journalkeeper1.Manager", "ListFiles", "a{sv}", "0")
                guest.run("busctl", "call", "org.journalkeeper1", "/org/journalkeeper1", *files, check=False)
                guest.run("journalkeeper", "defrag", "--now", check=False)
            kills = limit.kills
            guest.run("systemctl", "stop", SERVICE)
        if not done:
            unclean.append(f"{limit_bytes // MIB} MiB: neither done nor killed")
        if heavy and kills:
            unclean.append(f"{limit_bytes // MIB} MiB: killed {kills} times")
        seen = f"peak {limit.peak_bytes // MIB} MiB, " + (f"killed {kills} times" if kills else "all done")
    finally:
        limit.close()
    outage_s = again(place, paths, unclean, MANY_S if heavy else 90)
    return Tried(f"memory {limit_bytes // MIB} MiB", seen, place.lost(), unclean + place.troubles(since), outage_s)


def again(place: Host, paths: Sequence[Path], unclean: list[str], patience_s: float = 90) -> float:
    """Without the limit: how long until all is done; what is not is noted."""
    began_s = time.monotonic()
    place.guest.run("systemctl", "reset-failed", SERVICE, check=False)
    place.guest.run("systemctl", "restart", SERVICE)
    if not eventually(lambda: all(map(place.mended, paths)), patience_s):
        unclean.append("not at work again without the limit")
    return time.monotonic() - began_s


@contextmanager
def drop_in(guest: Guest, text: str) -> Iterator[None]:
    """The service's unit with these lines beside."""
    path = guest.root / f"etc/systemd/system/{SERVICE}.d/limit.conf"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[Service]\n{text}\n")
    guest.run("systemctl", "daemon-reload")
    try:
        yield
    finally:
        path.unlink()
        guest.run("systemctl", "daemon-reload")


def descriptors(place: Host, number: int) -> Tried:
    """The service with so many descriptors: it works, or says why not."""
    guest, since, unclean = place.guest, place.now(), list[str]()
    guest.run("systemctl", "stop", SERVICE)
    path = place.put()
    with drop_in(guest, f"LimitNOFILE={number}\nRestartSec=1s"):
        guest.run("systemctl", "start", "--no-block", SERVICE)

        def settled() -> bool:
            return place.mended(path) or int(property_of(guest, SERVICE, "NRestarts")) > 0

        eventually(settled)
        state = property_of(guest, SERVICE, "SubState")
        seen = "all done" if place.mended(path) else f"{state}: {last_words(place, since)}"
        guest.run("systemctl", "stop", SERVICE)
    outage_s = again(place, [path], unclean)
    if seen.endswith(": "):
        unclean.append("not a word")
    return Tried(f"descriptors {number}", seen, place.lost(), unclean + place.troubles(since), outage_s)


def last_words(place: Host, since: str) -> str:
    """The last line that any of its processes logged."""
    return (place.said(since, "SYSLOG_IDENTIFIER=journalkeeper", "_UID=0") or [""])[-1]


def watches(place: Host) -> Tried:
    """No watch more: it is said with the limit's name, and it is watched once there may be more."""
    guest, since, unclean = place.guest, place.now(), list[str]()
    with drop_in(guest, "PrivateUsers=yes"):
        guest.run("systemctl", "restart", SERVICE)
        pid = host_pid(guest, int(property_of(guest, SERVICE, "MainPID")))
        allow(pid, 0)
        directory = guest.journal.with_name(f"{guest.machine_id}.limited")
        directory.mkdir()
        if not eventually(lambda: _named("max_user_watches", place, since)):
            unclean.append("a refused watch was not said")
        path = place.put()
        if not eventually(lambda: place.mended(path)):
            unclean.append("without another watch no work was done")
        allow(pid, 1000)
        directory.rmdir()
        directory.mkdir()
        if not eventually(lambda: _named("OK: ", place, since)):
            unclean.append("not watched again when it may")
        directory.rmdir()
    guest.run("systemctl", "restart", SERVICE)
    return Tried("watches", "refused and taken again", place.lost(), unclean + place.troubles(since))


def _named(words: str, place: Host, since: str) -> bool:
    return any(words in line for line in place.said(since))


def host_pid(guest: Guest, inner: int) -> int:
    """The pid here of a process of a guest's. Raises: LookupError."""
    ours = os.readlink(f"/proc/{guest.leader}/ns/pid")
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            found = re.search(r"(?m)^NSpid:.*\s(\d+)$", path.read_text())
            if found and int(found[1]) == inner and os.readlink(path.parent / "ns/pid") == ours:
                return int(path.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise LookupError(inner)


def allow(pid: int, number: int) -> None:
    """Let the user namespace of a process have so many inotify watches."""
    script = f"echo {number} >/proc/sys/user/max_inotify_watches"
    subprocess.run(("nsenter", f"--target={pid}", "--user", "sh", "-c", script), check=True)


def tries(guest: Guest) -> Iterator[Tried]:
    """All of them, on one host."""
    place = Host(guest)
    unit = (guest.root / "usr/lib/systemd/system" / SERVICE).read_text()
    most = parse_size(re.findall(r"(?m)^MemoryMax=(\w+)$", unit)[0])
    yield memory(place, most, heavy=True)
    shutil.rmtree(guest.journal.parent / "remote")
    for mib in (64, 40, 32, 24, 16):
        yield memory(place, mib * MIB, heavy=False)
    for number in (8, 10, 12, 14, 16, 20, 24, 32):
        yield descriptors(place, number)
    yield watches(place)


def attack(asked: Namespace) -> table.Row:
    """Try each limit."""
    tally = Tally("limits", 0)
    for release in asked.release:
        with host(release) as guest:
            for tried in tries(guest):
                table.say(f"{release}: {tried.what}: {tried.seen}; done {tried.outage_s:.1f} s after it")
                found = {"lost": tried.lost, "unclean": tried.unclean}
                tally.add(f"{release}: {tried.what}", **found, outage_s=tried.outage_s)
    return tally.row()


if __name__ == "__main__":
    sys.exit(table.command(__doc__, "limits", attack, RELEASES, on_a_bed=True))
