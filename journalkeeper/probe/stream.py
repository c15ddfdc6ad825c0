# SPDX-License-Identifier: LGPL-2.1-or-later
"""The delay of a program's lines on the way to a reader, through journald's stdout socket.

Each line of our own programs contains the time at which the program wrote it. So the delay by the program's buffer can
be separated from journald's delay before it notifies readers. For a user's command, only the number of lines per read
is known, because journald gives all lines of one read the same time. All times are CLOCK_MONOTONIC, which cannot be
set.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from secrets import token_hex
from typing import Final

from journalkeeper.journald.journalctl import parse_text_fields, run_journalctl
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.escape import shown as escaped
from journalkeeper.model.units import counted, format_size
from journalkeeper.probe.base import PATIENCE_S, Lines, Measurement, Steps, Target, target
from journalkeeper.probe.distribution import Limit, Series, largest_gap
from journalkeeper.probe.distribution import format_wait as span
from journalkeeper.probe.scratch_volume import wait_until

PYTHON: Final = """
import sys, time
count, pause_s, pad = int(sys.argv[1]), float(sys.argv[2]), "x" * int(sys.argv[3])
began_s = time.monotonic()
for n in range(count):
    time.sleep(max(0, began_s + n * pause_s - time.monotonic()))
    print(time.monotonic_ns(), f"{n:06d}", pad)
"""
MOMENT_S: Final = 0.1
QUIET_S: Final = 1.0
"""A command that has ended is read until no line has come for this long."""

NO_LINE: Final = "`journalctl --follow` shows no new line (Storage=none?)"
BURST_GAP_NS: Final = 10_000_000
COLUMNS: Final = ("program", "way", "rate", "gap", "lost", "p50", "p99", "worst")
FIELDS: Final = ("MESSAGE", "SYSLOG_IDENTIFIER")
REMEDY: Final = "have it write each line at once (python -u, stdbuf -oL)"


class Program:
    """A program with a journald's stdout socket as its stdout: its lines as journald and as a reader received them.

    `lines` is the number of lines that it writes, None for a user's command; those lines have no times of their own.
    """

    def __init__(self, words: list[str], name: str, lines: int | None) -> None:
        self.words, self.name, self.lines = words, name, lines
        self.tag = f"journalkeeper-{token_hex(8)}"
        self.journald = Series(f"{name}, journald", {"program": name, "way": "journald"})
        self.reader = Series(f"{name}, journald to reader", {"program": name, "way": "journald to reader"})
        self.taken: dict[int, tuple[int, int]] = {}
        """For each line, the time at which journald received it, and its size in bytes."""

    @property
    def rows(self) -> list[Series]:
        """The series of this program that contain values."""
        return [self.reader] if self.lines is None else [self.journald, self.reader]

    def take(self, message: str, taken_ns: int, read_ns: int) -> None:
        """Add one line of this program: journald received it at `taken_ns`, and a reader read it at `read_ns`.

        Lines that our program did not write, or that were added before, are ignored.
        """
        number = len(self.taken)
        if self.lines is not None:
            stamp, digits, *_ = [*message.split(" ", 2), "", ""]
            if not stamp.isdecimal() or not digits.isdecimal() or int(digits) in self.taken:
                return
            number = int(digits)
            self.journald.add(int(stamp), taken_ns - int(stamp))
        self.taken[number] = taken_ns, len(message.encode()) + 1
        self.reader.add(taken_ns, read_ns - taken_ns)

    def find_largest_burst(self) -> list[int]:
        """Return the sizes in bytes of the lines in the burst with the most lines.

        A line that journald received within BURST_GAP_NS after another one belongs to the same burst.
        """
        best: list[int] = []
        sizes: list[int] = []
        before_ns = 0
        for taken_ns, size in sorted(self.taken.values()):
            sizes = [*sizes, size] if taken_ns - before_ns < BURST_GAP_NS else [size]
            best = max(best, sizes, key=len)
            before_ns = taken_ns
        return best

    def describe_buffering(self, limit: Limit) -> str:
        """Return a sentence if the program's buffer delayed lines for longer than `limit`; else ""."""
        if not self.taken:
            return f"{self.name} wrote no line, or buffers its lines: {REMEDY}."
        stamped = self.journald.took_ns
        late_ns = max(stamped) if stamped else largest_gap(taken_ns for taken_ns, _ in self.taken.values())
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
    """Run programs that write to the chosen journald, and time their lines: see `at`."""
    with target(host=asked.host, directory=asked.directory) as where:
        yield from at(where, asked)


def at(where: Target, asked: Namespace) -> Steps:
    """Run programs with their stdout connected to the journald `where`, and time their lines.

    The program is the user's command, which runs until it ends or for --seconds. Without a command, two programs of our
    own run until all their lines have arrived. The Measurement is yielded meanwhile.
    """
    programs = _make_programs(asked)
    rows = [series for one in programs for series in one.rows]
    found = Measurement(rows, COLUMNS, own_verdict=lambda limit: describe(programs, limit))
    yield found
    with ExitStack() as stack:
        reader = stack.enter_context(_follow(where, programs))
        processes = [_start(one, where, stack) for one in programs]
        heard_s, until_s, complete = time.monotonic(), time.monotonic() + asked.seconds, False
        try:
            while not complete:
                came, now_s = _read(reader, programs), time.monotonic()
                yield found
                if asked.argv and now_s >= until_s:
                    break
                if came or any(process.poll() is None for process in processes):
                    heard_s = now_s
                arrived = all(len(one.taken) == one.lines for one in programs)
                complete = arrived or now_s - heard_s >= (QUIET_S if asked.argv else PATIENCE_S)
        finally:
            for one in programs:
                for series in one.rows:
                    _label(series)
                if one.lines is not None:
                    lost = one.lines - len(one.taken)
                    one.journald.labels["lost"] = str(lost) if complete else "-"
                    if complete and lost:
                        found.losses.append(f"{one.journald.name}: {lost} of {one.lines} lines did not arrive.")
            if asked.argv and processes[0].poll():
                found.notes.append(f"{programs[0].name} ended with exit status {processes[0].returncode}.")


