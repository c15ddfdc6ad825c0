# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe syslog`: how long a program waits in syslog(3), and how long its message waits for journald.

Sends messages to the host's journald as syslog(3) does, and measures how long each call takes and how
long each message waits until journald takes it.

examples:
  sudo journalkeeper probe syslog --seconds=2
  sudo journalkeeper probe syslog --seconds=2 --rate=1000 -j
"""

# The probe does as glibc: its socket has the default SO_SNDBUF. systemd keeps journald's socket while journald
# restarts.

from __future__ import annotations

import socket
import time
from argparse import Namespace
from secrets import token_hex

from journalkeeper.journald import conf, control
from journalkeeper.journald.journalctl import read_entries
from journalkeeper.model.errors import UsageError
from journalkeeper.model.units import format_span
from journalkeeper.probe.base import MOMENT_S, PATIENCE_S, Measurement, Series, schedule


def count_messages(asked: Namespace) -> int:
    """Return the number of messages to send, at least 1.

    Raises: UsageError if more than half of RateLimitBurst= messages fall in one RateLimitIntervalSec=; FileError if
    journald.conf cannot be read.
    """
    count: int = max(1, round(asked.rate * asked.seconds))
    settings = conf.read_settings()
    half, interval_us = settings.rate_limit_burst // 2, settings.rate_limit_interval_us
    if settings.rate_limit_burst and interval_us and min(count, asked.rate * interval_us / 1e6) > half:
        most = f"at most {half} messages in {format_span(interval_us)}, half of RateLimitBurst="
        raise UsageError(f"{most}, so that no program loses messages; lower --rate or --seconds")
    return count


def measure(asked: Namespace, found: Measurement, sockets: str = control.RUNTIME) -> None:
    """Send messages at --rate for --seconds to the journald with the directory `sockets`, and measure each one's waits.

    One series has the time in send(2), the other that until journald's own timestamp; both begin when the message was
    due. The second is filled at the end; messages that do not arrive within PATIENCE_S are a loss. A failed send is a
    fault: it ends the sending, and late messages are not waited for.

    Raises: KeeperError if no journald has the socket; as `count_messages` and `read_entries`.
    """
    count, tag = count_messages(asked), f"journalkeeper-probe-{token_hex(4)}"
    sent, taken, planned_ns = Series("program waits"), Series("message waits for journald"), list[int]()
    with control.connect(f"{sockets}/dev-log", socket.SOCK_DGRAM) as logger:
        found.series += [sent, taken]
        try:
            for due_ns in schedule(asked.rate, count):
                text = f"<14>{time.strftime('%b %e %T')} {tag}: {len(planned_ns):08d} ".ljust(asked.size, "x")
                planned_ns.append(due_ns)
                logger.send(text.encode())
                sent.waits_ns.append(time.monotonic_ns() - due_ns)
        except OSError as error:
            found.faults.append(f"journald ended meanwhile ({error.strerror}): only the messages before that are shown")
        finally:
            until_s = time.monotonic() + (0 if found.faults else PATIENCE_S)
            arrived_ns = read_arrivals(tag, asked.directory)
            while len(arrived_ns) < len(sent.waits_ns) and time.monotonic() < until_s:
                time.sleep(MOMENT_S)
                arrived_ns = read_arrivals(tag, asked.directory)
            taken.waits_ns.extend(arrived_ns[number] - planned_ns[number] for number in sorted(arrived_ns))
            if (lost := len(sent.waits_ns) - len(taken.waits_ns)) > 0:
                found.losses.append(f"{lost} of {len(sent.waits_ns)} messages did not arrive in the journal.")


def read_arrivals(tag: str, directory: str | None) -> dict[int, int]:
    """Return when journald received each message of `tag`, all by `measure` (CLOCK_MONOTONIC, ns), by its number."""
    entries = read_entries(["MESSAGE"], ["--all", f"--identifier={tag}"], most=None, directory=directory)
    return {int(entry["MESSAGE"][:8]): int(entry["__MONOTONIC_TIMESTAMP"]) * 1000 for entry in entries}
