# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes of a guest's units that stop before they begin, so that something can be done to them from outside.

Their confinement is on by then: it is the unit's own, and a shell of it stops itself before it becomes our program.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

from tests.guest.host import Guest

DROP_IN = "gate.conf"


class Gate:
    """While it lasts each start of `commands`, {unit: (directive, words after journalkeeper)}, waits for `opened`.

    `opened` takes the process id here and the unit, and is called in a thread of the gate's.
    """

    def __init__(
        self, guest: Guest, commands: Mapping[str, tuple[str, str]], opened: Callable[[int, str], object]
    ) -> None:
        self._guest = guest
        self._commands = commands
        self._opened = opened
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._seen: set[int] = set()

    def __enter__(self) -> Self:
        for unit, (directive, words) in self._commands.items():
            stopped = f"/bin/sh -c 'kill -STOP $$$$; exec /usr/bin/journalkeeper {words}'"
            drop_in = self._drop_in(unit)
            drop_in.parent.mkdir(parents=True, exist_ok=True)
            drop_in.write_text(f"[Service]\n{directive}=\n{directive}={stopped}\nTimeoutStopSec=5min\n")
        self._guest.run("systemctl", "daemon-reload")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for unit in self._commands:
            self._drop_in(unit).unlink()
        self._guest.run("systemctl", "daemon-reload")

    def _drop_in(self, unit: str) -> Path:
        return self._guest.root / f"etc/systemd/system/{unit}.d" / DROP_IN

    def _watch(self) -> None:
        while not self._end.wait(0.05):
            for pid, unit in self._stopped():
                self._seen.add(pid)
                self._opened(pid, unit)
                os.kill(pid, signal.SIGCONT)

    def _stopped(self) -> Iterator[tuple[int, str]]:
        """Processes in the guest that wait for us, and whose they are."""
        ours = os.readlink(f"/proc/{self._guest.leader}/ns/pid")
        for path in Path("/proc").glob("[0-9]*"):
            pid = int(path.name)
            try:
                if pid in self._seen or os.readlink(path / "ns/pid") != ours:
                    continue
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            for unit, (_, command) in self._commands.items():
                if state == "T" and re.search(rf"kill -STOP .* {re.escape(command)}$", words):
                    yield pid, unit
