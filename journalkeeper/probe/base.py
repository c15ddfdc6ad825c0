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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.probe import bed
from journalkeeper.report.distribution import Series

NAME = "journalkeeper-"
"""What probes make is called so, with our process id behind it."""

PATIENCE_S = 10.0
FLOOR_SAMPLES, FLOOR_RATE = 50, 200
SCRATCH = "/var/tmp"  # noqa: S108 - in it a directory of our own is made, for root only


def wall_ns() -> int:
    """What makes CLOCK_REALTIME of CLOCK_MONOTONIC now."""
    return time.time_ns() - time.monotonic_ns()


@dataclass
class Measurement:
    """What a probe has seen so far.

    `floor` is what the same calls take on a sink of ours; `columns` the words of its table; `faults` say
    why the figures cannot be trusted; `judged` which series the verdict is about. `wall_ns` added to the
    clock of the series is the time since 1970.
    """

    series: list[Series]
    floor: Series
    columns: tuple[str, ...] = ("name", "count", "p50", "p90", "p99", "p99.9", "worst")
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    wall_ns: int = field(default_factory=wall_ns)
    judged: Callable[[Series], bool] = lambda _: True


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


def floor(call: Callable[[], object]) -> Series:
    """What the instrument itself adds: the same calls on a sink."""
    series = Series("floor", planned=True)
    for _ in sample(series, schedule(FLOOR_RATE, FLOOR_SAMPLES), call):
        pass
    return series


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

    Raises: FileError, also for what goes wrong in it meanwhile.
    """
    try:
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
    if reason := bed.missing_for_journald():
        raise KeeperError(f"no private journald: {reason}")
    with scratch(directory or SCRATCH) as place, bed.PrivateJournald(place) as daemon:
        words = ("journalctl", f"--directory={daemon.journal}")
        yield Target(Path(f"/proc/{daemon.pid}/root/run/systemd/journal"), daemon.pid, words)
