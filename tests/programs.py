# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that say 20 lines a second on a standard output that is a stream of a private journald's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import NamedTuple, Self

from journalkeeper.health.buffering import bursts, judge_stream
from journalkeeper.health.evidence import Journal
from journalkeeper.observe.journal import read_journal
from journalkeeper.probe.bed import PrivateJournald
from tests.patience import PATIENCE_S

PYTHON = """
import random, sys, time
lengths = random.Random(sys.argv[1])
while True:
    print("line", "x" * lengths.randint(150, 250))
    time.sleep(0.05)
"""
SHELL = """
text=$(printf '%0200d' 1)
while :; do
    text=${text#????}
    [ ${#text} -gt 100 ] || text=$(printf '%0200d' 1)
    echo "line $text"
    sleep 0.05
done
"""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
WORDS = {
    "buffered": [sys.executable, "-c", PYTHON],
    "unbuffered": [sys.executable, "-u", "-c", PYTHON],
    "shell": ["sh", "-c", SHELL],
}


class Said(NamedTuple):
    """What the journal has of one program: its bursts, and whether it was found to be buffered."""

    bursts: int
    buffered: bool


class Talkers:
    """So many programs of each kind of WORDS, as units KIND-NUMBER.service; they end with the block."""

    def __init__(self, journald: PrivateJournald, kinds: Mapping[str, int]) -> None:
        self._journald = journald
        self._kinds = kinds
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for kind, number in self._kinds.items():
                for one in range(number):
                    channel = self._stream(f"{kind}-{one}")
                    with channel:
                        words = [*WORDS[kind], f"{kind}{one}"]
                        said = channel.fileno()
                        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, env=ENVIRONMENT)
                    stack.callback(child.wait)
                    stack.callback(child.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _stream(self, name: str) -> socket.socket:
        """A stream as PID 1 opens one for a unit. Source: systemd, src/core/exec-invoke.c, connect_logger_as()."""
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.connect(f"/proc/{self._journald.pid}/root/run/systemd/journal/stdout")
        channel.shutdown(socket.SHUT_RD)
        channel.sendall(f"{name}\n{name}.service\n30\n1\n0\n0\n0\n".encode())
        return channel

    def judged_when(
        self, enough: Callable[[dict[str, Said]], bool], *, patience_s: float = PATIENCE_S
    ) -> dict[str, Said]:
        """What is said of each program, once it is `enough`."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            time.sleep(1)  # it is never synced: the next line makes it ONLINE at once
            entries = read_journal(os.fspath(self._journald.directory), 200_000, ())
            assert isinstance(entries, Journal)
            found = {
                one.unit.removesuffix(".service"): Said(len(bursts(one.lines)) - 1, judge_stream(one) is not None)
                for one in entries.streams
            }
            if len(found) == sum(self._kinds.values()) and enough(found):
                return found
            assert time.monotonic() < deadline, found
