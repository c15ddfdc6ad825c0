# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run `journalkeeper daemon` next to a private journald, and read system calls and the use of a process.

The service runs as on a host: in journald's mount namespace, with its history on the journal's volume, its log in the
journal, and its unit's capabilities.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from journalkeeper.probe import who
from journalkeeper.probe.bed import Bed
from tests.bench.figures import REPOSITORY, Option
from tests.daemon import Daemon
from tests.volumes import extents

INSIDE = "/var/log/journal"
STATE = "state"
DATACOW = "[Nocow]\nNocow=no\n"
"""The defaults, on hosts whose files stay datacow."""

WATCHDOG_S = 180
"""WatchdogSec= of units/journalkeeper.service."""

PATIENCE_S, QUIET_S = 60.0, 5.0


def drop_capabilities() -> list[str]:
    """Return the command prefix that runs a command with the capabilities of the service's unit.

    The command is terminated when this process ends, because the command would keep the scratch volume mounted.
    """
    unit = (REPOSITORY / "units/journalkeeper.service").read_text()
    (kept,) = re.findall(r"^CapabilityBoundingSet=(.*)$", unit, re.MULTILINE)
    allowed = "".join(f",+{name.removeprefix('CAP_').lower()}" for name in kept.split())
    return ["setpriv", "--pdeathsig=TERM", f"--bounding-set=-all{allowed}"]


CONFIG: Final = Option("", "further lines of journalkeeper.conf, with \\n", lambda text: text.replace("\\n", "\n"))

TO_JOURNALD: Final = ("sh", "-c", 'JOURNAL_STREAM=$(stat --dereference --format=%d:%i /proc/self/fd/2) exec "$@"', "sh")
"""The command that runs another one whose log goes to journald, as a unit's."""


@contextmanager
def serving(place: Bed, config: str = DATACOW, *, trace: Path | None = None) -> Iterator[Daemon]:
    """Run `journalkeeper daemon` beside the journald of `place` for the block. Its system calls go to `trace`."""
    strace = () if trace is None else (*OUR_CALLS, "-o", os.fspath(trace))
    with Daemon(
        place.volume.base / "service",
        INSIDE,
        config=config,
        wrapper=(*place.journald.inside, *TO_JOURNALD, *strace, *drop_capabilities()),
        state=Path(INSIDE, STATE),
        watchdog_s=WATCHDOG_S,
    ) as service:
        yield service.ready()


def settle(service: Daemon) -> None:
    """Wait until the service has used no CPU for QUIET_S.

    Raises: RuntimeError after ten times PATIENCE_S.
    """
    before_s = -1.0
    for _ in range(int(10 * PATIENCE_S / QUIET_S)):
        now_s = service.cpu_s()
        if now_s == before_s:
            return
        before_s = now_s
        time.sleep(QUIET_S)
    raise RuntimeError(f"the service does not come to rest: {service.log()}")


class Call(NamedTuple):
    """One system call: its begin and end by CLOCK_REALTIME."""

    began_s: float
    ended_s: float

    def overlaps(self, other: Call) -> bool:
        """Return whether the two were under way at the same time."""
        return self.began_s < other.ended_s and other.began_s < self.ended_s


def calls(trace: Path, pattern: str) -> list[Call]:
    """Return the calls in the output of `strace -f -ttt -T` that match, also those that strace split into two lines."""
    found: list[Call] = []
    begun: dict[str, Call] = {}
    for line in trace.read_text(errors="replace").splitlines():
        thread, moment, words = line.split(maxsplit=2)
        if "resumed>" in words:
            if thread in begun:
                found.append(begun.pop(thread)._replace(ended_s=float(moment)))
        elif re.search(pattern, words):
            took = re.search(r"<([\d.]+)>$", words)
            call = Call(float(moment), float(moment) + float(took[1] if took else 0))
            if "<unfinished" in words:
                begun[thread] = call
            else:
                found.append(call)
    return sorted(found)


OUR_CALLS = ("strace", "-Df", "-ttt", "-T", "-y", "--seccomp-bpf", "-e", "trace=ioctl,sync_file_range,fsync,fdatasync")
PIECES = r"DEFRAG|sync_file_range\(.*SYNC_FILE_RANGE_WRITE|fsync\(.*\.journal|fdatasync\(.*\.journal"
"""The calls that write an active or archived file, without the one that waits for journald's writes."""


FSYNC = re.compile(r"-(\d+)\s+\[\d+\]\s+\S+\s+([\d.]+): sys_fsync(\(| -> )")


@contextmanager
def fsyncs(pid: int) -> Iterator[list[Call]]:
    """Yield a list to which the fsyncs of a process and of its new threads are added at the end of the block.

    An instance of tracefs costs a microsecond for each call. strace would stop the process and lengthen the calls.

    Raises: RuntimeError if events were lost, KeeperError without tracefs.
    """
    found: list[Call] = []
    with who.trace() as instance:
        (instance / "options/event-fork").write_text("1")
        (instance / "set_event_pid").write_text(" ".join(os.listdir(f"/proc/{pid}/task")))
        (instance / "trace").write_text("")  # of others, until now
        yield found
        (instance / "tracing_on").write_text("0")
        lost = re.findall(r"overrun: (\d+)", "".join(one.read_text() for one in instance.glob("per_cpu/*/stats")))
        if any(map(int, lost)):
            raise RuntimeError(f"tracefs lost events of process {pid}: {' '.join(lost)}")
        found += sorted(_pair_calls((instance / "trace").read_text(), time.time() - time.monotonic()))


def _pair_calls(trace: str, wall_s: float) -> Iterator[Call]:
    """Yield the calls of a trace by CLOCK_MONOTONIC, in CLOCK_REALTIME, which is `wall_s` ahead."""
    begun: dict[str, float] = {}
    for thread, moment, border in FSYNC.findall(trace):
        if border == "(":
            begun[thread] = float(moment)
        elif thread in begun:
            yield Call(begun.pop(thread) + wall_s, float(moment) + wall_s)


def age(place: Bed, wanted: int) -> None:
    """Flush until the active file has at least `wanted` extents."""
    while extents(place.journald.active) < wanted:
        place.journald.age(10)


def every_second(seconds: float) -> Iterator[float]:
    """Yield the number of the second after each of so many seconds."""
    began_s = time.monotonic()
    for number in itertools.count(1):
        if number > seconds:
            return
        time.sleep(max(0.0, began_s + number - time.monotonic()))
        yield number
