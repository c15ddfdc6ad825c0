# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the evidence from the journal in two passes:

its newest entries of all kinds, and the rarer events that findings are about, which reach further back.

Only trusted entries count: fields that begin with an underscore, and messages of PID 1 and journald.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from journalkeeper.health.evidence import Boot, Dropped, Ended, Intake, Journal, Unknown
from journalkeeper.journald.journalctl import (
    FLUSHED,
    Entry,
    can_see_all,
    compute_wait_us,
    decode_text,
    parse_number,
    read_entries,
)
from journalkeeper.model.errors import NeedsRootError
from journalkeeper.model.units import parse_span_us

STARTUP_FINISHED: Final = "b07a249cd024414a82dd00cd181378ff"
STARTUP_IN_CONTAINER: Final = "eed00a68ffd84e31882105fd973abdd1"
"""A user's manager logs it too, but only the system's manager has PID 1."""

UNIT_STARTING: Final = "7d4958e842da4a758f6c1cdc7b36dcc5"
UNIT_STARTED: Final = "39f53479d3a045ac8e11786248231fbf"
UNIT_FAILURE_RESULT: Final = "d9b373ed55a64feb8242e02dbe79a49c"
JOURNAL_DROPPED: Final = "a596d6fe7bfa4994828e72309e95d61e"
JOURNAL_MISSED: Final = "e9bf28e6e834481bb6f48f548ad13606"
"""Source: systemd/sd-messages.h."""

FLUSH: Final = "systemd-journal-flush.service"
JOURNALD: Final = "systemd-journald.service"

SUPPRESSED: Final = re.compile(r"Suppressed (\d{1,18}) messages from (.+)", re.DOTALL)
MISSED: Final = re.compile(r"Missed (\d{1,18}) kernel messages")
"""Source: systemd 252 to 257, journald-rate-limit.c, journald-kmsg.c."""

EVENT_FIELDS: Final = (
    *("MESSAGE", "MESSAGE_ID", "UNIT", "UNIT_RESULT", "USERSPACE_USEC", "N_DROPPED"),
    *("_TRANSPORT", "_SOURCE_REALTIME_TIMESTAMP", "OBJECT_SYSTEMD_UNIT"),
)
ENTRY_FIELDS: Final = ("_TRANSPORT", "_SOURCE_REALTIME_TIMESTAMP", "_SYSTEMD_UNIT", "SYSLOG_IDENTIFIER")
STEP_US: Final = 100_000
"""A larger jump between the clocks of two entries means that the clock was set, not slewed."""

AFTER_STEP_US: Final = 30_000_000
"""For this long after the clock was set, an entry may have been sent before."""


def read_journal(directory: str | None, most: int, namespaces: Sequence[str]) -> Journal | Unknown:
    """Read the journal of this host, or the one in `directory`.

    Raises: KeeperError if journalctl fails midway; NeedsRootError if nothing in `directory` may be read.
    """
    try:
        if not can_see_all(directory):
            return Unknown("the whole journal may be read by root and the group systemd-journal only", needs_root=True)
        events = _read_events(
            read_entries(EVENT_FIELDS, _event_matches(namespaces), most=most, directory=directory), most
        )
        return _read_newest(read_entries(ENTRY_FIELDS, (), most=most, directory=directory), most, events)
    except NeedsRootError as error:
        if directory is not None:
            raise
        return Unknown(str(error), needs_root=True)
    except OSError as error:
        return Unknown(f"journalctl cannot be run: {error.strerror}")


def _event_matches(namespaces: Sequence[str]) -> list[str]:
    """Return the journalctl matches for the messages that `_read_events` needs.

    They are PID 1's messages on boots, on the journal's flush and on journald, and journald's own messages.
    """
    journalds = [JOURNALD, *(f"systemd-journald@{name}.service" for name in namespaces)]
    return [
        *("_PID=1", f"MESSAGE_ID={STARTUP_FINISHED}", f"MESSAGE_ID={STARTUP_IN_CONTAINER}", "+"),
        *("_PID=1", f"UNIT={FLUSH}", f"MESSAGE_ID={UNIT_STARTING}", f"MESSAGE_ID={UNIT_STARTED}", "+"),
        *("_PID=1", f"MESSAGE_ID={UNIT_FAILURE_RESULT}", *(f"UNIT={name}" for name in journalds), "+"),
        "_TRANSPORT=driver",
    ]


