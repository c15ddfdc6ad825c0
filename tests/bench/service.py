# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the benches of the service share: a journal under load, and `journalkeeper daemon` beside it.

The one rule: the service runs as on a host: in journald's own mount namespace, with its
record on the journal's volume, its lines in the journal, and its unit's capabilities;
nothing of it is replaced.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from journalkeeper.lab import traffic
from journalkeeper.lab.bed import Bed
from tests.bench.figures import REPOSITORY, engine

INSIDE = "/var/log/journal"
STATE = "state"
DATACOW = "[Nocow]\nNocow=no\n"
"""The defaults, on hosts whose files stay datacow."""

WATCHDOG_S = 180
"""WatchdogSec= of units/journalkeeper.service."""

PATIENCE_S = 60.0
SECTOR_BYTES = 512
FIELDS = ("MESSAGE", "LAB_USER", "LAB_PEER", "LAB_SESSION")
"""With the time two that are new in every message, as of most programs: six would fill the hash
tables of 128 MiB, at which journald rotates, in five minutes of 100 messages a second."""


def confined() -> list[str]:
    """The command that runs another one with the unit's capabilities: who may not search trees keeps no extents."""
    unit = (REPOSITORY / "units/journalkeeper.service").read_text()
    (kept,) = re.findall(r"^CapabilityBoundingSet=(.+)$", unit, re.MULTILINE)
    allowed = "".join(f",+{name.removeprefix('CAP_').lower()}" for name in kept.split())
    return ["setpriv", f"--bounding-set=-all{allowed}"]


def add_config(words: argparse.ArgumentParser) -> None:
    """The option with which a bench takes lines for the service's configuration."""

    def lines(text: str) -> str:
        return text.replace("\\n", "\n")

    words.add_argument("--config", type=lines, default="", help="lines of journalkeeper.conf beside Nocow=no")


