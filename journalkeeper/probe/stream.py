# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe stream`: why a program's lines come late to a reader that follows the journal, and how late.

Starts a program that prints lines, and measures how long a line takes to journald and on to
`journalctl --follow`. It starts a journald of its own, or asks the host's with --host.
Runs COMMAND if there is one, for --seconds at most: as you, with its output to the host's journald
as systemd connects it. Names the cause of lines that come late or in bursts: its own buffer, the
program, journald, or the reader. This needs no root without -D.

examples:
  journalkeeper probe stream -- vmstat 1       does it buffer its lines?
  sudo journalkeeper probe stream --seconds=2  with a program of its own
  sudo journalkeeper probe stream --seconds=5 --host
"""

# The program has a socket as its stdout and stderr, as systemd makes it. A thread times each write and passes it on
# to journald's stdout socket. All times are CLOCK_MONOTONIC, which cannot be set.

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Final, NamedTuple

from journalkeeper.journald.journalctl import decode_text, run_journalctl
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.units import escape, format_size, pluralize
from journalkeeper.probe.base import MOMENT_S, PATIENCE_S, Measurement, Steps, Target, read_lines, schedule, target
from journalkeeper.probe.distribution import Series, format_wait
from journalkeeper.probe.scratch_volume import wait_until

PROGRAM: Final = """
import sys, time
for n in range(int(sys.argv[1])):
    time.sleep(float(sys.argv[2]))
    print(str(n).ljust(int(sys.argv[3]), "x"), flush=True)
"""
NO_LINE: Final = "`journalctl --follow` shows no new line (Storage=none?)"
UNREAD: Final = "journalctl shows you no new line, so only the program's writes are measured: try sudo."
BLOCK: Final = 4096
"""The buffers of stdio and of Python are multiples of this (st_blksize of a pipe or socket)."""

NOTIFY_NS: Final = 250_000_000
"""journald notifies readers at most this often, so a line that waits longer before is not the reader's."""

REMEDY: Final = "Let it write each line at once: PYTHONUNBUFFERED=1 or `python -u` for Python, `stdbuf -oL` for C."
Program = subprocess.Popen[bytes]


class Write(NamedTuple):
    """A write of a program: the time since the write before it or the program's start, its bytes, and its line ends."""

    gap_ns: int
    size_bytes: int
    lines: int


class Relay:
    """The writes of a program, and its lines, each with the time at which it was written (CLOCK_MONOTONIC, ns)."""

    def __init__(self) -> None:
        self.gaps = Series("between the program's writes")
        self.writes: list[Write] = []
        self.lines: list[tuple[int, bytes]] = []
        """Without empty lines, which journald does not store."""
        self._found = 0

    def run(self, program: socket.socket, channel: socket.socket) -> None:
        """Pass on what `program` sends, until its end. Raises: KeeperError if journald no longer takes it."""
        rest, last_ns = b"", time.monotonic_ns()
        while data := program.recv(1 << 20):
            now_ns = time.monotonic_ns()
            *lines, rest = (rest + data).split(b"\n")
            self._add(lines, now_ns)
            self.writes.append(Write(now_ns - last_ns, len(data), len(lines)))
            self.gaps.add(last_ns, now_ns - last_ns)
            last_ns = now_ns
            try:
                channel.sendall(data)
            except OSError as error:
                raise KeeperError(f"journald ended meanwhile ({error.strerror})") from error
        self._add([rest], last_ns)
        with suppress(OSError):
            channel.shutdown(socket.SHUT_WR)  # at the end, journald stores a line that has no newline

    def _add(self, lines: list[bytes], now_ns: int) -> None:
        self.lines += [(now_ns, line) for line in lines if line.strip()]

    def find_written_ns(self, message: bytes) -> int | None:
        """Return when the next line that begins with `message` was written; None for the rest of a line that journald
        has split (LineMax=).
        """
        for number in range(self._found, len(self.lines)):
            written_ns, line = self.lines[number]
            if line.startswith(message):
                self._found = number + 1
                return written_ns
        return None


