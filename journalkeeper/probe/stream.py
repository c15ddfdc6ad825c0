# SPDX-License-Identifier: LGPL-2.1-or-later
"""The delay of a program's lines on the way to a reader: through journald's stdout socket, and through a file.

Each line of our own programs contains the time at which the program wrote it. So the delay by the program's buffer can
be separated from journald's delay before it notifies readers. For a user's command, only the number of lines per read
is known, because journald gives all lines of one read the same time. All times are CLOCK_MONOTONIC, which cannot be
set.
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

from journalkeeper.journald.journalctl import parse_text_fields
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.escape import shown as escaped
from journalkeeper.model.units import counted, format_size
from journalkeeper.probe.base import PATIENCE_S, SCRATCH, Lines, Measurement, Steps, Target, scratch, target
from journalkeeper.report.distribution import Limit, Series, largest_gap
from journalkeeper.report.distribution import format_wait as span

PYTHON: Final = """
import sys, time
count, pause_s, pad = int(sys.argv[1]), float(sys.argv[2]), "x" * int(sys.argv[3])
began_s = time.monotonic()
for n in range(count):
    time.sleep(max(0, began_s + n * pause_s - time.monotonic()))
    print(time.monotonic_ns(), f"{n:06d}", pad)
"""
PRODUCERS: Final = {"python -u": (sys.executable, "-u", "-c", PYTHON), "python": (sys.executable, "-c", PYTHON)}
MOMENT_S: Final = 0.1
QUIET_S: Final = 1.0
"""A command that has ended is read until no line has come for this long."""

BURST_GAP_NS: Final = 10_000_000
COLUMNS: Final = ("program", "way", "rate", "gap", "lost", "p50", "p99", "worst")
FOLLOW: Final = ("--quiet", "--follow", "--no-tail", "--output=json", "--output-fields=MESSAGE,SYSLOG_IDENTIFIER")
READY: Final = "ready"
REMEDY: Final = "have it write each line at once (python -u, stdbuf -oL)"


class Way:
    """The lines of one program on one way to a reader."""

    def __init__(self, name: str, way: str) -> None:
        self.read = Series(f"{name}, {way}", {"program": name, "way": way})
        self.numbers: set[int] = set()

    def take(self, message: str, ended_ns: int) -> None:
        """Add one line, unless it was not written by our program or was already read."""
        stamp, number, *_ = [*message.split(" ", 2), "", ""]
        if stamp.isdecimal() and number.isdecimal() and int(number) not in self.numbers:
            self.numbers.add(int(number))
            self.read.add(int(stamp), ended_ns - int(stamp))

    def take_line(self, line: bytes, read_ns: int) -> None:
        """Add one line of a file."""
        self.take(line.decode(errors="replace"), read_ns)


class Program:
    """A program with a journald's stdout socket as its stdout: its lines as journald and as a reader received them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tag = f"journalkeeper-{os.getpid()}-{name.replace(' ', '')}"
        self.journald = Way(name, "journald")
        self.file = Way(name, "file")
        self.reader = Series(f"{name}, journald to reader", {"program": name, "way": "journald to reader"})
        self.taken: list[tuple[int, int]] = []
        """For each line, the time at which journald received it, and its size in bytes."""

    def take_entry(self, message: str, taken_ns: int, read_ns: int) -> None:
        """Add one line that a reader got from journald."""
        self.journald.take(message, taken_ns)
        self.reader.add(taken_ns, read_ns - taken_ns)
        self.taken.append((taken_ns, len(message.encode()) + 1))

    def find_largest_burst(self) -> list[int]:
        """Return the sizes of the lines in the burst with the most lines; journald reads a burst in several pieces."""
        best: list[int] = []
        sizes: list[int] = []
        before_ns = 0
        for taken_ns, size in sorted(self.taken):
            sizes = [*sizes, size] if taken_ns - before_ns < BURST_GAP_NS else [size]
            best = max(best, sizes, key=len)
            before_ns = taken_ns
        return best

    def describe_buffering(self, limit: Limit) -> str:
        """Return a sentence if the program's buffer delayed lines for longer than `limit`; else ""."""
        if not self.taken:
            return f"{self.name} wrote no line, or buffers its lines: {REMEDY}."
        stamped = self.journald.read.took_ns
        late_ns = max(stamped) if stamped else largest_gap(taken_ns for taken_ns, _ in self.taken)
        if late_ns <= limit.ns:
            return ""
        burst = self.find_largest_burst()
        at_once = f"it writes up to {counted(len(burst), 'line')} ({format_size(sum(burst))}) at once"
        if len(burst) < 2:
            return f"journald took a line of {self.name} {span(late_ns)} after it was written." if stamped else ""
        if stamped:
            return f"{self.name} keeps lines back for up to {span(late_ns)}: {at_once}, by its own buffer; {REMEDY}."
        return f"{self.name} pauses for up to {span(late_ns)}: {at_once}. If it has lines before that, {REMEDY}."


