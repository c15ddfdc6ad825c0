# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the benches of the service share: a journal under load, and `journalkeeper daemon` beside it.

The service runs as on a host: in journald's own mount namespace, with its
record on the journal's volume, its lines in the journal, and its unit's capabilities;
nothing of it is replaced.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.probe.bed import Bed
from tests.bench.figures import REPOSITORY, Option, run
from tests.trust.services import Quiet, quiet
from tests.volumes import extents

INSIDE = "/var/log/journal"
STATE = "state"
DATACOW = "[Nocow]\nNocow=no\n"
"""The defaults, on hosts whose files stay datacow."""

WATCHDOG_S = 180
"""WatchdogSec= of units/journalkeeper.service."""

PATIENCE_S = 60.0


def confined() -> list[str]:
    """The command that runs another one with the unit's capabilities: who may not search trees keeps no extents."""
    unit = (REPOSITORY / "units/journalkeeper.service").read_text()
    (kept,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    allowed = "".join(f",+{name.removeprefix('CAP_').lower()}" for name in kept.split())
    return ["setpriv", f"--bounding-set=-all{allowed}"]


def _lines(text: str) -> str:
    return text.replace("\\n", "\n")


CONFIG: Final = Option("", "lines of journalkeeper.conf beside those of the bench, with \\n", _lines)


@contextmanager
def serving(place: Bed, config: str = DATACOW, *, trace: Path | None = None) -> Iterator[Quiet]:
    """`journalkeeper daemon` beside the journald of `place`; its system calls are in `trace`."""
    strace = () if trace is None else (*OUR_CALLS, "-o", os.fspath(trace))
    with quiet(
        place.volume.base,
        Path(INSIDE),
        config=config,
        enter=(*place.journald.inside, *strace, *confined()),
        state=Path(INSIDE, STATE),
        watchdog_s=WATCHDOG_S,
        bus="",
        traced=trace is not None,
        to_journald=True,
    ) as service:
        yield service


class Use(NamedTuple):
    """What a process has used up to now: times it woke, seconds of CPU; and what it holds in memory."""

    wakes: int
    cpu_s: float
    resident_bytes: int


def use(pid: int) -> Use:
    """What `pid` has used: a thread that goes to sleep of its own accord has been awake (proc_pid_status(5))."""
    wakes = cpu_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
        wakes += int(found[1]) if found else 0
        cpu_ns += int((task / "schedstat").read_text().split()[0])
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Use(wakes, cpu_ns / 1e9, pages * os.sysconf("SC_PAGESIZE"))


def settled(service: Quiet, quiet_s: float = 5.0) -> None:
    """Wait until the service has slept for so long.

    Raises: RuntimeError if it does not come to rest.
    """
    deadline = time.monotonic() + 10 * PATIENCE_S
    while time.monotonic() < deadline:
        before = use(service.pid).wakes
        time.sleep(quiet_s)
        if use(service.pid).wakes == before:
            return
    raise RuntimeError(f"the service does not come to rest: {service.lines}")


class Call(NamedTuple):
    """One system call that was seen: when it began and ended, by CLOCK_REALTIME, its line, and whose it was."""

    began_s: float
    ended_s: float
    words: str
    thread: int

    def overlaps(self, other: Call) -> bool:
        """Whether the two were under way at the same time."""
        return self.began_s < other.ended_s and other.began_s < self.ended_s


def calls(trace: Path, pattern: str) -> list[Call]:
    """The calls in an `strace -f -ttt -T` that match, also those that others came between."""
    found: list[Call] = []
    begun: dict[str, Call] = {}
    for line in trace.read_text(errors="replace").splitlines():
        thread, moment, words = line.split(maxsplit=2)
        if "resumed>" in words:
            if thread in begun:
                found.append(begun.pop(thread)._replace(ended_s=float(moment)))
        elif re.search(pattern, words):
            took = re.search(r"<([\d.]+)>$", words)
            call = Call(float(moment), float(moment) + float(took[1] if took else 0), words, int(thread))
            if "<unfinished" in words:
                begun[thread] = call
            else:
                found.append(call)
    return sorted(found)


OUR_CALLS = ("strace", "-f", "-ttt", "-T", "-y", "--seccomp-bpf", "-e", "trace=ioctl,sync_file_range,fsync,fdatasync")
PIECES = r"DEFRAG|sync_file_range\(.*SYNC_FILE_RANGE_WRITE|fsync\(.*\.journal|fdatasync\(.*\.journal"
"""The calls that write an active or archived file; not the one that waits for what journald has begun."""


TRACING = Path("/sys/kernel/tracing")
MOUNTING = threading.Lock()
"""Only one thread of a bench mounts tracefs."""

FSYNC = re.compile(r"-(\d+)\s+\[\d+\]\s+\S+\s+([\d.]+): sys_fsync(\(| -> )")


@contextmanager
def fsyncs(pid: int) -> Iterator[list[Call]]:
    """The fsyncs of a process, threads that it makes meanwhile too; the list is filled at the end.

    By an instance of tracefs, which costs a microsecond: strace would stop the process at each system call, and
    lengthen what is measured.

    Raises: RuntimeError if events were lost, OSError or CalledProcessError without tracefs.
    """
    found: list[Call] = []
    with MOUNTING:
        if not (TRACING / "instances").exists():
            run("mount", "-t", "tracefs", "tracefs", TRACING)  # in the mount namespace of the bench
    instance = TRACING / f"instances/journalkeeper-bench-{pid}"
    instance.mkdir()
    try:
        (instance / "trace_clock").write_text("mono")
        (instance / "options/event-fork").write_text("1")
        (instance / "set_event_pid").write_text(" ".join(os.listdir(f"/proc/{pid}/task")))
        for name in ("sys_enter_fsync", "sys_exit_fsync"):
            (instance / f"events/syscalls/{name}/enable").write_text("1")
        yield found
        (instance / "tracing_on").write_text("0")
        lost = re.findall(r"overrun: (\d+)", "".join(one.read_text() for one in instance.glob("per_cpu/*/stats")))
        if any(map(int, lost)):
            raise RuntimeError(f"tracefs lost events of process {pid}: {' '.join(lost)}")
        found += sorted(_paired((instance / "trace").read_text(), time.time() - time.monotonic()))
    finally:
        instance.rmdir()


def _paired(trace: str, wall_s: float) -> Iterator[Call]:
    """The calls of a trace by CLOCK_MONOTONIC, which CLOCK_REALTIME is `wall_s` ahead of."""
    begun: dict[str, float] = {}
    for thread, moment, border in FSYNC.findall(trace):
        if border == "(":
            begun[thread] = float(moment)
        elif thread in begun:
            yield Call(begun.pop(thread) + wall_s, float(moment) + wall_s, "fsync", int(thread))


def age(place: Bed, wanted: int) -> None:
    """Let the active file have at least so many extents, by real flushes."""
    while extents(place.journald.active) < wanted:
        place.journald.age(10)


def every_second(seconds: float) -> Iterator[float]:
    """The seconds that have passed, each second."""
    began_s = time.monotonic()
    for number in itertools.count(1):
        if number > seconds:
            return
        time.sleep(max(0.0, began_s + number - time.monotonic()))
        yield number