def name_cause(name: str, relay: Relay, taken: Series, read: Series, status: int | None) -> str:
    """Return a sentence that names where lines wait the longest: in a buffer, the program, journald, or the reader.

    `status` is the exit status of the program, negative after a signal, None while it runs.
    """
    if not relay.writes:
        has_buffer = status is None or status < 0
        buffer = f"{name} wrote nothing: its buffer holds its lines, or it had none. {REMEDY}"
        return buffer if has_buffer else f"{name} ended and wrote nothing."
    longest_line = max((len(line) for _, line in relay.lines), default=0)
    blocks = [one for one in relay.writes if one.lines > 1 and -one.size_bytes % BLOCK <= longest_line]
    is_buffer = 2 * sum(one.size_bytes for one in blocks) > sum(one.size_bytes for one in relay.writes)
    longest = max(blocks if is_buffer else relay.writes[1:] or relay.writes)  # the first one has the program's start
    pause, lines = format_wait(longest.gap_ns), pluralize(longest.lines, "line")
    journald_ns, reader_ns = (max(series.took_ns, default=0) for series in (taken, read))
    if journald_ns > max(NOTIFY_NS, longest.gap_ns):
        return f"journald delays lines: it took one {format_wait(journald_ns)} after {name} wrote it."
    if reader_ns > longest.gap_ns:
        at_once = f"{name} wrote at least every {pause}, and journald took each line within {format_wait(journald_ns)}"
        return f"Only the reader delays lines, as `journalctl -f` shows new ones four times a second: {at_once}."
    if is_buffer:
        at_once = f"{lines} ({format_size(longest.size_bytes)}) at once"
        return f"{name}'s own buffer delays lines: it wrote nothing for {pause}, then {at_once}. {REMEDY}"
    if longest.lines > 1 and len(relay.writes) == 1:
        return f"{name} wrote {lines} at once after {pause}: its buffer held them, or it had none before. {REMEDY}"
    return f"{name} itself pauses: it wrote nothing for {pause}, then {lines} at once, which fill no buffer."


def measure(asked: Namespace) -> Steps:
    """Measure at the journald that --host and the directory choose; a command without a directory at the host's.

    Raises: as `base.target` and `measure_at`.
    """
    with target(host=asked.host or bool(asked.argv and not asked.directory), directory=asked.directory) as where:
        yield from measure_at(where, asked)


def measure_at(where: Target, asked: Namespace) -> Steps:
    """Run a program that writes lines to the journald `where`, and measure each line's way to it and on to a reader.

    The program is the command `asked.argv`, which runs for at most --seconds, or one that writes for --seconds, with
    --rate (lines a second) and --size (bytes a line). Lines that do not arrive within PATIENCE_S after the program's
    end are a loss. A command is also measured if journalctl shows no line to this user.

    Raises: KeeperError if the command or journalctl cannot be run, or journalctl ends; OSError if journald cannot be
    reached.
    """
    count = max(1, round(asked.rate * asked.seconds))
    words = asked.argv or [sys.executable, "-c", PROGRAM, str(count), str(1 / asked.rate), str(asked.size - 1)]
    name = escape(os.path.basename(words[0]))
    relay, taken, read = Relay(), Series("until journald took it"), Series("from journald to reader")
    found = Measurement([relay.gaps, taken, read], judged=[read])
    yield found
    with _follow(where, needed=not asked.argv) as (tag, reader), _run(words, where, tag, relay) as (program, passing):
        heard_s = began_s = time.monotonic()
        found.notes += [] if reader else [UNREAD]
        try:
            for lines in reader or ([] for _ in schedule(1 / MOMENT_S, sys.maxsize)):
                now_ns = time.monotonic_ns()
                for entry in map(json.loads, lines):
                    written_ns = relay.find_written_ns(os.fsencode(decode_text(entry.get("MESSAGE"))))
                    if written_ns is not None:
                        taken_ns = int(entry["__MONOTONIC_TIMESTAMP"]) * 1000
                        taken.add(written_ns, taken_ns - written_ns)
                        read.add(taken_ns, now_ns - taken_ns)
                yield found
                if is_over := bool(asked.argv) and now_ns / 1e9 - began_s >= asked.seconds:
                    _stop(program, signal.SIGTERM)
                if lines or (program.poll() is None and not is_over):
                    heard_s = now_ns / 1e9
                is_shown = reader is None or len(read.took_ns) == len(relay.lines)
                if (passing.done() and is_shown) or now_ns / 1e9 - heard_s >= PATIENCE_S:
                    break
            else:
                raise KeeperError("`journalctl --follow` has ended")
        finally:
            status = program.poll()
            found.causes.append(name_cause(name, relay, taken, read, status))
    if (program.returncode or 0) > 0:
        found.notes.append(f"{name} ended with exit status {program.returncode}.")
    elif status and status != -signal.SIGTERM:
        found.notes.append(f"Signal {-status} ended {name}.")
    if reader and (lost := len(relay.lines) - len(read.took_ns)):
        found.losses.append(f"{lost} of {len(relay.lines)} lines did not arrive.")