def _read_events(found: Iterator[Entry], most: int) -> Journal:
    """Return a Journal from the messages about events: boots, their flushes, lost messages, and ends of journald.

    The parts about ordinary entries are empty; `_read_newest` adds them.
    """
    boots: dict[str, Boot] = {}
    starting: dict[str, int] = {}
    logged_us: dict[str, int | None] = {}
    dropped: list[Dropped] = []
    ended: list[Ended] = []
    rows = list(found)
    for entry in reversed(rows):
        when_us, kind = _when_us(entry), decode_text(entry.get("MESSAGE_ID"))
        boot_id = decode_text(entry.get("_BOOT_ID"))
        boot = boots.setdefault(boot_id, Boot(boot_id, when_us))
        if decode_text(entry.get("_TRANSPORT")) == "driver":
            dropped += _find_lost_messages(entry, when_us, kind)
            if flushed := FLUSHED.match(decode_text(entry.get("MESSAGE"))):
                logged_us.setdefault(boot_id, _span_us(flushed[1]))
        elif kind in {STARTUP_FINISHED, STARTUP_IN_CONTAINER} and boot.userspace_us is None:
            boots[boot_id] = boot._replace(userspace_us=parse_number(entry.get("USERSPACE_USEC")))
        elif kind == UNIT_STARTING:
            starting[boot_id] = _parse_sent_us(entry)
        elif kind == UNIT_STARTED and boot.flush_us is None and boot_id in starting:
            took_us = _parse_sent_us(entry) - starting[boot_id]
            boots[boot_id] = boot._replace(flush_us=took_us if took_us >= 0 else None)  # the clock was set back
        elif kind == UNIT_FAILURE_RESULT:
            ended.append(Ended(when_us, decode_text(entry.get("UNIT")), decode_text(entry.get("UNIT_RESULT"))))
    for boot_id, boot in boots.items():
        if boot.flush_us is None:
            boots[boot_id] = boot._replace(flush_us=logged_us.get(boot_id))
    return Journal(
        entries=0,
        oldest_us=None,
        complete=True,
        events=len(rows),
        events_oldest_us=_when_us(rows[-1]) if rows else None,
        events_complete=len(rows) < most,
        boots=tuple(boots.values()),
        dropped=tuple(dropped),
        ended=tuple(ended),
    )


def _find_lost_messages(entry: Entry, when_us: int, kind: str) -> list[Dropped]:
    """Return the messages that journald reports as lost in this entry."""
    said = decode_text(entry.get("MESSAGE"))
    if kind == JOURNAL_MISSED and (missed := MISSED.match(said)):
        return [Dropped(when_us, "kernel", int(missed[1]))]
    if kind == JOURNAL_DROPPED and (suppressed := SUPPRESSED.match(said)):
        counted = parse_number(entry.get("N_DROPPED"))
        unit = decode_text(entry.get("OBJECT_SYSTEMD_UNIT")) or suppressed[2].rpartition("/")[2]
        return [Dropped(when_us, unit, int(suppressed[1]) if counted is None else counted)]
    return []


def _span_us(said: str) -> int | None:
    try:
        return parse_span_us(said)
    except ValueError:
        return None  # another version's words


def _read_newest(found: Iterator[Entry], most: int, events: Journal) -> Journal:
    """Return `events` completed by the newest entries `found`, of which there are at most `most`.

    The result has their number, the time of the oldest one, and the intake delay of each entry with two timestamps. It
    is `complete` if there are fewer than `most` entries.
    """
    number_of, oldest_us = 0, None
    taken: list[tuple[Intake, int, str]] = []
    for entry in found:
        number_of, oldest_us = number_of + 1, _when_us(entry)
        transport = decode_text(entry.get("_TRANSPORT"))
        if transport in {"syslog", "journal"} and (wait := compute_wait_us(entry)) is not None:
            unit = decode_text(entry.get("_SYSTEMD_UNIT")) or decode_text(entry.get("SYSLOG_IDENTIFIER"))
            offset_us = oldest_us - (parse_number(entry.get("__MONOTONIC_TIMESTAMP")) or 0)
            taken.append((Intake(oldest_us, wait, unit), offset_us, decode_text(entry.get("_BOOT_ID"))))
    return events._replace(
        entries=number_of,
        oldest_us=oldest_us,
        complete=number_of < most,
        intake=tuple(_leave_out_clock_steps(taken)),
    )


def _leave_out_clock_steps(taken: list[tuple[Intake, int, str]]) -> list[Intake]:
    """Return the waits, the oldest first, without those that a change of the clock made or may have made.

    Each element of `taken` has the distance of the two clocks at its entry, and its boot.
    """
    kept: list[Intake] = []
    before: tuple[int, str] | None = None
    doubtful_us = 0
    for one, offset_us, boot_id in reversed(taken):
        if before is not None and before[1] == boot_id and abs(offset_us - before[0]) > STEP_US:
            doubtful_us = one.when_us + AFTER_STEP_US
            step_us = abs(offset_us - before[0])
        before = offset_us, boot_id
        if one.wait_us < 0 or (one.when_us < doubtful_us and one.wait_us > step_us - STEP_US):
            continue
        kept.append(one)
    return kept


def _when_us(entry: Entry) -> int:
    """Return the time (CLOCK_REALTIME) at which journald received the entry; 0 if the field is damaged."""
    return parse_number(entry.get("__REALTIME_TIMESTAMP")) or 0


def _parse_sent_us(entry: Entry) -> int:
    """Return when the entry was sent, or when it was received if that is unknown."""
    return _when_us(entry) - (compute_wait_us(entry) or 0)
