# SPDX-License-Identifier: LGPL-2.1-or-later
"""The delay of a program's lines on the way to a reader, through journald's stdout socket.

Each line of our own programs contains the time at which the program wrote it. So the delay by the program's buffer can
be separated from journald's delay before it notifies readers. For a user's command, only the number of lines per read
is known, because journald gives all lines of one read the same time. All times are CLOCK_MONOTONIC, which cannot be
set.
"""

from __future__ import annotations

import os
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
from journalkeeper.probe.base import PATIENCE_S, Measurement, Steps, Target, read_lines, target
from journalkeeper.probe.distribution import Limit, Series, largest_gap
from journalkeeper.probe.distribution import format_wait as span
from journalkeeper.probe.scratch_volume import wait_until

PYTHON: Final = """
import sys, time
count, pause_s, pad = int(sys.argv[1]), float(sys.argv[2]), "x" * int(sys.argv[3])
began_s = time.monotonic()
for n in range(count):
    time.sleep(max(0, began_s + n * pause_s - time.monotonic()))
    print(time.monotonic_ns(), pad)
"""
QUIET_S: Final = 1.0
"""A command that has ended is read until no line has come for this long."""

RATED_S: Final = 0.1
BURST_GAP_NS: Final = 10_000_000
COLUMNS: Final = ("program", "way", "rate", "gap", "lost", "p50", "p99", "worst")
FIELDS: Final = ("MESSAGE", "SYSLOG_IDENTIFIER")
NO_LINE: Final = "`journalctl --follow` shows no new line (Storage=none?)"
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
        self.rows = [self.reader] if lines is None else [self.journald, self.reader]
        self.sizes: list[int] = []

    def take(self, message: str, taken_ns: int, read_ns: int) -> None:
        """Add one line of this program: journald received it at `taken_ns`, and a reader read it at `read_ns`.

        The rest of a line of our own that journald has split (LineMax=) is ignored.
        """
        if self.lines is not None:
            written_ns = message.partition(" ")[0]
            if not written_ns.isdecimal():
                return
            self.journald.add(int(written_ns), taken_ns - int(written_ns))
        self.reader.add(taken_ns, read_ns - taken_ns)
        self.sizes.append(len(message.encode()) + 1)

    def find_largest_burst(self) -> list[int]:
        """Return the sizes in bytes of the lines in the burst with the most lines.

        A line that journald received within BURST_GAP_NS after another one belongs to the same burst.
        """
        bursts: list[list[int]] = [[]]
        before_ns = 0
        for taken_ns, size in zip(self.reader.began_ns, self.sizes, strict=True):
            if taken_ns - before_ns >= BURST_GAP_NS:
                bursts.append([])
            bursts[-1].append(size)
            before_ns = taken_ns
        return max(bursts, key=len)

    def describe_buffering(self, limit: Limit) -> str:
        """Return a sentence if the program's buffer delayed lines for longer than `limit`; else ""."""
        if not self.sizes:
            return f"{self.name} wrote no line, or buffers its lines: {REMEDY}."
        late_ns = max(self.journald.took_ns, default=0) or largest_gap(self.reader.began_ns)
        if late_ns <= limit.ns:
            return ""
        burst = self.find_largest_burst()
        at_once = f"it writes up to {counted(len(burst), 'line')} ({format_size(sum(burst))}) at once"
        if len(burst) < 2:
            late = f"journald took a line of {self.name} {span(late_ns)} after it was written."
            return "" if self.lines is None else late
        if self.lines is None:
            return f"{self.name} pauses for up to {span(late_ns)}: {at_once}. If it has lines before that, {REMEDY}."
        return f"{self.name} keeps lines back for up to {span(late_ns)}: {at_once}, by its own buffer; {REMEDY}."

    def finish(self, *, complete: bool) -> str:
        """Add the columns "rate", "gap" (the longest time without a line) and "lost" to the table rows.

        The rate is that of lines per second, "-" if the measurement is too short. Return a sentence if lines are lost,
        else "". Unless the measurement is `complete`, the number of lost lines is unknown.
        """
        for series in self.rows:
            ends = [began + took for began, took in zip(series.began_ns, series.took_ns, strict=True)]
            span_s = (max(ends) - min(ends)) / 1e9 if ends else 0.0
            series.labels["rate"] = f"{(len(ends) - 1) / span_s:.1f}/s" if span_s >= RATED_S else "-"
            series.labels["gap"] = span(largest_gap(ends) or None)
        if self.lines is None:
            return ""
        lost = self.lines - len(self.sizes)
        self.journald.labels["lost"] = str(lost) if complete else "-"
        return f"{self.journald.name}: {lost} of {self.lines} lines did not arrive." if complete and lost else ""


