# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rules about the machine, and about journalkeeper itself."""

from __future__ import annotations

import re
from typing import Final

from journalkeeper.health.evidence import Evidence, Unit, Unknown
from journalkeeper.health.finding import Facts, Finding, Severity, known, named
from journalkeeper.model import Result
from journalkeeper.model.manager import Manager
from journalkeeper.model.units import DAY_US, counted, format_span
from journalkeeper.model.waiting import long

ZEROING: Final = frozenset({252, 253})
"""systemd versions whose copy of a NOCOW archive can hold zeros: systemd #24150 and #31222."""

LOOPING: Final = re.compile(r"\b5\.16\.([0-4])(?![0-9])")
"""Kernels in which a defragmentation could loop for ever."""

BUILT: Final = re.compile(r"\b\d+\.\d+\.\d+\b")
"""A kernel's version in what uname(1) -v says: Debian's release has its ABI instead, as in 5.16.0-6-amd64."""

QUEUE: Final = 512
"""What PID 1 sets net.unix.max_dgram_qlen to on a host (systemd, bump_unix_max_dgram_qlen())."""

SERVICE: Final = "journalkeeper.service"
TIMER: Final = "journalkeeper.timer"
DEFRAG_TIMER: Final = "journalkeeper-defrag.timer"

STARVED_US: Final = 7 * DAY_US
"""What waits for a week is not put off for a busy day."""

FAILURES: Final = 3
"""Failed tries among what the record has of the last days: one or two are a file that vanished or a full disk's day."""


def faulty_systemd(evidence: Evidence) -> Finding | Unknown | None:
    """This version of systemd can archive a NOCOW file as zeros."""
    version = known(known(evidence.system).systemd)
    major = re.match(r"\d+", version)
    if major is None:
        return Unknown(f"systemd's version {version!r} is not understood")
    if int(major[0]) not in ZEROING or not any(one.nocow for one in known(evidence.look).host.instances):
        return None
    sentence = (
        f"systemd {version} copies a NOCOW file when it archives it, and after a crash at that moment the copy"
        " can hold zeros (systemd #24150, #31222); 254 has it mended."
    )
    remedy = ("journalctl --verify",)
    return Finding("faulty-systemd", Severity.ADVICE, {"systemd": version}, sentence, remedy)


def faulty_kernel(evidence: Evidence) -> Finding | None:
    """In this kernel a defragmentation can loop for ever."""
    system = known(evidence.system)
    built = BUILT.search(system.build)
    version = system.kernel if built is None else built[0]
    if not LOOPING.match(version):
        return None
    sentence = f"In kernel {version} a btrfs defragmentation can loop for ever; 5.16.5 has it mended."
    remedy = ("systemctl stop journalkeeper.service",)
    return Finding("faulty-kernel", Severity.PROBLEM, {"kernel": version}, sentence, remedy)


def short_queue(evidence: Evidence) -> Finding | Unknown | None:
    """The queue of journald's sockets is short: loggers block while journald waits for the disk."""
    system = known(evidence.system)
    if system.max_dgram_qlen is None:
        return Unknown("the kernel does not tell net.unix.max_dgram_qlen")
    if system.max_dgram_qlen >= QUEUE:
        return None
    sentence = (
        f"Only {system.max_dgram_qlen} messages queue at each of journald's sockets: while it waits for the disk,"
        f" programs block. systemd sets {QUEUE} on a host."
    )
    setting = f"net.unix.max_dgram_qlen={QUEUE}"
    remedy = (f"echo {setting} > /etc/sysctl.d/50-journal-queue.conf", f"sysctl {setting}", "reboot")
    facts: Facts = {"max_dgram_qlen": system.max_dgram_qlen}
    return Finding("short-queue", Severity.ADVICE, facts, sentence, remedy)


