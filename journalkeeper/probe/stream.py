# SPDX-License-Identifier: LGPL-2.1-or-later
"""When a program's lines come to who follows them: by journald's stdout socket, and by a file.

Each line bears the time at which the program wrote it, so what it kept back is told apart from what
journald waits before it tells readers of new entries (250 ms).
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from journalkeeper.journald.journalctl import plain
from journalkeeper.probe.base import PATIENCE_S, SCRATCH, Lines, Measurement, Steps, Target, floor, scratch, target
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
COLUMNS: Final = ("program", "way", "rate", "gap", "lost", "p50", "p99", "worst")
FOLLOW: Final = ("--quiet", "--follow", "--no-tail", "--output=json", "--output-fields=MESSAGE,SYSLOG_IDENTIFIER")


class Line:
    """One program on one way: its lines as they were read."""

    def __init__(self, name: str, way: str) -> None:
        self.read = Series(f"{name}, {way}", {"program": name, "way": way})
        self.numbers: set[int] = set()

    def take(self, message: str, ended_ns: int) -> bool:
        """One line; False if it is not one of ours, or was read before."""
        stamp, number, *_ = [*message.split(" ", 2), "", ""]
        if not (stamp.isdecimal() and number.isdecimal()) or int(number) in self.numbers:
            return False
        self.numbers.add(int(number))
        self.read.add(int(stamp), ended_ns - int(stamp))
        return True

    def take_line(self, line: bytes, read_ns: int) -> None:
        """One line of a file."""
        self.take(line.decode(errors="replace"), read_ns)

    def reported(self, count: int) -> None:
        """Put into the row what is no percentile."""
        ends = [began + took for began, took in zip(self.read.began_ns, self.read.took_ns, strict=True)]
        span_s = (max(ends) - min(ends)) / 1e9 if ends else 0.0
        self.read.labels |= {
            "rate": f"{(len(ends) - 1) / span_s:.1f}/s" if span_s else "-",
            "gap": shown(largest_gap(ends)),
            "lost": str(count - len(self.numbers)),
        }


def measured(asked: Namespace) -> Steps:
    """Have the programs write to a journald and to files, and follow them."""
    with target(host=asked.host, directory=asked.directory) as where:
        yield from at(where, asked)


def at(where: Target, asked: Namespace) -> Steps:
    """The measurement at one journald."""
    count = max(1, round(asked.rate * asked.seconds))
    words = (str(count), str(1 / asked.rate), str(max(0, asked.size - STAMP_BYTES)))
    journals, files = ({name: Line(name, way) for name in PRODUCERS} for way in ("journald", "file"))
    own = {name: Line(name, "journald to reader").read for name in PRODUCERS}
    tags = {f"journalkeeper-{os.getpid()}-{name.replace(' ', '')}": name for name in PRODUCERS}
    every = [*journals.values(), *files.values()]

    def take_entry(line: bytes, read_ns: int) -> None:
        entry = plain(line)
        name, taken_ns = tags[entry["SYSLOG_IDENTIFIER"]], int(entry["__REALTIME_TIMESTAMP"]) * 1000
        if journals[name].take(entry["MESSAGE"], taken_ns):
            own[name].add(taken_ns, read_ns - taken_ns)

    with scratch(SCRATCH, "-stream") as place, ExitStack() as stack, selectors.DefaultSelector() as ready:
        with open(f"{place}/floor", "w+b", buffering=0) as file:
            sink = floor(lambda: (file.write(b"x"), file.seek(0), file.read(1), file.seek(0)))
        rows = [series for name in PRODUCERS for series in (journals[name].read, own[name], files[name].read)]
        found = Measurement(rows, sink, COLUMNS, wall_ns=0, judged=lambda series: "lost" in series.labels)
        yield found
        outputs = {name: stack.enter_context(open(f"{place}/{name}", "ab", buffering=0)) for name in PRODUCERS}
        for name in PRODUCERS:
            _follow(["tail", "--follow", "--lines=+1", f"{place}/{name}"], files[name].take_line, ready, stack)
        _follow([*where.journalctl, *FOLLOW, *(f"--identifier={tag}" for tag in tags)], take_entry, ready, stack)
        producers = [
            _started([*PRODUCERS[name], *words], stack, output)
            for tag, name in tags.items()
            for output in (_stream(where, tag, stack), outputs[name].fileno())
        ]
        until_s = math.inf
        try:
            while time.monotonic() < until_s and any(len(line.numbers) < count for line in every):
                for key, _ in ready.select(MOMENT_S):
                    lines, take = key.data
                    came, read_ns = lines.take(), time.time_ns()
                    for line in came:
                        take(line, read_ns)
                yield found
                if until_s == math.inf and all(producer.poll() is not None for producer in producers):
                    until_s = time.monotonic() + PATIENCE_S
        finally:
            for one in every:
                one.reported(count)


def _follow(
    words: list[str], take: Callable[[bytes, int], None], ready: selectors.BaseSelector, stack: ExitStack
) -> None:
    """Have each line that a command writes taken when it has come."""
    reader = _started(words, stack)
    lines = Lines(reader.stdout.fileno() if reader.stdout else -1)
    ready.register(lines.fd, selectors.EVENT_READ, (lines, take))


def _started(words: list[str], stack: ExitStack, output: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """A command that ends with the stack; one of Python's keeps lines back as it does by default."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(words, stdout=output, stdin=subprocess.DEVNULL, env=environment)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def _stream(where: Target, identifier: str, stack: ExitStack) -> int:
    """A program's stdout as journald takes it: sd_journal_stream_fd(3), at any journald's socket."""
    channel = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    channel.connect(os.fspath(where.sockets / "stdout"))
    channel.shutdown(socket.SHUT_RD)
    channel.sendall(f"{identifier}\n\n6\n0\n0\n0\n0\n".encode())
    return channel.fileno()
