# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe stream`: why a program's lines come late to a reader that follows the journal, and how late.

Runs COMMAND, for --seconds at most: as you, with its output to the host's journald as systemd connects
it. Measures how long a line takes to journald and on to `journalctl --follow`. Names the cause of lines
that come late or in bursts: its own buffer, the program, journald, or the reader.

examples:
  journalkeeper probe stream -- vmstat 1         does it buffer its lines?
  journalkeeper probe stream --seconds=3 -j -- vmstat 1
"""

# The program has a socket as its stdout and stderr, as systemd makes it. A thread times each write and passes it on
# to journald's stdout socket. All times are CLOCK_MONOTONIC, which cannot be set.

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from secrets import token_hex
from subprocess import DEVNULL, STDOUT, Popen
from typing import Final, NamedTuple

from journalkeeper.journald import control
from journalkeeper.journald.journalctl import decode_text, run_journalctl
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.units import escape, format_size, pluralize, spell_time
from journalkeeper.probe.base import PATIENCE_S, Measurement, Series, read_lines
from journalkeeper.probe.scratch_volume import wait_until

NO_LINE: Final = "`journalctl --follow` shows you no new line (try sudo; or Storage=none?)"
BLOCK: Final = 4096
"""The buffers of stdio and of Python are multiples of this (st_blksize of a pipe or socket)."""

NOTIFY_NS: Final = 250_000_000
"""journald notifies readers at most this often, so a line that waits longer before is not the reader's."""

TIMED_OUT: Final = 124
"""The exit status of timeout(1) after the time is over. Greater ones are its own errors or those of signals."""

REMEDY: Final = "Let it write each line at once: PYTHONUNBUFFERED=1 or `python -u` for Python, `stdbuf -oL` for C."


class Write(NamedTuple):
    """A write of a program: the time since the write before it or the program's start, its bytes, and its line ends."""

    gap_ns: int
    size_bytes: int
    lines: int


class Relay:
    """The writes of a program, and its lines, each with the time (CLOCK_MONOTONIC, ns) of the write that ended it."""

    def __init__(self) -> None:
        self.gaps = Series("between the program's writes")
        self.writes: list[Write] = []
        self.lines: list[tuple[int, bytes]] = []
        """Without empty lines, which journald does not store."""
        self._found = 0

    def pass_on(self, program: socket.socket, channel: socket.socket) -> None:
        """Record and send to `channel` the data from `program`, until its end; then shut `channel` down for writing.

        Empty lines are not recorded, a last one without newline is. Raises: KeeperError if journald no longer takes it.
        """
        rest, last_ns = b"", time.monotonic_ns()
        while data := program.recv(1 << 20):
            now_ns = time.monotonic_ns()
            *lines, rest = (rest + data).split(b"\n")
            self.lines += [(now_ns, line) for line in lines if line]
            self.writes.append(Write(now_ns - last_ns, len(data), len(lines)))
            self.gaps.waits_ns.append(now_ns - last_ns)
            last_ns = now_ns
            try:
                channel.sendall(data)
            except OSError as error:
                raise KeeperError(f"journald ended meanwhile ({error.strerror})") from error
        if rest:
            self.lines.append((last_ns, rest))
        with suppress(OSError):
            channel.shutdown(socket.SHUT_WR)  # at the end, journald stores a line that has no newline

    def find_written_ns(self, message: bytes) -> int | None:
        """Return when the first line after the last found that begins with `message` was written; None without one, as
        for the rest of a line that journald has split (LineMax=).
        """
        for number in range(self._found, len(self.lines)):
            written_ns, line = self.lines[number]
            if line.startswith(message):
                self._found = number + 1
                return written_ns
        return None


def name_cause(name: str, relay: Relay, taken: Series, read: Series, status: int | None) -> str:
    """Return a sentence that names what delays lines: journald, or else the reader, or else the program or its buffer.

    journald and the reader do if a line waited there for longer than the program's longest pause, in journald also than
    NOTIFY_NS; the buffer if most bytes came in writes of several lines that fill blocks of BLOCK, and perhaps if one
    write has all lines, or if none came and `status`, of timeout(1), is None or at least TIMED_OUT; else it ended.
    """
    if not relay.writes:
        buffer = f"{name} wrote nothing: its buffer holds its lines, or it had none. {REMEDY}"
        return f"{name} ended and wrote nothing." if status in range(TIMED_OUT) else buffer
    longest_line = max((len(line) for _, line in relay.lines), default=0)
    blocks = [one for one in relay.writes if one.lines > 1 and -one.size_bytes % BLOCK <= longest_line]
    is_buffer = 2 * sum(one.size_bytes for one in blocks) > sum(one.size_bytes for one in relay.writes)
    longest = max(blocks if is_buffer else relay.writes[1:] or relay.writes)  # the first one has the program's start
    pause, lines = spell_time(longest.gap_ns / 1e9), pluralize(longest.lines, "line")
    journald_ns, reader_ns = (max(series.waits_ns, default=0) for series in (taken, read))
    if journald_ns > max(NOTIFY_NS, longest.gap_ns):
        return f"journald delays lines: it took one {spell_time(journald_ns / 1e9)} after {name} wrote it."
    if reader_ns > longest.gap_ns:
        quick = f"journald took each line within {spell_time(journald_ns / 1e9)}"
        at_once = f"{name} wrote at least every {pause}, and {quick}"
        return f"Only the reader delays lines, as `journalctl -f` shows new ones four times a second: {at_once}."
    if is_buffer:
        at_once = f"{lines} ({format_size(longest.size_bytes)}) at once"
        return f"{name}'s own buffer delays lines: it wrote nothing for {pause}, then {at_once}. {REMEDY}"
    if longest.lines > 1 and len(relay.writes) == 1:
        return f"{name} wrote {lines} at once after {pause}: its buffer held them, or it had none before. {REMEDY}"
    return f"{name} itself pauses: it wrote nothing for {pause}, then {lines} at once, which fill no buffer."


