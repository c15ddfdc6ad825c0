# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the probes share: samples on a schedule, what undoes them, and the journald that they ask.

Whatever would outlive us is undone by a child that waits for our end: the same child, whether the
block ends, raises, or the process is killed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import psutil

from journalkeeper.execute.whole_file import require_root_only
from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.probe import bed
from journalkeeper.report.distribution import Limit, Series, shown, verdict

NAME = "journalkeeper-"
"""What probes make is called so, with our process id behind it."""

PATIENCE_S = 10.0
SCRATCH = "/var/tmp"  # noqa: S108 - in it a directory of our own is made, for root only


STEP_NS, SLEW = 10_000_000, 0.001
"""The clock was set where it moved by more than STEP_NS, and more than adjtime(3) moves it in that time."""


def wall_ns() -> int:
    """Return what must be added to CLOCK_MONOTONIC now to get CLOCK_REALTIME."""
    return time.time_ns() - time.monotonic_ns()


class WallClock(NamedTuple):
    """CLOCK_REALTIME beside CLOCK_BOOTTIME, which nobody can set and which goes on in a suspended machine."""

    real_ns: int
    boot_ns: int

    @classmethod
    def read(cls) -> WallClock:
        """Return what both clocks show now."""
        return cls(time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def step_ns(self, later: WallClock) -> int:
        """Return by how much the wall clock was set between two readings; 0 if it was not, or only slewed."""
        passed_ns = later.boot_ns - self.boot_ns
        moved_ns = later.real_ns - self.real_ns - passed_ns
        return moved_ns if abs(moved_ns) > STEP_NS + SLEW * passed_ns else 0


@dataclass
class Measurement:
    """What a probe has seen so far.

    `columns` are the words of its table. `faults` say why the figures cannot be trusted, `losses` which
    messages did not arrive: both fail the measurement. `judged` selects the series of the usual verdict,
    `own_verdict` replaces it. `wall_ns` added to the clock of the series is the time since 1970.
    """

    series: list[Series]
    columns: tuple[str, ...] = ("name", "count", "p50", "p90", "p99", "p99.9", "worst")
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    wall_ns: int = field(default_factory=wall_ns)
    began: WallClock = field(default_factory=WallClock.read)
    judged: Callable[[Series], bool] = lambda _: True
    own_verdict: Callable[[Limit], str] | None = None

    def verdict(self, limit: Limit) -> str:
        """Return the losses, and a sentence about the longest wait."""
        said = self.own_verdict or (lambda limit: verdict(list(filter(self.judged, self.series)), limit))
        return " ".join([*self.losses, said(limit)])

    def note_clock_step(self, now: WallClock | None = None) -> None:
        """Add a note if the wall clock was set since the measurement began."""
        if step_ns := self.began.step_ns(now or WallClock.read()):
            way = "forward" if step_ns > 0 else "back"
            self.notes.append(f"The clock was set {way} by {shown(abs(step_ns))} meanwhile; no wait is affected.")


class ProcessorTime:
    """How much processor time processes take while something is measured."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._first_and_last_s: dict[int, tuple[float, float]] = {}

    def look(self, pid: int) -> None:
        """Read what a process has used so far, unless it has ended."""
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return
        used_s = times.user + times.system
        first_s, _ = self._first_and_last_s.get(pid, (used_s, used_s))
        self._first_and_last_s[pid] = (first_s, used_s)

    def note(self, journald: int) -> str:
        """Return the shares of journald and of the other processes, from the first look at each to this one."""
        for pid in list(self._first_and_last_s):
            self.look(pid)
        length_s = time.monotonic() - self._began_s
        shares = {pid: (last - first) / length_s for pid, (first, last) in self._first_and_last_s.items()}
        own = shares.pop(journald, 0.0)
        others = sum(shares.values())
        return f"Processor time, of one processor: journald {own:.1%}, its loggers {others:.1%}."


Steps: TypeAlias = Generator[Measurement, None, None]
"""The measurement, a sample or a moment later each time."""


def schedule(rate: float, count: int) -> Iterator[int]:
    """The planned moments (CLOCK_MONOTONIC), each as soon as it has come; who is late is not spared one."""
    began_ns = time.monotonic_ns()
    for number in range(count):
        planned_ns = began_ns + int(number * 1e9 / rate)
        while (left_ns := planned_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)
        yield planned_ns


def sample(series: Series, planned_ns: Iterable[int], call: Callable[[], object]) -> Iterator[None]:
    """Time one call for each planned moment."""
    for planned in planned_ns:
        began_ns = time.monotonic_ns()
        call()
        series.add(began_ns, time.monotonic_ns() - began_ns, planned)
        yield


class Lines:
    """The whole lines that have come from a descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ended = False
        self._rest = b""

    def take(self) -> list[bytes]:
        """Those since the last time. Raises: OSError; BlockingIOError."""
        chunk = os.read(self.fd, 1 << 20)
        self.ended = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return lines


@contextmanager
def at_the_end(*argv: str) -> Iterator[int]:
    """Have a child undo something when the block ends or this process does, however that is.

    The command prepares, says "ready", and undoes when its stdin ends. The child's process id is given.

    Raises: KeeperError with what it said if it does not get ready.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as child:
        if next(iter(child.stdout or ()), "") != "ready\n":
            raise KeeperError("".join(child.stderr or ()).strip() or f"{argv[0]} ended before it was ready")
        yield child.pid


def leftovers(directory: str) -> list[str]:
    """What runs of this program that are no more have left in a directory."""
    found = [(re.fullmatch(rf"\.{NAME}(\d+)\D*", name), name) for name in os.listdir(directory)]
    return [f"{directory}/{name}" for match, name in found if match and not os.path.exists(f"/proc/{match[1]}")]


@contextmanager
def scratch(directory: str, name: str = "") -> Iterator[str]:
    """A directory of our own in `directory`, gone at the end, as is what dead runs left there.

    Raises: FileError, also for what goes wrong in it meanwhile; KeeperError for root below a directory of a user's.
    """
    try:
        require_root_only(directory)
        for path in leftovers(directory):
            shutil.rmtree(path)
        path = f"{directory}/.{NAME}{os.getpid()}{name}"
        with at_the_end("sh", "-c", 'echo ready; read -r _; rm -rf "$1"', "sh", path):
            os.mkdir(path, 0o700)
            yield path
    except OSError as error:
        raise FileError.wrap("measure here", os.fsdecode(error.filename or directory), error) from error


class Target(NamedTuple):
    """The journald that is asked: where its sockets are, its process, and the words that read its journal."""

    sockets: Path
    pid: int
    journalctl: tuple[str, ...]


def host_journald() -> int:
    """The process id of the host's main journald.

    Raises: KeeperError if there is none.
    """
    ours = os.readlink("/proc/self/ns/pid")  # and not a container's
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        try:
            if Path(f"/proc/{pid}/comm").read_text() != "systemd-journal\n":
                continue
            namespaced = "@" in Path(f"/proc/{pid}/cgroup").read_text()
            if not namespaced and os.readlink(f"/proc/{pid}/ns/pid") == ours:
                return pid
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise KeeperError("no systemd-journald runs here; `journalkeeper probe syslog` starts one of its own")


@contextmanager
def target(*, host: bool, directory: str | None) -> Iterator[Target]:
    """The host's journald, or one of our own with its files in `directory`, which is gone at the end.

    Raises: KeeperError where there is none, or none can be started.
    """
    if host:
        if not os.path.exists("/dev/log"):
            raise KeeperError("/dev/log: no such socket; without --host a private journald is asked")
        yield Target(Path("/run/systemd/journal"), host_journald(), ("journalctl",))
        return
    with scratch(directory or SCRATCH) as place, ExitStack() as stack:
        try:
            daemon = stack.enter_context(bed.PrivateJournald(place))
        except RuntimeError as error:
            raise KeeperError(str(error)) from error
        words = ("journalctl", f"--directory={daemon.journal}")
        yield Target(Path(f"/proc/{daemon.pid}/root/run/systemd/journal"), daemon.pid, words)
