# SPDX-License-Identifier: LGPL-2.1-or-later
"""The delay of a program's lines on the way to a reader, through journald's stdout socket.

Each line contains the time at which the program wrote it. All times are CLOCK_MONOTONIC, which cannot be set.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Final

from journalkeeper.journald.journalctl import parse_text_fields, run_journalctl
from journalkeeper.model.errors import KeeperError
from journalkeeper.probe.base import PATIENCE_S, Measurement, Steps, Target, read_lines, target
from journalkeeper.probe.distribution import Series
from journalkeeper.probe.scratch_volume import wait_until

PROGRAM: Final = """
import sys, time
count, pause_s, pad = int(sys.argv[1]), float(sys.argv[2]), "x" * int(sys.argv[3])
began_s = time.monotonic()
for n in range(count):
    time.sleep(max(0, began_s + n * pause_s - time.monotonic()))
    print(time.monotonic_ns(), pad, flush=True)
"""
NO_LINE: Final = "`journalctl --follow` shows no new line (Storage=none?)"


def measure(asked: Namespace) -> Steps:
    """Measure at the journald that --host and the directory choose. Raises: as `base.target` and `at`."""
    with target(host=asked.host, directory=asked.directory) as where:
        yield from at(where, asked)


def at(where: Target, asked: Namespace) -> Steps:
    """Run a program that writes lines to the journald `where`, and measure each line's way to it and on to a reader.

    `asked` has --rate (lines a second), --seconds and --size (bytes a line). Lines that do not arrive within PATIENCE_S
    after the program's end are a loss.

    Raises: KeeperError if journalctl shows no test line, or ends; OSError if journald cannot be reached.
    """
    count = max(1, round(asked.rate * asked.seconds))
    pad = max(0, asked.size - len(f"{time.monotonic_ns()} \n"))
    words = [sys.executable, "-c", PROGRAM, str(count), str(1 / asked.rate), str(pad)]
    taken, read = Series("until journald took it"), Series("from journald to reader")
    found = Measurement([taken, read], judged=[read])
    yield found
    with (
        _follow(where) as (tag, reader),
        _connect(where, tag) as output,
        subprocess.Popen(words, stdout=output.fileno()) as program,
    ):
        heard_s = time.monotonic()
        try:
            for lines in reader:
                now_ns = time.monotonic_ns()
                for entry in map(parse_text_fields, lines):
                    written_ns = entry["MESSAGE"].partition(" ")[0]
                    if written_ns.isdecimal():  # else the rest of a line that journald has split (LineMax=)
                        taken_ns = int(entry["__MONOTONIC_TIMESTAMP"]) * 1000
                        taken.add(int(written_ns), taken_ns - int(written_ns))
                        read.add(taken_ns, now_ns - taken_ns)
                yield found
                if lines or program.poll() is None:
                    heard_s = now_ns / 1e9
                if len(read.took_ns) == count or now_ns / 1e9 - heard_s >= PATIENCE_S:
                    break
            else:
                raise KeeperError("`journalctl --follow` has ended")
        finally:
            program.terminate()
    if lost := count - len(read.took_ns):
        found.losses.append(f"{lost} of {count} lines did not arrive.")


@contextmanager
def _follow(where: Target) -> Iterator[tuple[str, Iterator[list[bytes]]]]:
    """Start `journalctl --follow` for a new identifier, and yield the identifier and its later lines.

    journalctl has shown a test line by then.
    """
    tag = f"journalkeeper-probe-{token_hex(4)}"
    with _connect(where, tag) as channel:
        channel.send(b"ready\n")
    wanted = f"--identifier={tag}"

    def has_entry() -> bool:
        with run_journalctl(["MESSAGE"], "--lines=1", wanted, directory=where.directory) as journalctl:
            return bool(journalctl.output.readline())

    wait_until(has_entry, NO_LINE, PATIENCE_S)  # journalctl does not follow a journal without entries of this boot
    with run_journalctl(["MESSAGE"], "--all", "--follow", "--no-tail", wanted, directory=where.directory) as journalctl:
        reader = read_lines(journalctl.output.fileno())
        wait_until(lambda: next(reader, None) != [], NO_LINE, PATIENCE_S)
        yield tag, reader


def _connect(where: Target, identifier: str) -> socket.socket:
    """Return a socket for lines of `identifier`, as sd_journal_stream_fd(3) makes it, with priority 6."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(os.fspath(where.sockets / "stdout"))
    channel.shutdown(socket.SHUT_RD)
    channel.sendall(f"{identifier}\n\n6\n0\n0\n0\n0\n".encode())
    return channel
