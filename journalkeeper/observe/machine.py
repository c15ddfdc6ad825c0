# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the evidence about the machine: the states of units from PID 1, where its journald stores its journal with the
size that our drop-in allows it, and the journal's own entries.

The journal is read in two passes: its newest entries of all kinds, and the rarer ones of boots, which reach further
back. Only trusted entries count: fields that begin with an underscore, and messages of PID 1 and journald.

Source: systemctl(1), show; org.freedesktop.systemd1(5).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from journalkeeper.health.evidence import Boot, Intake, Journal, Storage, Unit, Unknown
from journalkeeper.journald import conf, control, journalctl, layout
from journalkeeper.journald.journal_file import WallClock
from journalkeeper.journald.journalctl import Entry, decode_text, parse_number
from journalkeeper.model.errors import FileError, NeedsRootError
from journalkeeper.model.units import parse_span_us

RETENTION: Final = "/etc/systemd/journald.conf.d/60-journalkeeper-retention.conf"
"""The drop-in that `journalkeeper retention --apply` writes."""

ANSWER_S: Final = 10.0
"""PID 1 answers in milliseconds, unless it is stopped or its bus is."""

OURS: Final = tuple(f"journalkeeper{name}" for name in (".service", ".timer", "-defrag.timer", "-shutdown.service"))
PROPERTIES: Final = "Id,ActiveState,SubState,UnitFileState,Result,StateChangeTimestampMonotonic"

STARTUP_FINISHED: Final = "b07a249cd024414a82dd00cd181378ff"
STARTUP_IN_CONTAINER: Final = "eed00a68ffd84e31882105fd973abdd1"
"""A user's manager logs it too, but only the system's manager has PID 1."""

BOOTS: Final = (
    *("_PID=1", f"MESSAGE_ID={STARTUP_FINISHED}", f"MESSAGE_ID={STARTUP_IN_CONTAINER}", "+"),
    "_TRANSPORT=driver",
)
"""What selects the entries about boots, for journalctl."""

BOOT_FIELDS: Final = ("MESSAGE", "USERSPACE_USEC", "_TRANSPORT")
ENTRY_FIELDS: Final = ("_TRANSPORT", "_SOURCE_REALTIME_TIMESTAMP", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER")


def read_units(names: Sequence[str] = OURS) -> tuple[Unit, ...] | Unknown:
    """Return each named unit, a missing one as inactive; Unknown if systemctl fails or takes longer than ANSWER_S."""
    words = ("systemctl", "show", f"--property={PROPERTIES}", "--", *names)
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=ANSWER_S)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()
        return Unknown(f"PID 1 cannot be asked for the states of units: {said}")
    now_us = time.monotonic_ns() // 1000
    shown = [dict(line.split("=", 1) for line in block.splitlines()) for block in done.stdout.strip().split("\n\n")]
    return tuple(
        Unit(
            *(one["Id"], one["ActiveState"], one["SubState"], one["UnitFileState"], one.get("Result", "")),
            age_us=max(0, now_us - int(one.get("StateChangeTimestampMonotonic") or now_us)),
        )
        for one in shown
    )


def read_storage() -> Storage | Unknown:
    """Return the main journald's Storage, also from RETENTION; Unknown without a socket, or if a file is unreadable."""
    if not os.path.exists(control.get_socket_path()):
        return Unknown("no journald runs here")
    target = None
    try:
        settings = conf.read_settings()
        with suppress(FileNotFoundError), open(RETENTION, encoding="utf-8", errors="replace") as file:
            target = conf.parse_target(file.read(4096))
    except (FileError, OSError) as error:
        return Unknown(str(error))
    return Storage(
        storage=settings.storage,
        persistent_directory=os.path.isdir(layout.TOP),
        flushed=os.path.exists(f"{control.RUNTIME}/flushed"),
        retention=target,
    )


def read_journal(directory: str | None, most: int, *, boots: bool = True) -> Journal | Unknown:
    """Return evidence from the newest `most` entries of this host's journal, or of that in `directory`.

    Its boots are read only with `boots`, from as many messages about them.
    Return Unknown if the caller may not read the whole journal, or journalctl cannot be run.

    Raises: KeeperError if journalctl fails midway; NeedsRootError, only with `directory`, if nothing in it may be read.
    """
    try:
        if not journalctl.can_see_all(directory):
            return Unknown("the whole journal may be read by root and the group systemd-journal only", needs_root=True)
        read = partial(journalctl.read_entries, most=most, directory=directory)
        found = _collect_boots(read(BOOT_FIELDS, BOOTS)) if boots else ()
        entries, oldest_us, intake = _collect_intake(read(ENTRY_FIELDS, ()))
    except NeedsRootError as error:
        if directory is not None:
            raise
        return Unknown(str(error), needs_root=True)
    except OSError as error:
        return Unknown(f"journalctl cannot be run: {error.strerror}")
    return Journal(entries, oldest_us, complete=entries < most, intake=intake, boots=found)


def _collect_boots(found: Iterable[Entry]) -> tuple[Boot, ...]:
    """Return a Boot per boot ID or "" in `found` (BOOTS): first entry's time, first userspace and flush durations."""
    boots: dict[str, dict[str, Any]] = {}
    for entry in found:
        boot = boots.setdefault(decode_text(entry.get("_BOOT_ID")), {"when_us": _when_us(entry)})
        if decode_text(entry.get("_TRANSPORT")) != "driver":
            boot.setdefault("userspace_us", parse_number(entry.get("USERSPACE_USEC")))
        elif said := journalctl.FLUSHED.match(decode_text(entry.get("MESSAGE"))):
            with suppress(ValueError):  # another version's words
                boot.setdefault("flush_us", parse_span_us(said[1]))
    return tuple(Boot(boot_id, **facts) for boot_id, facts in boots.items())


def _collect_intake(found: Iterable[Entry]) -> tuple[int, int | None, tuple[Intake, ...]]:
    """Return the number of entries, the first one's time or None, and the intake delays that no set clock distorts."""
    entries, oldest_us, intake, clock = 0, None, list[Intake](), WallClock()
    for entry in found:
        entries, oldest_us = entries + 1, _when_us(entry) if oldest_us is None else oldest_us
        if (delay := compute_intake(entry, clock)) is not None:
            intake.append(delay)
    return entries, oldest_us, tuple(intake)


def compute_intake(entry: Entry, clock: WallClock) -> Intake | None:
    """Pass the entry to `clock`. Return its intake delay; None if negative, unclear, or without a program's time."""
    when_us, monotonic_us = _when_us(entry), parse_number(entry.get("__MONOTONIC_TIMESTAMP")) or 0
    is_sent = decode_text(entry.get("_TRANSPORT")) in {"syslog", "journal"}
    sent_us = parse_number(entry.get("_SOURCE_REALTIME_TIMESTAMP")) if is_sent else None
    wait_us = None if sent_us is None else when_us - sent_us
    waited = clock.take_entry(decode_text(entry.get("_BOOT_ID")), when_us, monotonic_us, wait_us or 0)
    if not waited or wait_us is None:
        return None
    return Intake(when_us, wait_us, decode_text(entry.get("_SYSTEMD_UNIT") or entry.get("SYSLOG_IDENTIFIER")))


def _when_us(entry: Entry) -> int:
    """Return when journald received the entry (CLOCK_REALTIME), 0 if that is missing."""
    return parse_number(entry.get("__REALTIME_TIMESTAMP")) or 0