def keeper_down(evidence: Evidence) -> Finding | None:
    """Nothing keeps the journal in order: the service does not run, nor does the timer that stands in for it."""
    units = known(evidence.units)
    if is_up(units):
        return None
    service, timer = _unit(units, SERVICE), _unit(units, TIMER)
    severity, remedy = Severity.PROBLEM, ["systemctl enable --now journalkeeper.service"]
    if _failing(service):
        what = f"journalkeeper.service has failed ({service.result or service.sub})"
        remedy = ["journalctl -u journalkeeper -n 20", "systemctl restart journalkeeper.service"]
    elif not service.enabled:
        what = "journalkeeper is not installed as a service"
        severity, remedy = Severity.ADVICE, ["journalkeeper defrag"]
    elif "enabled" in {service.enabled, timer.enabled}:
        what = "journalkeeper.service is enabled and does not run"
    else:
        what, severity = "journalkeeper.service is installed and not enabled", Severity.ADVICE
    facts: Facts = {"state": service.active, "sub_state": service.sub, "result": service.result}
    sentence = f"{what}: nothing keeps the journal whole."
    return Finding("keeper-down", severity, facts, sentence, tuple(remedy))


def is_up(units: tuple[Unit, ...]) -> bool:
    """Whether the service runs, or a timer starts it or stands in for it."""
    service, timer, instead = (_unit(units, name) for name in (SERVICE, TIMER, DEFRAG_TIMER))
    running = service.active in {"active", "reloading", "activating"} or timer.sub == "waiting"
    return instead.active == "active" or (running and not _failing(service))


def _failing(service: Unit) -> bool:
    return service.active == "failed" or service.sub == "auto-restart"


def keeper_starved(evidence: Evidence) -> Finding | None:
    """Files with work that pays have waited for more than a day: a budget, a busy disk, a window that never opens."""
    record = known(evidence.record)
    waits = long(record.waiting, evidence.now_us)
    if not waits:
        return None
    oldest_us = evidence.now_us - waits[0].since_us
    reasons = sorted({wait.reason for wait in waits})
    have = f"{counted(len(waits), 'file')} {'has' if len(waits) == 1 else 'have'} waited"
    sentence = f"{have} for up to {format_span(oldest_us)}: {named(reasons)}."
    remedy = ("journalkeeper plan", "journalkeeper defrag --now")
    facts: Facts = {"files": len(waits), "oldest_us": oldest_us, "reasons": reasons}
    severity = Severity.PROBLEM if oldest_us >= STARVED_US else Severity.ADVICE
    return Finding("keeper-starved", severity, facts, sentence, remedy)


def keeper_failing(evidence: Evidence) -> Finding | None:
    """What journalkeeper tried has failed again and again, or the service says that it is degraded."""
    service = evidence.service
    if isinstance(service, Manager) and service.state == "degraded":
        reason = service.state_reason or "it does not say why"
        sentence = f"The service is degraded: {reason}."
        remedy = ("journalkeeper status", "journalctl -u journalkeeper -n 20")
        return Finding("keeper-failing", Severity.PROBLEM, {"state_reason": reason}, sentence, remedy)
    record = known(evidence.record)
    failed = [entry.outcome for entry in record.entries if entry.outcome.result is Result.FAILED]
    if len(failed) < FAILURES:
        return None
    reasons = sorted({str(outcome.reason) for outcome in failed})
    sentence = (
        f"{len(failed)} of {len(record.entries):,} tries in the last days failed ({named(reasons)}), the last one at"
        f" {named([failed[-1].path])}: {failed[-1].detail or failed[-1].reason}."
    )
    facts: Facts = {"failed": len(failed), "tries": len(record.entries), "reasons": reasons}
    return Finding("keeper-failing", Severity.PROBLEM, facts, sentence, ("journalkeeper history --since=-7d",))


def _unit(units: tuple[Unit, ...], name: str) -> Unit:
    """A unit by its name; one that PID 1 does not know is inactive."""
    return next((unit for unit in units if unit.name == name), Unit(name, "inactive", "dead"))
