# SPDX-License-Identifier: LGPL-2.1-or-later
"""The time that a program waits in syslog(3), which sends a blocking datagram to /dev/log.

The probe does as glibc: its socket has the default SO_SNDBUF. systemd keeps journald's socket while journald restarts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from itertools import repeat, takewhile
from pathlib import Path
from typing import Final

from journalkeeper.journald import conf
from journalkeeper.journald.journalctl import parse_text_fields
from journalkeeper.model.errors import UsageError
from journalkeeper.model.units import format_span
from journalkeeper.probe.base import (
    PATIENCE_S,
    Measurement,
    ProcessorTime,
    Steps,
    Target,
    sample,
    schedule,
    target,
)
from journalkeeper.probe.distribution import Series

IDENTIFIER: Final = "journalkeeper-probe"
ARRIVALS_PAUSE_S: Final = 0.2
MICROSECOND_NS: Final = 1000
"""The resolution of the journal's times, which are rounded down."""


def datagram(size_bytes: int, number: int = 0) -> bytes:
    """Return a syslog(3) message of `size_bytes` that contains `number`."""
    head = f"<14>{time.strftime('%b %e %T')} {IDENTIFIER}[{os.getpid()}]: {number:08d} "
    return head.ljust(size_bytes, "x").encode()


def count_messages(asked: Namespace) -> int:
    """Return the number of messages to send: on the host, at most half of journald's rate limit for one unit.

    Raises: UsageError if the host's limit would be exceeded.
    """
    count = sys.maxsize if asked.flat_out else max(1, round(asked.rate * asked.seconds))
    limit = conf.read_rate_limit()
    if not asked.host or not limit.burst or not limit.interval_us:
        return count
    half = limit.burst // 2
    if asked.flat_out:
        return half
    if min(count, asked.rate * limit.interval_us / 1e6) > half:
        raise UsageError(
            f"--host: at most {half} messages in {format_span(limit.interval_us)}, half of RateLimitBurst= "
            "in journald.conf(5); with more, other programs of the session lose messages. Lower --rate or --seconds"
        )
    return count


def measure(asked: Namespace) -> Steps:
    """Send messages to the chosen journald at the requested rate, and time each one: see `at`."""
    count = count_messages(asked)
    with target(host=asked.host, directory=asked.directory) as where:
        yield from at(where, asked, count)


def at(where: Target, asked: Namespace, count: int) -> Steps:
    """Send `count` messages, or as many as --seconds allows, to the journald `where`, and time each one.

    The series "until sent" has the duration of each send(2). The other series lasts from the same start to journald's
    own timestamp of the message. Both use CLOCK_MONOTONIC. The Measurement is yielded before the first message and
    after each one; notes and losses are complete when the generator has ended.
    """
    sent, taken = (Series(f"until {end}", planned=not asked.flat_out) for end in ("sent", "journald took it"))
    found = Measurement([sent, taken])
    yield found
    used, logger = ProcessorTime(), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    logger.connect(os.fspath(where.sockets / "dev-log"))
    send_buffer_bytes = logger.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    used.look(where.pid)
    used.look(os.getpid())
    planned = _flat_out(asked.seconds, count) if asked.flat_out else schedule(asked.rate, count)
    try:
        for _ in sample(sent, planned, lambda: logger.send(datagram(asked.size, len(sent.took_ns)))):
            yield found
    except OSError as error:
        found.faults.append(f"journald ended meanwhile ({error.strerror}): only the messages before that are shown")
    finally:
        found.notes.append(used.note(where.pid))
        begins = sent.begins_ns()
        for number, taken_ns in sorted(find_arrivals(where, found).items()):
            began_ns = sent.began_ns[number]
            taken.add(began_ns, taken_ns - began_ns, begins[number])
        found.notes.append(
            f"max_dgram_qlen {_qlen(where)}, SO_SNDBUF {send_buffer_bytes}; {asked.size} bytes a message"
        )
        if lost := len(sent.began_ns) - len(taken.began_ns):
            found.losses.append(f"{lost} of {len(sent.began_ns)} messages did not arrive in the journal.")
        logger.close()


def _flat_out(seconds: float, count: int) -> Iterator[int]:
    until_ns = time.monotonic_ns() + int(seconds * 1e9)
    return takewhile(lambda _: time.monotonic_ns() < until_ns, repeat(0, count))


def _qlen(where: Target) -> str:
    """Return max_dgram_qlen of the network namespace in which journald made its socket."""
    words = ["nsenter", f"--target={where.pid}", "--net", "cat", "/proc/sys/net/unix/max_dgram_qlen"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "?"


def find_arrivals(where: Target, found: Measurement) -> dict[int, int]:
    """Return the time (CLOCK_MONOTONIC, ns) at which journald received each message, by the message's number.

    Wait until all have arrived, or none has for PATIENCE_S. Wall clock times are not compared, because the clock may
    have been set since the messages were sent.
    """
    sent = found.series[0].began_ns
    words = [*where.journalctl, "--quiet", "--output=json", "--all", "--output-fields=MESSAGE"]
    words += [f"--identifier={IDENTIFIER}", f"_PID={os.getpid()}", f"_BOOT_ID={boot_id()}"]
    seen: dict[int, int] = {}
    patience_s = 0.0 if found.faults else PATIENCE_S
    deadline_s = time.monotonic() + patience_s
    while len(seen) < len(sent):
        before = len(seen)
        for entry in map(
            parse_text_fields, subprocess.run(words, capture_output=True, check=False).stdout.splitlines()
        ):
            taken_ns, number = int(entry["__MONOTONIC_TIMESTAMP"]) * 1000, int(entry["MESSAGE"][:8])
            if number < len(sent) and taken_ns > sent[0] - MICROSECOND_NS:
                seen[number] = taken_ns
        if len(seen) > before:
            deadline_s = time.monotonic() + patience_s
        elif time.monotonic() >= deadline_s:
            break
        time.sleep(ARRIVALS_PAUSE_S)
    return seen


def boot_id() -> str:
    """Return the id of this boot in the journal's form."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