@contextmanager
def _run(words: list[str], where: Target, tag: str, relay: Relay) -> Iterator[tuple[Program, Future[None]]]:
    """Run a program in a process group of its own, and pass its output on to `where` until the block ends.

    Raises: KeeperError if it cannot be run, or as `Relay.run`.
    """
    ours, theirs = socket.socketpair()
    env = {name: value for name, value in os.environ.items() if name != "JOURNAL_STREAM"}
    with ours, _connect_stream(where, tag) as channel, ThreadPoolExecutor(1) as pool:
        with theirs:
            out = theirs.fileno()
            try:
                program = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, process_group=0
                )
            except OSError as error:
                raise KeeperError(f"{escape(words[0])}: cannot be run: {error.strerror}") from error
        passing = pool.submit(relay.run, ours, channel)
        try:
            yield program, passing
        finally:
            _stop(program, signal.SIGTERM)
            try:
                program.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                _stop(program, signal.SIGKILL)
                program.wait()
            ours.shutdown(socket.SHUT_RD)  # a process that the program left behind may hold the other end
        passing.result()


def _stop(program: Program, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(program.pid, number)


@contextmanager
def _follow(where: Target, *, needed: bool) -> Iterator[tuple[str, Iterator[list[bytes]] | None]]:
    """Start `journalctl --follow` for a new identifier, and yield the identifier and its later lines.

    journalctl has shown a test line by then. Unless it is `needed`, yield None for the lines if it shows none.
    """
    tag = f"journalkeeper-probe-{token_hex(4)}"
    with _connect_stream(where, tag) as channel:
        channel.send(b"ready\n")
    wanted = f"--identifier={tag}"

    def has_entry() -> bool:
        with run_journalctl(["MESSAGE"], "--lines=1", wanted, directory=where.directory) as journalctl:
            return bool(journalctl.output.readline())

    try:
        wait_until(has_entry, NO_LINE, PATIENCE_S)  # journalctl does not follow a journal without entries of this boot
    except KeeperError:
        if needed:
            raise
        yield tag, None
        return
    with run_journalctl(["MESSAGE"], "--all", "--follow", "--no-tail", wanted, directory=where.directory) as journalctl:
        reader = read_lines(journalctl.output.fileno())
        wait_until(lambda: next(reader, None) != [], NO_LINE, PATIENCE_S)
        yield tag, reader


def _connect_stream(where: Target, identifier: str) -> socket.socket:
    """Return a socket for lines of `identifier`, as sd_journal_stream_fd(3) makes it, with priority 6."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(os.fspath(where.sockets / "stdout"))
    channel.shutdown(socket.SHUT_RD)
    channel.sendall(f"{identifier}\n\n6\n0\n0\n0\n0\n".encode())
    return channel
