# SPDX-License-Identifier: LGPL-2.1-or-later
"""When a program's lines come to who follows them: by journald's stdout socket, and by a file.

Each line bears the time at which the program wrote it, so what it kept back is told apart from what
journald waits before it tells readers of new entries (250 ms).
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from journalkeeper.journald.journalctl import plain
from journalkeeper.probe.base import PATIENCE_S, SCRATCH, Measurement, Steps, Target, floor, scratch, target
from journalkeeper.report.distribution import Series, largest_gap, shown

SHELL: Final = """
pad=$(printf "%$3s" | tr ' ' x); n=0
while [ $n -lt "$1" ]; do printf '%s %06d %s\\n' "$(date +%s%N)" $n "$pad"; n=$((n + 1)); sleep "$2"; done
"""
PYTHON: Final = """
import sys, time
count, pause_s, pad = int(sys.argv[1]), float(sys.argv[2]), "x" * int(sys.argv[3])
began_s = time.monotonic()
for n in range(count):
    time.sleep(max(0, began_s + n * pause_s - time.monotonic()))
    print(time.time_ns(), f"{n:06d}", pad)
"""
PRODUCERS: Final = {
    "sh": ("sh", "-c", SHELL, "sh"),
    "python -u": (sys.executable, "-u", "-c", PYTHON),
    "python": (sys.executable, "-c", PYTHON),
}
STAMP_BYTES: Final = len("1795349999123456789 000000 \n")
MOMENT_S: Final = 0.1


class Follower:
    """A reader's output, and what its lines tell of each program."""

    def __init__(self, reader: subprocess.Popen[bytes]) -> None:
        self.fd = reader.stdout.fileno() if reader.stdout else -1
        self._rest = b""

    def lines(self) -> tuple[int, list[bytes]]:
        """The whole lines that have come, and when."""
        chunk = os.read(self.fd, 1 << 20)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return time.time_ns(), lines


class Line:
    """One program on one way: its lines as they were read."""

    def __init__(self, name: str, way: str) -> None:
        self.read = Series(f"{name}, {way}", {"program": name, "way": way})
        self.numbers: set[int] = set()

    def take(self, message: str, ended_ns: int) -> int | None:
        """One line; when it was written. None if it is not one of ours, or was read before."""
        stamp, number, *_ = [*message.split(" ", 2), "", ""]
        if not (stamp.isdecimal() and number.isdecimal()) or int(number) in self.numbers:
            return None
        self.numbers.add(int(number))
        self.read.add(int(stamp), ended_ns - int(stamp))
        return int(stamp)

    def reported(self, count: int) -> None:
        """Put into the row what is no percentile."""
        ends = [began + took for began, took in zip(self.read.began_ns, self.read.took_ns, strict=True)]
        span_s = (max(ends) - min(ends)) / 1e9 if ends else 0.0
        self.read.labels |= {
            "rate": f"{(len(ends) - 1) / span_s:.1f}/s" if span_s else "-",
            "gap": shown(largest_gap(ends)),
            "lost": str(count - len(self.numbers)),
        }


@contextmanager
def measured(asked: Namespace) -> Iterator[Measurement]:
    """Have the programs write, and follow them."""
    with target(host=asked.host, directory=asked.directory) as where, ExitStack() as stack:
        directory = stack.enter_context(scratch(SCRATCH, "-stream"))
        with open(f"{directory}/floor", "w+b", buffering=0) as file:
            sink = floor(lambda: (file.write(b"x"), file.seek(0), file.read(1), file.seek(0)))
        columns = ("program", "way", "rate", "gap", "lost", "p50", "p99", "worst")
        found = Measurement([], sink, columns)
        found.judged = lambda series: "lost" in series.labels
        found.steps = steps(where, asked, found, directory, stack)
        yield found


def steps(where: Target, asked: Namespace, found: Measurement, place: str, stack: ExitStack) -> Steps:
    count = max(1, round(asked.rate * asked.seconds))
    words = (str(count), str(1 / asked.rate), str(max(0, asked.size - STAMP_BYTES)))
    journals, files = ({name: Line(name, way) for name in PRODUCERS} for way in ("journald", "file"))
    ours = {f"journalkeeper-{os.getpid()}-{name.replace(' ', '')}": name for name in PRODUCERS}
    own = {name: Line(name, "journald to reader").read for name in PRODUCERS}
    found.series += [series for name in PRODUCERS for series in (journals[name].read, own[name], files[name].read)]
    followers, files_of = {}, {}
    for name in PRODUCERS:
        files_of[name] = os.open(f"{place}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        stack.callback(os.close, files_of[name])
        followers[Follower(_started(["tail", "--follow", "--lines=+1", f"{place}/{name}"], stack))] = files[name]
    tags = [f"--identifier={tag}" for tag in ours]
    json_words = ["--output=json", "--output-fields=MESSAGE,SYSLOG_IDENTIFIER"]
    journal = Follower(_started([*where.journalctl, "--quiet", "--follow", "--no-tail", *json_words, *tags], stack))
    producers = [
        _started([*argv, *words], stack, output)
        for (name, argv), tag in zip(PRODUCERS.items(), ours, strict=True)
        for output in (_stream(where, tag, stack), files_of[name])
    ]
    ready = selectors.DefaultSelector()
    for follower in (journal, *followers):
        ready.register(follower.fd, selectors.EVENT_READ, follower)
    until_s: float | None = None
    try:
        while until_s is None or time.monotonic() < until_s:
            for key, _ in ready.select(MOMENT_S):
                read_ns, lines = key.data.lines()
                for line in lines if key.data is not journal else ():
                    followers[key.data].take(line.decode(errors="replace"), read_ns)
                for entry in map(plain, lines if key.data is journal else ()):
                    name, taken_ns = ours[entry["SYSLOG_IDENTIFIER"]], int(entry["__REALTIME_TIMESTAMP"]) * 1000
                    if journals[name].take(entry["MESSAGE"], taken_ns) is not None:
                        own[name].add(taken_ns, read_ns - taken_ns)
            yield
            every = [*journals.values(), *files.values()]
            if until_s is None and all(producer.poll() is not None for producer in producers):
                until_s = time.monotonic() + PATIENCE_S
            if all(len(line.numbers) == count for line in every):
                break
    finally:
        ready.close()
        for line in (*journals.values(), *files.values()):
            line.reported(count)


def _started(words: list[str], stack: ExitStack, output: object = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """A command that ends with the stack; one of Python's keeps lines back as it does by default."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(words, stdout=output, stdin=subprocess.DEVNULL, env=environment)  # type: ignore[call-overload] # a file
    stack.enter_context(process)
    stack.callback(process.kill)
    return process  # type: ignore[no-any-return] # as above


def _stream(where: Target, identifier: str, stack: ExitStack) -> socket.socket:
    """A program's stdout as journald takes it: sd_journal_stream_fd(3), at any journald's socket."""
    channel = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    channel.connect(os.fspath(where.sockets / "stdout"))
    channel.shutdown(socket.SHUT_RD)
    channel.sendall(f"{identifier}\n\n6\n0\n0\n0\n0\n".encode())
    return channel