def _make_programs(asked: Namespace) -> list[Program]:
    """Return the user's command, or our own programs: one that does not buffer its lines, and one that does."""
    if asked.argv:
        return [Program(asked.argv, escaped(os.path.basename(asked.argv[0])), None)]
    count = max(1, round(asked.rate * asked.seconds))
    pad = max(0, asked.size - len(f"{time.monotonic_ns()} 000000 \n"))
    python = ["env", "-u", "PYTHONUNBUFFERED", sys.executable]
    words = [PYTHON, str(count), str(1 / asked.rate), str(pad)]
    return [
        Program([*python, "-u", "-c", *words], "python -u", count),
        Program([*python, "-c", *words], "python", count),
    ]


def describe(programs: list[Program], limit: Limit) -> str:
    """Return a sentence on journald's delay before readers have a line, and one on each program that buffers."""
    sentences = [one.describe_buffering(limit) for one in programs]
    if delays_ns := [took_ns for one in programs for took_ns in one.reader.took_ns]:
        worst_ns = max(delays_ns)
        compared = limit.compare(worst_ns)
        sentences.insert(0, f"A reader has a line at most {span(worst_ns)} after journald, {compared}.")
    return " ".join(filter(None, sentences))


def _label(series: Series) -> None:
    """Add two columns to the table row of `series`: "rate", and "gap", the longest time without a line.

    The rate is that of lines per second, "-" if the measurement is too short.
    """
    ends = [began + took for began, took in zip(series.began_ns, series.took_ns, strict=True)]
    span_s = (max(ends) - min(ends)) / 1e9 if ends else 0.0
    series.labels["rate"] = f"{(len(ends) - 1) / span_s:.1f}/s" if span_s >= MOMENT_S else "-"
    series.labels["gap"] = span(largest_gap(ends) or None)


def _read(reader: Lines, programs: list[Program]) -> bool:
    """Add the lines that have come within MOMENT_S to their programs. Return whether any line came.

    Raises: KeeperError if journalctl has ended.
    """
    if not select.select([reader.fd], [], [], MOMENT_S)[0]:
        return False
    lines, read_ns = reader.take(), time.monotonic_ns()
    if reader.ended:
        raise KeeperError("`journalctl --follow` has ended")
    for entry in map(parse_text_fields, lines):
        for one in programs:
            if entry["SYSLOG_IDENTIFIER"] == one.tag:
                one.take(entry.get("MESSAGE", ""), int(entry["__MONOTONIC_TIMESTAMP"]) * 1000, read_ns)
    return bool(lines)


@contextmanager
def _follow(where: Target, programs: list[Program]) -> Iterator[Lines]:
    """Start a reader of the journal for the programs' lines, and yield it when it shows a first line of our own.

    Raises: KeeperError if no line comes within PATIENCE_S.
    """
    tag = f"journalkeeper-{token_hex(8)}"
    with _connect(where, tag) as channel:
        channel.send(b"ready\n")
    # journalctl does not follow a journal without entries of this boot
    wait_until(lambda: _has_entry(where, tag), NO_LINE, PATIENCE_S)
    tags = [f"--identifier={one}" for one in (tag, *(one.tag for one in programs))]
    with run_journalctl(FIELDS, "--all", "--follow", "--no-tail", *tags, directory=where.directory) as journalctl:
        reader = Lines(journalctl.output.fileno())
        wait_until(lambda: _read(reader, []), NO_LINE, PATIENCE_S)
        yield reader


def _has_entry(where: Target, tag: str) -> bool:
    with run_journalctl(FIELDS, "--lines=1", f"--identifier={tag}", directory=where.directory) as journalctl:
        return bool(journalctl.output.readline())


def _start(program: Program, where: Target, stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start a program with its stdout connected to journald. It is terminated when `stack` ends.

    Raises: KeeperError if the program cannot be run.
    """
    with _connect(where, program.tag) as output:
        try:
            process = subprocess.Popen(program.words, stdout=output.fileno(), stdin=subprocess.DEVNULL)
        except OSError as error:
            raise KeeperError(f"{program.words[0]}: cannot be run: {error.strerror}") from error
    stack.enter_context(process)
    stack.callback(process.terminate)
    return process


def _connect(where: Target, identifier: str) -> socket.socket:
    """Connect a program's stdout to journald, as sd_journal_stream_fd(3) does, at any journald's socket."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(os.fspath(where.sockets / "stdout"))
    channel.shutdown(socket.SHUT_RD)
    channel.sendall(f"{identifier}\n\n6\n0\n0\n0\n0\n".encode())
    return channel
