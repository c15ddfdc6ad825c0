# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of memory and of descriptors, real ones, for the service.

    sudo python -m tests.trust.limits
    sudo python -m tests.trust.limits --memory 24 --descriptors 14

The first memory limit is the MemoryMax= of the unit, and the service does its most expensive work under it: 20,000
names in one directory, and an archive of 128 MiB that is copied. Smaller limits let the kernel kill the service, and a
small number of descriptors keeps it from its work. The service must do the work, be killed, or log a reason. Archives
stay as they are, and without the limit the service does all the work. Outage: how long that takes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Final

from journalkeeper.model import MIB
from journalkeeper.model.units import parse_size
from journalkeeper.probe.bed import Bed, bed
from tests.bench.figures import Option
from tests.btrfs.journals import QUICK, extents, is_nocow
from tests.daemon import CHECKOUT, Daemon
from tests.hosts import MACHINE
from tests.journal_files import MAGIC, archive_name, put
from tests.patience import eventually
from tests.trust import table
from tests.trust.table import Tally
from tests.trust.wholeness import Whole, differences, whole
from tests.volumes import why_no_bed

NAMES: Final = 20_000
BIG_BYTES: Final = 128 * MIB
CONFIG: Final = f"{QUICK}[Budget]\nBytesPerDay=infinity\nKeepFree=0\n"
AGED: Final = 100
"""An archive of so many extents was not rewritten."""

UNITS: Final = "MemoryMax"
PATIENCE_S: Final = 60.0
MANY_S: Final = 600.0
"""How long a service may take where a look is expensive: after each look it rests for a multiple of its CPU time."""


class MemoryGroup:
    """A memory cgroup (version 1) of this process's own, in which `limit_bytes` of memory may be used."""

    def __init__(self, limit_bytes: int) -> None:
        own = re.search(r"(?m)^\d+:memory:(.*)$", Path("/proc/self/cgroup").read_text())
        assert own is not None, "missing() looks for it"
        self.path = Path("/sys/fs/cgroup/memory", own[1].lstrip("/"), f"journalkeeper-{os.getpid()}-{limit_bytes}")
        self.path.mkdir()
        (self.path / "memory.limit_in_bytes").write_text(f"{limit_bytes}")
        (self.path / "memory.swappiness").write_text("0")

    @property
    def peak_mib(self) -> int:
        """The most memory that was used, with pages of files."""
        return int((self.path / "memory.max_usage_in_bytes").read_text()) // MIB


class Host:
    """A journal on a volume; `borne` is what each archive must stay."""

    def __init__(self, place: Bed) -> None:
        self.base, self.top = place.volume.base, place.volume.mountpoint
        self.borne: dict[Path, Whole] = {}
        place.journald.age(40)
        self._content = place.journald.rotate().read_bytes()
        self._own = self.top / MACHINE
        self._own.mkdir()

    def put(self, *, nocow: bool = False, size_bytes: int = 0) -> Path:
        """Return a new fragmented archive, with random bytes behind its content up to `size_bytes`."""
        content = self._content + os.urandom(max(0, size_bytes - len(self._content)))
        path = put(self._own, content, archive_name(len(self.borne) + 1), nocow=nocow)
        self.borne[path] = whole(path)
        return path

    def crowd(self) -> Path:
        """Return a directory with NAMES files."""
        remote = self.top / "remote"
        remote.mkdir()
        for number in range(NAMES):
            (remote / archive_name(number, f"remote-{'x' * 100}")).write_bytes(MAGIC + bytes(300))
        return remote

    def serve(self, *wrapper: str) -> Daemon:
        """Start a service, which `wrapper` limits."""
        return Daemon(self.base / "service", self.top, config=CONFIG, wrapper=wrapper)


def try_limit(place: Host, name: str, wrapper: tuple[str, ...], tally: Tally, patience_s: float = PATIENCE_S) -> bool:
    """Let a service work under a limit, and another one without it. Return whether the first one did all the work."""
    wanted = [place.put(), place.put(nocow=True, size_bytes=BIG_BYTES if patience_s == MANY_S else 0)]
    unclean = []

    def is_done() -> bool:
        return all(extents(path) < AGED and not is_nocow(path) for path in wanted)

    with place.serve(*wrapper) as limited:
        eventually(lambda: is_done() or limited.process.poll() is not None, patience_s, pause_s=0.2)
        done, status = is_done(), limited.process.poll()
        log = limited.log().splitlines()
    if not done and status != -signal.SIGKILL and not log:
        unclean.append("the service neither worked nor was killed, and logged no reason")
    began_s = time.monotonic()
    with place.serve():
        if not eventually(is_done, patience_s, pause_s=0.2):
            unclean.append("the work was not done without the limit")
    table.say(f"{name}: {'all done' if done else f'exit status {status}: {log[-1:]}'}")
    lost = [line for path, before in place.borne.items() for line in differences(before, path, finished=True)]
    tally.add(name, lost=lost, unclean=unclean, outage_s=time.monotonic() - began_s)
    return done


def try_memory(place: Host, limit_bytes: int, tally: Tally, patience_s: float = PATIENCE_S) -> bool:
    """Let a service work with `limit_bytes` of memory. Return whether it did all the work."""
    group = MemoryGroup(limit_bytes)
    try:
        enter = ("sh", "-c", f'echo $$ >{group.path}/cgroup.procs && exec "$@"', "sh")
        done = try_limit(place, f"memory {limit_bytes // MIB} MiB", enter, tally, patience_s)
        table.say(f"    {group.peak_mib} MiB at most")
        return done
    finally:
        group.path.rmdir()


def attack(asked: Namespace, tally: Tally) -> None:
    """Try each limit."""
    with bed(size="4G") as bed_:
        place = Host(bed_)
        if UNITS in asked.memory:
            (most,) = re.findall(r"(?m)^MemoryMax=(\w+)$", (CHECKOUT / "units/journalkeeper.service").read_text())
            remote = place.crowd()
            if not try_memory(place, parse_size(most), tally, MANY_S):
                tally.add("MemoryMax=", unclean=["the most expensive work was not done"])
            shutil.rmtree(remote)
        for mib in asked.memory:
            if mib != UNITS:
                try_memory(place, int(mib) * MIB, tally)
        for number in asked.descriptors:
            try_limit(place, f"descriptors {number}", ("prlimit", f"--nofile={number}"), tally)


def find_obstacle() -> str | None:
    """Return the reason why no limits can be set here, or None."""
    if not re.search(r"(?m)^\d+:memory:", Path("/proc/self/cgroup").read_text()):
        return "there is no memory cgroup of version 1"
    return why_no_bed()


OPTIONS: Final = {
    "memory": Option([UNITS, "64", "40", "32", "24", "16"], f"in MiB; {UNITS}: MemoryMax= of the unit", str, many=True),
    "descriptors": Option([8, 10, 12, 14, 16, 20, 24, 32], "that may be open", int, many=True),
}

if __name__ == "__main__":
    sys.exit(table.command(__doc__, attack, OPTIONS, find_obstacle=find_obstacle))