def measure(asked: Namespace) -> Steps:
    """Let programs write to a journald and to files, and time their lines."""
    with target(host=asked.host, directory=asked.directory) as where:
        yield from (run_command if asked.argv else at)(where, asked)


def at(where: Target, asked: Namespace) -> Steps:
    """Measure our own programs with one journald."""
    count = max(1, round(asked.rate * asked.seconds))
    stamp_bytes = len(f"{time.monotonic_ns()} 000000 \n")
    words = (str(count), str(1 / asked.rate), str(max(0, asked.size - stamp_bytes)))
    programs = [Program(name) for name in PRODUCERS]
    ways = [way for program in programs for way in (program.journald, program.file)]
    rows = [series for one in programs for series in (one.journald.read, one.reader, one.file.read)]
    found = _measurement(rows, programs)
    yield found
    with scratch(SCRATCH, "-stream") as place, ExitStack() as stack, selectors.DefaultSelector() as ready:
        outputs = [stack.enter_context(open(f"{place}/{one.name}", "ab", buffering=0)) for one in programs]
        for one in programs:
            _follow(["tail", "--follow", "--lines=+1", f"{place}/{one.name}"], one.file.take_line, ready, stack)
        _follow_journald(where, programs, ready, stack)
        producers = [
            _start([*PRODUCERS[one.name], *words], stack, output)
            for one, file in zip(programs, outputs, strict=True)
            for output in (_stream(where, one.tag, stack), file.fileno())
        ]
        until_s = math.inf
        complete = False
        try:
            while time.monotonic() < until_s and any(len(way.numbers) < count for way in ways):
                if _read(ready) and until_s < math.inf:
                    until_s = time.monotonic() + PATIENCE_S
                yield found
                if until_s == math.inf and all(producer.poll() is not None for producer in producers):
                    until_s = time.monotonic() + PATIENCE_S
            complete = True
        finally:
            for series in rows:
                _label(series)
            for way in ways:
                lost = count - len(way.numbers)
                way.read.labels["lost"] = str(lost) if complete else "-"
                if complete and lost:
                    found.losses.append(f"{way.read.name}: {lost} of {count} lines did not arrive.")


def run_command(where: Target, asked: Namespace) -> Steps:
    """Measure a user's command until it ends or for the requested time."""
    program = Program(escaped(os.path.basename(asked.argv[0])))
    found = _measurement([program.reader], [program])
    yield found
    with ExitStack() as stack, selectors.DefaultSelector() as ready:
        _follow_journald(where, [program], ready, stack)
        words = list(asked.argv)
        try:
            process = subprocess.Popen(words, stdout=_stream(where, program.tag, stack), stdin=subprocess.DEVNULL)
        except OSError as error:
            raise KeeperError(f"{words[0]}: cannot be run: {error.strerror}") from error
        stack.enter_context(process)
        stack.callback(process.terminate)
        until_s, last_s = time.monotonic() + asked.seconds, math.inf
        try:
            while (now_s := time.monotonic()) < until_s and now_s < last_s:
                ended = process.poll() is not None
                if _read(ready) or (ended and last_s == math.inf):
                    last_s = time.monotonic() + QUIET_S if ended else math.inf
                yield found
        finally:
            _label(program.reader)
            if process.poll():
                found.notes.append(f"{program.name} ended with exit status {process.returncode}.")