def measure(asked: Namespace) -> Steps:
    """Run programs that write to the chosen journald, and time their lines: see `at`."""
    with target(host=asked.host, directory=asked.directory) as where:
        yield from at(where, asked)


def at(where: Target, asked: Namespace) -> Steps:
    """Run programs with their stdout connected to the journald `where`, and time their lines.

    The program is the user's command, which runs until it ends or for --seconds. Without a command, two programs of our
    own run until all their lines have arrived. The Measurement is yielded meanwhile.

    Raises: KeeperError if journalctl ends.
    """
    programs = {one.tag: one for one in _make_programs(asked)}
    rows = [series for one in programs.values() for series in one.rows]
    found = Measurement(rows, COLUMNS, own_verdict=lambda limit: describe(list(programs.values()), limit))
    yield found
    with ExitStack() as stack:
        reader = stack.enter_context(_follow(where, list(programs)))
        processes = [_start(one, where, stack) for one in programs.values()]
        heard_s, until_s, complete = time.monotonic(), time.monotonic() + asked.seconds, False
        try:
            for lines in reader:
                now_ns = time.monotonic_ns()
                for entry in map(parse_text_fields, lines):
                    taken_ns = int(entry["__MONOTONIC_TIMESTAMP"]) * 1000
                    programs[entry["SYSLOG_IDENTIFIER"]].take(entry.get("MESSAGE", ""), taken_ns, now_ns)
                yield found
                if lines or any(process.poll() is None for process in processes):
                    heard_s = now_ns / 1e9
                arrived = all(len(one.sizes) == one.lines for one in programs.values())
                complete = arrived or now_ns / 1e9 - heard_s >= (QUIET_S if asked.argv else PATIENCE_S)
                if complete or (asked.argv and now_ns / 1e9 >= until_s):
                    break
            else:
                raise KeeperError("`journalctl --follow` has ended")
        finally:
            found.losses += filter(None, [one.finish(complete=complete) for one in programs.values()])
            if asked.argv and (status := processes[0].poll()):
                found.notes.append(f"{rows[0].labels['program']} ended with exit status {status}.")


def _make_programs(asked: Namespace) -> list[Program]:
    """Return the user's command, or our own programs: one that does not buffer its lines, and one that does."""
    if asked.argv:
        return [Program(asked.argv, escaped(os.path.basename(asked.argv[0])), None)]
    count = max(1, round(asked.rate * asked.seconds))
    pad = max(0, asked.size - len(f"{time.monotonic_ns()} \n"))
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


@contextmanager
def _follow(where: Target, tags: list[str]) -> Iterator[Iterator[list[bytes]]]:
    """Start a reader of the entries with these identifiers. Yield its lines when it has shown a first one of our own.

    Raises: KeeperError if no line comes within PATIENCE_S.
    """
    with _connect(where, tags[0]) as channel:
        channel.send(b"ready\n")
    wanted = [f"--identifier={tag}" for tag in tags]

    def has_entry() -> bool:
        with run_journalctl(FIELDS, "--lines=1", *wanted, directory=where.directory) as journalctl:
            return bool(journalctl.output.readline())

    wait_until(has_entry, NO_LINE, PATIENCE_S)  # journalctl does not follow a journal without entries of this boot
    with run_journalctl(FIELDS, "--all", "--follow", "--no-tail", *wanted, directory=where.directory) as journalctl:
        reader = read_lines(journalctl.output.fileno())
        wait_until(lambda: next(reader, None) != [], NO_LINE, PATIENCE_S)
        yield reader


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
