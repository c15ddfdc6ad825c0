# SPDX-License-Identifier: LGPL-2.1-or-later
"""A service as a process of its own, and what it costs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from journalkeeper.history.record import Record
from journalkeeper.model import Outcome
from journalkeeper.model.recorded import Entry
from journalkeeper.probe.bed import Bed
from journalkeeper.service.log import Event, Say
from tests.bus import PrivateBus
from tests.daemon import Daemon, environment, memory_kib
from tests.patience import PATIENCE_S

CHECKOUT = Path(__file__).parents[2]
ALIVE = "WATCHDOG=1"
WATCHDOG_S = 1.0
VERDICT = re.compile("(OK|Act|Unknown): ")


def listener(said: list[str]) -> Say:
    """Takes what is logged."""

    def say(priority: int, sentence: str, event: Event = Event.CONDITION, *, outcome: Outcome | None = None) -> None:
        del priority, event, outcome
        said.append(sentence)

    return say


class Quiet:
    """A running `journalkeeper daemon` without a bus.

    `said` is what systemd would have heard, `alive_s` when it fed its watchdog (by time.monotonic); its record is
    below `state`. `traced`: the process that was started only watches it, as strace(1) does.
    """

    def __init__(
        self, top: Path, process: subprocess.Popen[bytes], ear: socket.socket, state: Path, log: Path, *, traced: bool
    ) -> None:
        self.top = top
        self.state = state
        self.said: list[str] = []
        self.alive_s: list[float] = []
        self._process = process
        self._ear = ear
        self._log = log
        self._traced = traced
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    @property
    def lines(self) -> list[str]:
        """What it wrote to stderr: its log, unless that goes to journald."""
        return self._log.read_text(errors="replace").splitlines()

    def _hear(self) -> None:
        while message := self._ear.recv(65536).decode():
            lines = message.splitlines()
            if ALIVE in lines:
                self.alive_s.append(time.monotonic())
            self.said.extend(line for line in lines if line != ALIVE)

    @property
    def silence_s(self) -> float:
        """The longest time between two of its messages to the watchdog."""
        return max((after - before for before, after in pairwise(self.alive_s)), default=0.0)

    @property
    def pid(self) -> int:
        """Its process, without what it runs under."""
        pid = self._process.pid
        if not self._traced:
            return pid
        (inner,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(inner)

    @property
    def status(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send it one, if it runs."""
        if self.lives:
            os.kill(self.pid, number)

    def stop(self, timeout_s: float = 60) -> int:
        """End it by SIGTERM, if it runs; its exit status.

        Raises: subprocess.TimeoutExpired.
        """
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def end(self) -> int:
        """The same, and kill it if it does not end: nobody waits for it for ever."""
        try:
            return self.stop()
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            raise

    def wait(self, timeout_s: float = 60) -> int:
        """Until it has ended; its exit status. Raises: subprocess.TimeoutExpired."""
        status = self._process.wait(timeout_s)
        if self._hearing.is_alive():
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", self._ear.getsockname())
            self._hearing.join()
        return status

    @property
    def lives(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def cpu_s(self) -> float:
        """The processor time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_kib(self) -> int:
        """The most memory that it has had."""
        return memory_kib(self.pid, "VmHWM")

    def rss_kib(self) -> int:
        """The memory that it has now."""
        return memory_kib(self.pid)

    def descriptors(self) -> int:
        """How many it has open now."""
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def threads(self) -> int:
        """How many it has now."""
        return len(os.listdir(f"/proc/{self._process.pid}/task"))

    def history(self) -> list[Entry]:
        """Its record's outcomes, the oldest first."""
        with Record(self.state, read_only=True) as record:
            return record.history()

    def looked(self) -> bool:
        """Whether it has looked once, and has said what there is or what it waits for."""
        return any(line.startswith("STATUS=") for line in self.said)

    @property
    def headline(self) -> str:
        """The last verdict with its sentence; "" before the first one."""
        lines = (line.removeprefix("STATUS=") for line in reversed(self.said))
        return next((line for line in lines if VERDICT.match(line)), "")

    @property
    def verdict(self) -> str:
        """The last verdict in one word: OK, Act or Unknown."""
        return self.headline.partition(":")[0]

    def files(self) -> int | None:
        """How many files it said it has seen at its last look."""
        counts = [re.search(r"STATUS=.* ([\d,]+) journal file", line) for line in self.said]
        return next((int(count[1].replace(",", "")) for count in reversed(counts) if count is not None), None)

    def eventually(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
        """Whether it comes to that, and the process lives."""
        end_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end_s or self._process.poll() is not None:
                return False
            time.sleep(0.1)
        return True


@contextmanager
def quiet(
    base: Path,
    top: Path,
    *,
    config: str = "",
    enter: tuple[str, ...] = (),
    state: Path | None = None,
    watchdog_s: float = WATCHDOG_S,
    may_fail: bool = False,
    bus: str | None = None,
    traced: bool = False,
    to_journald: bool = False,
) -> Iterator[Quiet]:
    """A service over `top` that has looked once; `enter` are words that run a command elsewhere, as nsenter(1).

    Its state directory is `base`/state, unless another is given; there is no bus, unless by its address ("": that of
    where it runs). Its log is
    `Quiet.lines`, or goes `to_journald` as a unit's. It is `traced` if `enter` has strace(1) in it.

    Raises: AssertionError if it ends before that, or not with 0 unless it `may_fail`.
    """
    own = os.urandom(4).hex()
    ear_path, log = base / f"notify-{own}", base / f"log-{own}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear, log.open("wb") as output:
        ear.bind(os.fspath(ear_path))
        written = base / "journalkeeper.conf"
        written.write_text(config)
        surroundings = environment(
            state or base / "state",
            NOTIFY_SOCKET=os.fspath(ear_path),
            DBUS_SYSTEM_BUS_ADDRESS=f"unix:path={base}/none" if bus is None else bus,
            WATCHDOG_USEC=f"{watchdog_s * 1e6:.0f}",
            PYTHONFAULTHANDLER="1",  # where it was when the kernel ended it
        )
        if to_journald:
            stream = os.fstat(output.fileno())
            surroundings["JOURNAL_STREAM"] = f"{stream.st_dev}:{stream.st_ino}"
        words = [*enter, sys.executable, "-m", "journalkeeper", "daemon", "-D", f"{top}", "--config", f"{written}"]
        with subprocess.Popen(words, env=surroundings, stderr=output) as process:
            service = Quiet(top, process, ear, state or base / "state", log, traced=traced)
            try:
                assert service.eventually(service.looked), service.lines
                yield service
            finally:
                assert service.end() == 0 or may_fail, service.lines


@contextmanager
def on_a_bus(
    place: Bed, directory: Path | None, config: str, *, module: str = "journalkeeper"
) -> Iterator[tuple[PrivateBus, Daemon]]:
    """A private bus with a polkitd, and on it a service in the mounts of the journald of `place`."""
    with PrivateBus() as bus:
        bus.start_polkit()
        base = place.volume.base / "service"
        with Daemon(base, directory, bus, config, wrapper=place.journald.inside, module=module) as daemon:
            yield bus, daemon
