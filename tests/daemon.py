# SPDX-License-Identifier: LGPL-2.1-or-later
"""journalkeeper as a process: its service, and its commands."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from journalkeeper.history.store import Record
from journalkeeper.model import Result
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.run import HistoryEntry
from tests.patience import PATIENCE_S, eventually

if TYPE_CHECKING:
    from tests.bus import PrivateBus

CHECKOUT = Path(__file__).parent.parent
WATCHDOG = "WATCHDOG=1"
PROGRAM = (sys.executable, "-m", "journalkeeper")


def environment(state: str | os.PathLike[str] | None = None, **more: str) -> dict[str, str]:
    """That of a process of the checkout's, with its record in `state`; nothing of a service that runs the tests."""
    ours = {name: value for name, value in os.environ.items() if name not in {"NOTIFY_SOCKET", "JOURNAL_STREAM"}}
    record = {} if state is None else {"STATE_DIRECTORY": os.fspath(state)}
    return {**ours, **record, "PYTHONPATH": f"{CHECKOUT}", **more}


def journalkeeper(
    *words: str | os.PathLike[str],
    state: str | os.PathLike[str] | None = None,
    inside: Sequence[str] = (),
    check: bool = True,
    user: str | None = None,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command; `inside` are words that run it elsewhere, as nsenter(1), `more` is for its environment."""
    done = subprocess.run(
        [*inside, *PROGRAM, *words],
        env=environment(state, **more),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        user=user,
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


def run_on_terminal(
    words: Sequence[str | Path], variables: Mapping[str, str], *, columns: int = 0, with_stderr: bool = True
) -> tuple[int, str]:
    """Run a command on a terminal of this width; 0 is an unknown one. Return its exit status and what is shown."""
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    stderr = slave if with_stderr else None
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=stderr, env=variables, start_new_session=True
    ) as child:
        os.close(slave)
        seen = b""
        with suppress(OSError):  # EIO: no process has the terminal open any more
            while chunk := os.read(master, 65536):
                seen += chunk
    os.close(master)
    return child.returncode, seen.decode()


def memory_kib(pid: int, field: str = "VmRSS") -> int:
    """The memory that a process has, by proc_pid_status(5)."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


class Daemon:
    """`journalkeeper daemon` on a directory and, with a `bus`, on that bus; ended by `stop`.

    `said` contains its messages to the service manager, except those that feed the watchdog: `alive_s` has their times.
    Without a directory the service takes the directories of its configuration. `wrapper` is a command that runs another
    one in its place, as nsenter(1) and `strace -D` do. `state` is the state directory as the service sees it, by
    default below `base`. It feeds its watchdog only with `watchdog_s`, at each half of that time.
    """

    def __init__(
        self,
        base: Path,
        directory: str | os.PathLike[str] | None,
        bus: PrivateBus | None = None,
        config: str = "",
        *,
        wait: bool = True,
        wrapper: Sequence[str] = (),
        state: Path | None = None,
        watchdog_s: float | None = None,
    ) -> None:
        base.mkdir(exist_ok=True)
        self.state = state or base / "state"
        self.config = base / "journalkeeper.conf"
        self.config.write_text(config)
        self.said: list[str] = []
        self.alive_s: list[float] = []
        token = os.urandom(4).hex()
        self._log = (base / f"log-{token}").open("wb")
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ear.bind(os.fspath(base / f"notify-{token}"))
        surroundings = environment(self.state, NOTIFY_SOCKET=f"{base}/notify-{token}")
        surroundings["DBUS_SYSTEM_BUS_ADDRESS"] = "" if bus is None else bus.address
        surroundings["PYTHONFAULTHANDLER"] = "1"  # the log shows where the service was if the kernel ended it
        if watchdog_s is not None:
            surroundings["WATCHDOG_USEC"] = f"{watchdog_s * 1e6:.0f}"
        words = [*PROGRAM, "daemon", "--config", f"{self.config}"]
        words += [] if directory is None else ["-D", os.fspath(directory)]
        self.process = subprocess.Popen([*wrapper, *words], env=surroundings, stderr=self._log, cwd=base)
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()
        if bus is not None and wait:
            assert eventually(lambda: bus.has("org.journalkeeper1")), self.log()

    def _hear(self) -> None:
        while message := self._ear.recv(65536):
            lines = message.decode().splitlines()
            if WATCHDOG in lines:
                self.alive_s.append(time.monotonic())
            self.said.extend(line for line in lines if line != WATCHDOG)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process id of the service, because each command of the wrapper executes the next."""
        return self.process.pid

    def log(self) -> str:
        """What it has logged."""
        return Path(os.fsdecode(self._log.name)).read_text(errors="replace")

    def logged(self, words: str) -> bool:
        """Whether that is in its log."""
        return words in self.log()

    @property
    def status(self) -> str:
        """The last STATUS= line."""
        return next((line[7:] for line in reversed(self.said) if line.startswith("STATUS=")), "")

    def file_count(self) -> int | None:
        """Return the number of journal files in the last STATUS= line that has one; None if no line has."""
        counts = re.findall(r"STATUS=.* ([\d,]+) journal file", "\n".join(self.said))
        return int(counts[-1].replace(",", "")) if counts else None

    def ready(self) -> Self:
        """Wait until it watches and has looked once."""
        assert eventually(lambda: "READY=1" in self.said and bool(self.status)), self.log()
        return self

    def reload(self, config: str) -> None:
        """Have it read another configuration."""
        self.config.write_text(config)
        self.process.send_signal(signal.SIGHUP)

    def cpu_s(self) -> float:
        """Return the processor time that it has used, to the nanosecond (schedstat)."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def wakes(self) -> dict[str, int]:
        """How often each of its threads has gone to sleep."""
        counts = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
            assert found is not None
            counts[task.name] = int(found[1])
        return counts

    def sleeps(self, seconds: float = 3) -> bool:
        """Whether no thread woke for so long."""
        before = self.wakes()
        time.sleep(seconds)
        return self.wakes() == before

    def history(self) -> list[HistoryEntry]:
        """Its record's outcomes, the oldest first."""
        while True:
            with suppress(KeeperError), Record(self.state, read_only=True) as record:  # a slow disk
                return record.list_entries()

    def done(self) -> set[str]:
        """The names of the files that it has worked on."""
        return {Path(one.outcome.path).name for one in self.history() if one.outcome.result is Result.DONE}

    def stop(self) -> int:
        """End it as systemd would; its exit status."""
        if self._log.closed:
            return self.process.returncode
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
        try:
            status = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._log.close()
        self._ear.shutdown(socket.SHUT_RDWR)
        self._hearing.join()
        self._ear.close()
        assert not self.logged("Traceback"), self.log()
        return status