def _measurement(rows: list[Series], programs: list[Program]) -> Measurement:
    def verdict(limit: Limit) -> str:
        readers = [one.reader for one in programs if one.reader.took_ns]
        sentences = [one.describe_buffering(limit) for one in programs]
        if readers:
            worst_ns = max(max(series.took_ns) for series in readers)
            compared = "within" if worst_ns <= limit.ns else "over"
            text = f"A reader has a line at most {span(worst_ns)} after journald, {compared} {span(limit.ns)}"
            sentences.insert(0, f"{text} ({limit.source}).")
        return " ".join(filter(None, sentences))

    return Measurement(rows, COLUMNS, own_verdict=verdict)


def _label(series: Series) -> None:
    """Add the rate and the largest gap of a series to its row."""
    ends = [began + took for began, took in zip(series.began_ns, series.took_ns, strict=True)]
    span_s = (max(ends) - min(ends)) / 1e9 if ends else 0.0
    series.labels["rate"] = f"{(len(ends) - 1) / span_s:.1f}/s" if span_s else "-"
    series.labels["gap"] = span(largest_gap(ends) or None)


def _read(ready: selectors.BaseSelector) -> bool:
    """Pass all lines that have come to their takers. Return whether there were any."""
    some = False
    for key, _ in ready.select(MOMENT_S):
        lines, take = key.data
        came, read_ns = lines.take(), time.monotonic_ns()
        if lines.ended:
            ready.unregister(key.fileobj)
        for line in came:
            some = True
            take(line, read_ns)
    return some


def _follow_journald(where: Target, programs: list[Program], ready: selectors.BaseSelector, stack: ExitStack) -> None:
    """Follow the journal for the programs' lines, and wait until the reader shows a first line of our own.

    Raises: KeeperError if no line comes.
    """
    began_ns = time.monotonic_ns()
    by_tag = {one.tag: one for one in programs}
    tag = f"journalkeeper-{os.getpid()}-{READY}"
    began = False

    def take_entry(line: bytes, read_ns: int) -> None:
        nonlocal began
        entry = parse_text_fields(line)
        taken_ns, identifier = int(entry["__MONOTONIC_TIMESTAMP"]) * 1000, entry["SYSLOG_IDENTIFIER"]
        if taken_ns < began_ns - 1000:
            return  # by an earlier process with our id; the journal's times are rounded down
        began = began or identifier == tag
        if identifier in by_tag:
            by_tag[identifier].take_entry(entry.get("MESSAGE", ""), taken_ns, read_ns)

    os.write(_stream(where, tag, stack), f"{READY}\n".encode())
    until_s = time.monotonic() + PATIENCE_S
    first = [*where.journalctl, "--quiet", "--lines=1", f"--identifier={tag}"]
    while not subprocess.run(first, capture_output=True, check=False).stdout and time.monotonic() < until_s:
        time.sleep(MOMENT_S)  # journalctl does not follow a journal without entries of this boot
    _follow([*where.journalctl, *FOLLOW, *(f"--identifier={one}" for one in (tag, *by_tag))], take_entry, ready, stack)
    while not began:
        if time.monotonic() > until_s:
            raise KeeperError(f"`journalctl --follow` shows no new line within {PATIENCE_S:g} s: is Storage=none?")
        _read(ready)


def _follow(
    words: list[str], take: Callable[[bytes, int], None], ready: selectors.BaseSelector, stack: ExitStack
) -> None:
    """Run a command and have `take` called with each line that it writes."""
    reader = _start(words, stack)
    lines = Lines(reader.stdout.fileno() if reader.stdout else -1)
    ready.register(lines.fd, selectors.EVENT_READ, (lines, take))


def _start(words: list[str], stack: ExitStack, output: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """Start a command that is killed when the stack ends. A Python program in it buffers its output as by default."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(words, stdout=output, stdin=subprocess.DEVNULL, env=environment)
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def _stream(where: Target, identifier: str, stack: ExitStack) -> int:
    """Connect a program's stdout to journald, as sd_journal_stream_fd(3) does, at any journald's socket."""
    channel = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    channel.connect(os.fspath(where.sockets / "stdout"))
    channel.shutdown(socket.SHUT_RD)
    channel.sendall(f"{identifier}\n\n6\n0\n0\n0\n0\n".encode())
    return channel.fileno()
