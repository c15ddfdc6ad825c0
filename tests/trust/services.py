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
from pathlib import Path

from journalkeeper.model import Outcome
from journalkeeper.service.daily_log import Say
from journalkeeper.service.log import Event

CHECKOUT = Path(__file__).parents[2]
ALIVE = "WATCHDOG=1"
WATCHDOG_S = 1.0


def listener(said: list[str]) -> Say:
    """Takes what is logged."""

    def say(priority: int, sentence: str, event: Event = Event.CONDITION, *, outcome: Outcome | None = None) -> None:
        del priority, event, outcome
        said.append(sentence)

    return say


class Quiet:
    """A running `journalkeeper daemon` without a bus.

    `lines` is what it logged, `said` what systemd would have heard, `silence_s` the longest time between two of
    its messages to the watchdog, which it sends every WATCHDOG_S / 2.
    """

    def __init__(self, top: Path, process: subprocess.Popen[str], ear: socket.socket) -> None:
        self.top = top
        self.lines: list[str] = []
        self.said: list[str] = []
        self.silence_s = 0.0
        self._process = process
        self._ear = ear
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._read, self._hear)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line.rstrip("\n"))

    def _hear(self) -> None:
        alive_s = None
        while message := self._ear.recv(65536).decode():
            lines = message.splitlines()
            self.said.extend(line for line in lines if line != ALIVE)
            if ALIVE in lines:
                before_s, alive_s = alive_s, time.monotonic()
                self.silence_s = max(self.silence_s, alive_s - (before_s or alive_s))

    def stop(self) -> int:
        """End it by SIGTERM; its exit status."""
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(60)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._ear.getsockname())
        for thread in self._threads:
            thread.join()
        return status

    @property
    def lives(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def cpu_s(self) -> float:
        """The processor time that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_kib(self) -> int:
        """The most memory that it has had."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self._process.pid}/status").read_text())
        assert found is not None
        return int(found[1])

    def files(self) -> int | None:
        """How many files it said it has seen at its last look."""
        counts = [re.match(r"STATUS=(\d+) files", line) for line in self.said]
        return next((int(count[1]) for count in reversed(counts) if count is not None), None)

    def eventually(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it comes to that, and the process lives."""
        end_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end_s or self._process.poll() is not None:
                return False
            time.sleep(0.1)
        return True


@contextmanager
def quiet(base: Path, top: Path, text: str = "") -> Iterator[Quiet]:
    """A service over `top` that has looked once; `text` is its configuration."""
    ear_path = base / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(os.fspath(ear_path))
        config = base / "journalkeeper.conf"
        config.write_text(text)
        environment = {
            **os.environ,
            "STATE_DIRECTORY": os.fspath(base / "state"),
            "PYTHONPATH": os.fspath(CHECKOUT),
            "NOTIFY_SOCKET": os.fspath(ear_path),
            "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={base}/none",
            "WATCHDOG_USEC": f"{WATCHDOG_S * 1e6:.0f}",
        }
        words = [sys.executable, "-m", "journalkeeper", "daemon", "-D", f"{top}", "--config", f"{config}"]
        with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            service = Quiet(top, process, ear)
            try:
                assert service.eventually(lambda: service.files() is not None, 120), service.lines
                yield service
            finally:
                assert service.stop() == 0, service.lines
