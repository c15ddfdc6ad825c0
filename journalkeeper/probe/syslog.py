# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long a program waits in syslog(3), which sends a blocking datagram to /dev/log.

As glibc does it: the default SO_SNDBUF, and one new connection where the old one is refused.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import repeat, takewhile
from pathlib import Path
from typing import Final

from journalkeeper.journald import conf
from journalkeeper.journald.journalctl import plain
from journalkeeper.model.errors import UsageError
from journalkeeper.model.units import format_span
from journalkeeper.probe.base import PATIENCE_S, Measurement, Steps, Target, at_the_end, floor, sample, schedule, target
from journalkeeper.report.distribution import Series

IDENTIFIER: Final = "journalkeeper-probe"


class Logger:
    """glibc's syslog(3) at a socket."""

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._socket = self._connected()

    def _connected(self) -> socket.socket:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.send_buffer_bytes = channel.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        channel.connect(self._path)
        return channel

    def send(self, datagram: bytes) -> None:
        """Send it, and wait while the queue is full."""
        try:
            self._socket.send(datagram)
        except ConnectionError:
            self.close()
            self._socket = self._connected()
            self._socket.send(datagram)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


def datagram(size_bytes: int, number: int = 0) -> bytes:
    """A message as syslog(3) sends it, of so many bytes, with its number."""
    head = f"<14>{time.strftime('%b %e %T')} {IDENTIFIER}[{os.getpid()}]: {number:08d} "
    return head.ljust(size_bytes, "x").encode()


def allowed(asked: Namespace) -> int:
    """How many messages to send: on the host at most half of what journald takes from one unit.

    Raises: UsageError.
    """
    count = sys.maxsize if asked.flat_out else max(1, round(asked.rate * asked.seconds))
    limit = conf.rate_limit()
    if not asked.host or not limit.burst or not limit.interval_us:
        return count
    half = limit.burst // 2
    if asked.flat_out:
        return half
    if min(count, asked.rate * limit.interval_us / 1e6) > half:
        raise UsageError(
            f"--host: at most {half} messages in {format_span(limit.interval_us)}, half of RateLimitBurst= "
            "in journald.conf(5), or others of the session lose theirs; lower --rate or --seconds"
        )
    return count


def measured(asked: Namespace) -> Steps:
    """Log as `asked` says to the journald that it names."""
    if asked.host and asked.starve is not None:
        raise UsageError("--starve is not for the host's journald; leave out --host")
    count = allowed(asked)
    with target(host=asked.host, directory=asked.directory) as where:
        yield from at(where, asked, count)


def at(where: Target, asked: Namespace, count: int) -> Steps:
    """The measurement at one journald."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        sink = floor(lambda: (near.send(datagram(asked.size)), far.recv(asked.size)))
    sent, taken = (Series(f"until {end}", planned=not asked.flat_out) for end in ("sent", "journald took it"))
    found = Measurement([sent, taken], sink)
    yield found
    logger = Logger(where.sockets / "dev-log")
    planned = _flat_out(asked.seconds, count) if asked.flat_out else schedule(asked.rate, count)
    words = (sys.executable, "-m", "journalkeeper.probe.starve", str(where.pid), str(asked.starve))
    try:
        with nullcontext() if asked.starve is None else at_the_end(*words):
            for _ in sample(sent, planned, lambda: logger.send(datagram(asked.size, len(sent.took_ns)))):
                yield found
    except OSError as error:
        found.faults.append(f"journald ended meanwhile ({error.strerror}): what was sent before is shown")
    finally:
        begins = sent.begins_ns()
        for number, taken_ns in sorted(arrived(where, found).items()):
            began_ns = sent.began_ns[number]
            taken.add(began_ns, taken_ns - found.wall_ns - began_ns, begins[number])
        found.notes.append(
            f"max_dgram_qlen {_qlen(where)}, SO_SNDBUF {logger.send_buffer_bytes}; {asked.size} bytes a message; "
            f"{len(sent.began_ns)} sent, {len(taken.began_ns)} arrived"
        )
        logger.close()


def _flat_out(seconds: float, count: int) -> Iterator[int]:
    until_ns = time.monotonic_ns() + int(seconds * 1e9)
    return takewhile(lambda _: time.monotonic_ns() < until_ns, repeat(0, count))


def _qlen(where: Target) -> str:
    """The sysctl of the network namespace in which journald made its socket."""
    words = ["nsenter", f"--target={where.pid}", "--net", "cat", "/proc/sys/net/unix/max_dgram_qlen"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "?"


def arrived(where: Target, found: Measurement) -> dict[int, int]:
    """When journald took our messages, by their numbers: when it has taken all, or no more come."""
    sent = found.series[0].began_ns
    if not sent:
        return {}
    since_us = (sent[0] + found.wall_ns) // 1000
    words = [*where.journalctl, "--quiet", "--output=json", "--all", "--output-fields=MESSAGE"]
    words += [f"--since=@{since_us / 1e6:.6f}", f"--identifier={IDENTIFIER}", f"_PID={os.getpid()}"]
    seen: dict[int, int] = {}
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        before = len(seen)
        lines = subprocess.run(words, capture_output=True, check=False).stdout.splitlines()
        seen = {int(one["MESSAGE"][:8]): int(one["__REALTIME_TIMESTAMP"]) * 1000 for one in map(plain, lines)}
        if len(seen) == len(sent) or (seen and len(seen) == before):
            break
        time.sleep(0.5)
    return seen
