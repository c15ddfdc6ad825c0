# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rules about the machine: versions of systemd and of the kernel, the length of journald's queues."""

from __future__ import annotations

import re
from typing import Final

from journalkeeper.health.evidence import Evidence, Unknown
from journalkeeper.health.finding import Facts, Finding, Severity, require

ZEROING: Final = frozenset({252, 253})
"""systemd versions whose copy of a NOCOW archive can hold zeros: systemd #24150 and #31222."""

QUEUE: Final = 512
"""The value of net.unix.max_dgram_qlen that PID 1 sets on a host (systemd, bump_unix_max_dgram_qlen())."""


def faulty_systemd(evidence: Evidence) -> Finding | Unknown | None:
    """This version of systemd can archive a NOCOW file as zeros."""
    version = require(require(evidence.system).systemd)
    major = re.match(r"\d+", version)
    if major is None:
        return Unknown(f"systemd's version {version!r} is not understood")
    if int(major[0]) not in ZEROING or not any(one.nocow for one in require(evidence.look).host.instances):
        return None
    sentence = (
        f"systemd {version} copies a NOCOW file when it archives it, and after a crash at that moment the copy"
        " can hold zeros (systemd #24150, #31222); 254 has it mended."
    )
    remedy = ("journalctl --verify",)
    return Finding("faulty-systemd", Severity.ADVICE, {"systemd": version}, sentence, remedy)


def short_queue(evidence: Evidence) -> Finding | Unknown | None:
    """The queue of journald's sockets is short: loggers block while journald waits for the disk."""
    system = require(evidence.system)
    if system.max_dgram_qlen is None:
        return Unknown("the kernel does not show net.unix.max_dgram_qlen")
    if system.max_dgram_qlen >= QUEUE:
        return None
    sentence = (
        f"Only {system.max_dgram_qlen} messages queue at each of journald's sockets: while it waits for the disk,"
        f" programs block. systemd sets {QUEUE} on a host. A socket that is open keeps its queue until the next boot."
    )
    setting = f"net.unix.max_dgram_qlen={QUEUE}"
    remedy = (f"echo {setting} > /etc/sysctl.d/50-journal-queue.conf", f"sysctl {setting}")
    facts: Facts = {"max_dgram_qlen": system.max_dgram_qlen}
    return Finding("short-queue", Severity.ADVICE, facts, sentence, remedy)
