# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the evidence from the journal in two passes:

its newest entries of all kinds, and the rarer events that findings are about, which reach further back.

Only trusted entries count: fields that begin with an underscore, and messages of PID 1 and journald.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from journalkeeper.health.evidence import Boot, Dropped, Ended, Intake, Journal, Unknown
from journalkeeper.journald import journalctl
from journalkeeper.journald.entries import WallClock
from journalkeeper.journald.journalctl import Entry, compute_wait_us, decode_text, parse_number
from journalkeeper.model.errors import NeedsRootError
from journalkeeper.model.units import parse_span_us

STARTUP_FINISHED: Final = "b07a249cd024414a82dd00cd181378ff"
STARTUP_IN_CONTAINER: Final = "eed00a68ffd84e31882105fd973abdd1"
"""A user's manager logs it too, but only the system's manager has PID 1."""

UNIT_FAILURE_RESULT: Final = "d9b373ed55a64feb8242e02dbe79a49c"
"""Source: systemd/sd-messages.h."""

JOURNALD: Final = "systemd-journald.service"

LOST: Final = re.compile(r"(?:Suppressed|Missed) (\d{1,18}) (?:kernel messages|messages from (.+))", re.DOTALL)
"""Source: systemd 252 to 257, journald-rate-limit.c, journald-kmsg.c."""

EVENT_FIELDS: Final = ("MESSAGE", "MESSAGE_ID", "UNIT", "UNIT_RESULT", "USERSPACE_USEC", "_TRANSPORT")
ENTRY_FIELDS: Final = ("_TRANSPORT", "_SOURCE_REALTIME_TIMESTAMP", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER")


def read_journal(directory: str | None, most: int, namespaces: Sequence[str]) -> Journal | Unknown:
    """Return evidence from the newest `most` entries of this host's journal, or of that in `directory`, and its events.

    Return Unknown if the caller may not read the whole journal, or journalctl cannot be run.

    Raises: KeeperError if journalctl fails midway; NeedsRootError if nothing in `directory` may be read.
    """
    try:
        if not journalctl.can_see_all(directory):
            return Unknown("the whole journal may be read by root and the group systemd-journal only", needs_root=True)
        read = partial(journalctl.read_entries, most=most, directory=directory)
        events = list(read(EVENT_FIELDS, _match_boots_and_failures(namespaces)))
        entries, oldest_us, intake = _read_newest(read(ENTRY_FIELDS, ()))
    except NeedsRootError as error:
        if directory is not None:
            raise
        return Unknown(str(error), needs_root=True)
    except OSError as error:
        return Unknown(f"journalctl cannot be run: {error.strerror}")
    return Journal(
        entries=entries,
        oldest_us=oldest_us,
        complete=entries < most,
        intake=intake,
        events=len(events),
        events_oldest_us=_when_us(events[0]) if events else None,
        events_complete=len(events) < most,
        **_interpret_events(events),
    )


def _match_boots_and_failures(namespaces: Sequence[str]) -> list[str]:
    journalds = [JOURNALD, *(f"systemd-journald@{name}.service" for name in namespaces)]
    return [
        *("_PID=1", f"MESSAGE_ID={STARTUP_FINISHED}", f"MESSAGE_ID={STARTUP_IN_CONTAINER}", "+"),
        *("_PID=1", f"MESSAGE_ID={UNIT_FAILURE_RESULT}", *(f"UNIT={name}" for name in journalds), "+"),
        "_TRANSPORT=driver",
    ]


def _interpret_events(events: Sequence[Entry]) -> dict[str, Any]:
    """Return the fields `boots`, `dropped` and `ended` of a Journal. `events` begin with the oldest entry."""
    boots: dict[str, dict[str, Any]] = {}
    dropped: list[Dropped] = []
    ended: list[Ended] = []
    for entry in events:
        when_us, boot_id = _when_us(entry), decode_text(entry.get("_BOOT_ID"))
        kind, message = decode_text(entry.get("MESSAGE_ID")), decode_text(entry.get("MESSAGE"))
        boot = boots.setdefault(boot_id, {"first_us": when_us})  # of each fact, the first message counts
        if decode_text(entry.get("_TRANSPORT")) == "driver":
            if said := LOST.match(message):
                dropped.append(Dropped(when_us, (said[2] or "kernel").rpartition("/")[2], int(said[1])))
            elif said := journalctl.FLUSHED.match(message):
                with suppress(ValueError):  # another version's words
                    boot.setdefault("flush_us", parse_span_us(said[1]))
        elif kind in {STARTUP_FINISHED, STARTUP_IN_CONTAINER}:
            boot.setdefault("userspace_us", parse_number(entry.get("USERSPACE_USEC")))
        elif kind == UNIT_FAILURE_RESULT:
            ended.append(Ended(when_us, decode_text(entry.get("UNIT_RESULT"))))
    known = tuple(Boot(boot_id, **facts) for boot_id, facts in boots.items())
    return {"boots": known, "dropped": tuple(dropped), "ended": tuple(ended)}


def _read_newest(found: Iterable[Entry]) -> tuple[int, int | None, tuple[Intake, ...]]:
    """Return the number of entries, the oldest time or None, and the intake delays that no clock change distorts."""
    entries, oldest_us, intake, clock = 0, None, list[Intake](), WallClock()
    for entry in found:
        when_us, monotonic_us = _when_us(entry), parse_number(entry.get("__MONOTONIC_TIMESTAMP")) or 0
        entries, oldest_us = entries + 1, when_us if oldest_us is None else oldest_us
        is_sent = decode_text(entry.get("_TRANSPORT")) in {"syslog", "journal"}
        wait_us = compute_wait_us(entry) if is_sent else None
        waited = clock.take_entry(decode_text(entry.get("_BOOT_ID")), when_us, monotonic_us, wait_us or 0)
        if waited and wait_us is not None:
            unit = decode_text(entry.get("_SYSTEMD_UNIT")) or decode_text(entry.get("SYSLOG_IDENTIFIER"))
            intake.append(Intake(when_us, wait_us, unit))
    return entries, oldest_us, tuple(intake)


def _when_us(entry: Entry) -> int:
    return parse_number(entry.get("__REALTIME_TIMESTAMP")) or 0