def measure(asked: Namespace, found: Measurement, sockets: str = control.RUNTIME) -> None:
    """Run the command `asked.argv` for at most --seconds, and measure its pauses, each line's way to the journald of
    `sockets`, and from there to a reader, which alone is judged.

    Lines that do not arrive within PATIENCE_S after the program's end are a loss, and a failed exit status is a note.

    Raises: KeeperError if the command cannot be run, journalctl shows no line or ends, or journald is missing or ends.
    """
    name, tag = escape(os.path.basename(asked.argv[0])), f"journalkeeper-probe-{token_hex(4)}"
    relay, taken, read = Relay(), Series("until journald took it"), Series("from journald to reader")
    with _follow(tag, sockets, asked.directory) as reader, _run(asked, tag, sockets, relay) as (program, passing):
        found.series += [relay.gaps, taken, read]
        found.judged.append(read)
        ended_ns = None
        try:
            for lines in reader:
                now_ns = time.monotonic_ns()
                for entry in map(json.loads, lines):
                    written_ns = relay.find_written_ns(os.fsencode(decode_text(entry.get("MESSAGE"))))
                    if written_ns is not None:
                        taken_ns = int(entry["__MONOTONIC_TIMESTAMP"]) * 1000
                        taken.waits_ns.append(taken_ns - written_ns)
                        read.waits_ns.append(now_ns - taken_ns)
                if program.poll() is not None:
                    ended_ns = ended_ns or now_ns
                    has_all = passing.done() and len(read.waits_ns) == len(relay.lines)
                    if has_all or now_ns - ended_ns >= PATIENCE_S * 1e9:
                        break
            else:
                raise KeeperError("`journalctl --follow` has ended")
        finally:
            found.causes.append(name_cause(name, relay, taken, read, program.poll()))
            if program.poll() and program.poll() != TIMED_OUT:
                found.notes.append(f"{name} ended with exit status {program.returncode} (below 0: a signal).")
    if lost := len(relay.lines) - len(read.waits_ns):
        found.losses.append(f"{lost} of {len(relay.lines)} lines did not arrive.")


@contextmanager
def _run(asked: Namespace, tag: str, sockets: str, relay: Relay) -> Iterator[tuple[Popen[bytes], Future[None]]]:
    """Run the command under timeout(1) for at most --seconds. A thread passes its stdout and stderr on by `relay`.

    Yield the program and the thread's Future. The block's end terminates the program and waits for both.

    Raises: KeeperError if it cannot be run, or as `_connect_stream` and `Relay.pass_on`.
    """
    if shutil.which(asked.argv[0]) is None:
        raise KeeperError(f"{escape(asked.argv[0])}: no such command")
    ours, theirs = socket.socketpair()
    words = ["timeout", f"--kill-after={PATIENCE_S}", f"{asked.seconds}", *asked.argv]
    with ours, _connect_stream(tag, sockets) as channel, ThreadPoolExecutor(1) as pool:
        with theirs:
            program = Popen(words, stdin=DEVNULL, stdout=theirs.fileno(), stderr=STDOUT)
        passing = pool.submit(relay.pass_on, ours, channel)
        try:
            yield program, passing
        finally:
            program.terminate()
            program.wait()
            ours.shutdown(socket.SHUT_RD)  # a process that the program left behind may hold the other end
        passing.result()


@contextmanager
def _follow(tag: str, sockets: str, directory: str | None) -> Iterator[Iterator[list[bytes]]]:
    """Log a test line for the new identifier `tag`, and yield the `read_lines` of a `journalctl --follow` after it.

    Raises: KeeperError if journalctl does not show the test line within PATIENCE_S, or as `_connect_stream`.
    """
    with _connect_stream(tag, sockets) as channel:
        channel.send(b"ready\n")
    wanted = f"--identifier={tag}"

    def is_test_line_shown() -> bool:
        """Run journalctl without --follow, and return whether it shows a line of `tag`."""
        with run_journalctl(["MESSAGE"], "--lines=1", wanted, directory=directory) as journalctl:
            return bool(journalctl.output.readline())

    wait_until(is_test_line_shown, NO_LINE, PATIENCE_S)  # journalctl ends at once if there is no file that it may read
    with run_journalctl(["MESSAGE"], "--all", "--follow", "--no-tail", wanted, directory=directory) as journalctl:
        reader = read_lines(journalctl.output.fileno())
        wait_until(lambda: next(reader, None) != [], NO_LINE, PATIENCE_S)
        yield reader


def _connect_stream(identifier: str, sockets: str) -> socket.socket:
    """Return a socket for lines of `identifier`, as sd_journal_stream_fd(3), with priority 6. Raises: KeeperError."""
    channel = control.connect(f"{sockets}/stdout", socket.SOCK_STREAM)
    channel.shutdown(socket.SHUT_RD)
    channel.sendall(f"{identifier}\n\n6\n0\n0\n0\n0\n".encode())
    return channel
