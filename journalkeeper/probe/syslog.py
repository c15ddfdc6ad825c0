# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe syslog`: how long a program waits in syslog(3), and how long its message waits for journald.

Sends messages as syslog(3) does, and measures how long each call takes and how long each message
waits until journald takes it. It starts a journald of its own, or asks the host's with --host.

examples:
  sudo journalkeeper probe syslog --seconds=2
  sudo journalkeeper probe syslog --seconds=2 --rate=1000 -j
"""

# The probe does as glibc: its socket has the default SO_SNDBUF. systemd keeps journald's socket while journald
# restarts.

from __future__ import annotations

import os
import socket
import time
from argparse import Namespace
from secrets import token_hex
from typing import Final

from journalkeeper.journald import conf
from journalkeeper.journald.journalctl import parse_text_fields, run_journalctl
from journalkeeper.model.errors import UsageError
from journalkeeper.model.units import format_span
from journalkeeper.probe.base import PATIENCE_S, Measurement, Steps, Target, sample, schedule, target
from journalkeeper.probe.distribution import Series
from journalkeeper.probe.scratch_volume import run

ARRIVALS_PAUSE_S: Final = 0.2


def datagram(tag: str, size_bytes: int, number: int = 0) -> bytes:
    """Return a syslog(3) message from the identifier `tag`, with `number`, padded to `size_bytes`."""
    return f"<14>{time.strftime('%b %e %T')} {tag}: {number:08d} ".ljust(size_bytes, "x").encode()


def count_messages(asked: Namespace) -> int:
    """Return the number of messages to send, at least 1.

    Raises: UsageError with --host, if more than half of RateLimitBurst= messages fall in one RateLimitIntervalSec=;
    FileError if journald.conf cannot be read.
    """
    count: int = max(1, round(asked.rate * asked.seconds))
    found = conf.read_settings()
    interval_us = found.rate_limit_interval_us
    if not (asked.host and found.rate_limit_burst and interval_us):
        return count
    half = found.rate_limit_burst // 2
    if min(count, asked.rate * interval_us / 1e6) > half:
        most = f"at most {half} messages in {format_span(interval_us)}, half of RateLimitBurst="
        raise UsageError(f"--host: {most}, so that no program loses messages; lower --rate or --seconds")
    return count


def measure(asked: Namespace) -> Steps:
    """Measure at the journald that the options choose. Raises: as `count_messages`, `target`, `measure_at`."""
    count = count_messages(asked)
    with target(host=asked.host, directory=asked.directory) as where:
        yield from measure_at(where, asked, count)


def measure_at(where: Target, asked: Namespace, count: int) -> Steps:
    """Send `count` messages at --rate to the journald `where`, and time each one.

    One series has the time in send(2), the other that until journald's own timestamp. The second is filled at the end,
    when the messages have arrived or none has for PATIENCE_S; missing ones are a loss, and a failed send is a fault.

    Raises: OSError if the socket cannot be reached; KeeperError if its network namespace cannot be read.
    """
    sent, taken = (Series(name, planned=True) for name in ("program waits", "message waits for journald"))
    found = Measurement([sent, taken])
    yield found
    tag = f"journalkeeper-probe-{token_hex(4)}"

    def send() -> None:
        logger.send(datagram(tag, asked.size, len(sent.took_ns)))

    qlen = run("nsenter", f"--target={where.pid}", "--net", "cat", "/proc/sys/net/unix/max_dgram_qlen").strip()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as logger:
        logger.connect(os.fspath(where.sockets / "dev-log"))
        send_buffer_bytes = logger.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        try:
            for _ in sample(sent, schedule(asked.rate, count), send):
                yield found
        except OSError as error:
            found.faults.append(f"journald ended meanwhile ({error.strerror}): only the messages before that are shown")
        finally:
            arrived_ns = find_arrivals(where, tag, len(sent.began_ns), 0 if found.faults else PATIENCE_S)
            for number, (began_ns, planned_ns) in enumerate(zip(sent.began_ns, sent.planned_ns, strict=False)):
                if number in arrived_ns:
                    taken.add(began_ns, arrived_ns[number] - began_ns, planned_ns)
            found.notes.append(f"max_dgram_qlen {qlen}, SO_SNDBUF {send_buffer_bytes}; {asked.size} bytes a message")
            if lost := len(sent.began_ns) - len(taken.began_ns):
                found.losses.append(f"{lost} of {len(sent.began_ns)} messages did not arrive in the journal.")


def find_arrivals(where: Target, tag: str, count: int, patience_s: float) -> dict[int, int]:
    """Return the time (CLOCK_MONOTONIC, ns) at which journald received each message, by the message's number.

    Wait until `count` messages of `tag` have arrived, or no new one has for `patience_s`; those are missing in the
    result.
    """
    seen: dict[int, int] = {}
    deadline_s = time.monotonic() + patience_s
    while True:
        with run_journalctl(["MESSAGE"], "--all", f"--identifier={tag}", directory=where.directory) as journalctl:
            entries = list(map(parse_text_fields, journalctl.output))
        before = len(seen)
        seen = {int(entry["MESSAGE"][:8]): int(entry["__MONOTONIC_TIMESTAMP"]) * 1000 for entry in entries}
        if len(seen) > before:
            deadline_s = time.monotonic() + patience_s
        if len(seen) >= count or time.monotonic() >= deadline_s:
            return seen
        time.sleep(ARRIVALS_PAUSE_S)