class Service:
    """`journalkeeper daemon` beside the journald of `place`; `wrapper` is a command to run it under, as strace.

    `alive` is how often it has fed its watchdog.
    """

    def __init__(self, place: Bed, config: str = DATACOW, *, wrapper: tuple[str, ...] = ()) -> None:
        base = place.volume.base
        (base / "journalkeeper.conf").write_text(config)
        self.alive = 0
        self._ready = threading.Event()
        self._wrapped = bool(wrapper)
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ear.bind(os.fspath(base / "notify"))
        self._output = (base / "service.log").open("wb")
        status = os.fstat(self._output.fileno())
        environment = {
            **os.environ,
            "PYTHONPATH": os.fspath(REPOSITORY),
            "STATE_DIRECTORY": f"{INSIDE}/{STATE}",
            "NOTIFY_SOCKET": os.fspath(base / "notify"),
            "WATCHDOG_USEC": str(WATCHDOG_S * 1_000_000),
            "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}",  # its stderr is a stream to journald, as in a unit
        }
        words = engine("daemon", "-D", INSIDE, "--config", os.fspath(base / "journalkeeper.conf"))
        self._process = subprocess.Popen(
            [*place.journald.inside, *wrapper, *confined(), *words], env=environment, stderr=self._output
        )
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        while message := self._ear.recv(65536):
            lines = message.decode().splitlines()
            self.alive += lines.count("WATCHDOG=1")
            if any(line.startswith("STATUS=") for line in lines):
                self._ready.set()

    @property
    def pid(self) -> int:
        """The process of the service itself, without what it runs under."""
        pid = self._process.pid
        if not self._wrapped:
            return pid
        (inner,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(inner)

    def looked(self) -> Self:
        """Wait until it watches and has looked at everything once.

        Raises: RuntimeError with what it said if it does not.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not self._ready.wait(0.1):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service did not come up: {self.said()}")
        return self

    def said(self) -> str:
        """What it wrote to stderr, which is not what it logs."""
        return Path(self._output.name).read_text()

    def __enter__(self) -> Self:
        return self.looked()

    def __exit__(self, *_: object) -> None:
        """End it as its unit does; kill it if that takes longer than a unit would wait."""
        try:
            os.kill(self.pid, 15)
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ear.shutdown(socket.SHUT_RDWR)
        self._hearing.join()
        self._ear.close()
        self._output.close()


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


def settled(service: Service, quiet_s: float = 5.0) -> None:
    """Wait until the service has slept for so long.

    Raises: RuntimeError if it does not come to rest.
    """
    deadline = time.monotonic() + 10 * PATIENCE_S
    while time.monotonic() < deadline:
        before = use(service.pid).wakes
        time.sleep(quiet_s)
        if use(service.pid).wakes == before:
            return
    raise RuntimeError(f"the service does not come to rest: {service.said()}")


class Load:
    """Logs `rate` messages a second while it is entered, each in its time: who is held up catches up.

    Each bears the moment for which it was planned (LAB_PLANNED, microseconds of CLOCK_REALTIME).
    `sent` and `sent_bytes` count what was logged.
    """

    def __init__(self, place: Bed, rate: float) -> None:
        self._journald = place.journald
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self.sent = self.sent_bytes = 0

    def _go_on(self) -> None:
        wall_s, clock_s = time.time(), time.monotonic()
        for number, fields in enumerate(traffic.messages(seed=2)):
            planned_s = number / self._rate
            if self._stop.wait(max(0.0, clock_s + planned_s - time.monotonic())):
                return
            body = {name: fields[name] for name in FIELDS}
            body["LAB_PLANNED"] = str(round((wall_s + planned_s) * 1e6))
            self.sent_bytes += sum(len(name) + len(value) for name, value in body.items())
            self._journald.log(body.pop("MESSAGE"), **body)
            self.sent += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Call(NamedTuple):
    """One system call that strace saw: when it began and ended, by CLOCK_REALTIME, its line, and whose it was."""

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


STRACE = ("strace", "-f", "-ttt", "-T", "-y")
OUR_CALLS = (*STRACE, "--seccomp-bpf", "-e", "trace=ioctl,sync_file_range,fsync,fdatasync")
PIECES = r"DEFRAG|sync_file_range\(.*SYNC_FILE_RANGE_WRITE|fsync\(.*\.journal|fdatasync\(.*\.journal"
"""The calls that write an active or archived file; not the one that waits for what journald has begun."""


@contextmanager
def traced(pid: int, calls_wanted: str, output: Path) -> Iterator[None]:
    """Have strace follow a process that runs already.

    It says a line for each thread of it that comes and goes: to a file, for a full pipe would stop them both.
    """
    words = [*STRACE, "-e", f"trace={calls_wanted}", "-o", os.fspath(output), "-p", str(pid)]
    said = output.with_suffix(".said")
    with open(said, "wb") as file, subprocess.Popen(words, stderr=file) as follower:
        try:
            while "attached" not in said.read_text():
                if follower.poll() is not None:
                    raise RuntimeError(f"strace: {said.read_text().strip()}")
                time.sleep(0.01)
            yield
        finally:
            follower.terminate()


def written_bytes(device: str) -> int:
    """What was written to a block device since it was set up (Documentation/block/stat.rst)."""
    return int(Path("/sys/class/block", Path(device).name, "stat").read_text().split()[6]) * SECTOR_BYTES


def age(place: Bed, wanted: int) -> None:
    """Let the active file have at least so many extents, by real flushes."""
    while extents(place.journald.active) < wanted:
        place.journald.age(10)


def extents(path: Path) -> int:
    """filefrag(8)'s count without a sync, which would be a flush that journald did not choose."""
    done = subprocess.run(["filefrag", path], capture_output=True, text=True, check=True)
    return int(done.stdout.rpartition(":")[2].split()[0])


def every_second(seconds: float) -> Iterator[float]:
    """The seconds that have passed, each second."""
    began_s = time.monotonic()
    for number in itertools.count(1):
        if number > seconds:
            return
        time.sleep(max(0.0, began_s + number - time.monotonic()))
        yield number
