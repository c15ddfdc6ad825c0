# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the log of the service, to journald with fields or to stderr, and its messages to the service manager.

Logging never blocks. A line that journald does not accept at once is lost; the history has each outcome. If the service
waited for journald while journald waits for the service's writes, neither could continue.

Therefore it does not use systemd.journal.send: sd_journal_sendv() sends on a blocking socket. A stuck journald (its
queue is net.unix.max_dgram_qlen long, 10 by default) blocks every thread that calls it. A thread of its own is no help:
systemd-python 235 holds the interpreter's lock during the call, so all threads wait. `encode` implements the whole
protocol. For the same reason stderr is not used if it is a stream to journald.

Every value is escaped (`escape`), so that it stays one line whatever a file's name contains. A name can then not
forge the priority of a line on stderr or control a terminal. It cannot change the text of the catalog either, into
which `journalctl -x` copies fields.

The lines go into the files that the service watches. That makes no loop: an appended line causes a look at most once in
a flush interval. A lasting condition is logged once, and a look without work logs nothing. journald
itself limits the rest (RateLimitBurst=).

Source: systemd's doc JOURNAL_NATIVE_PROTOCOL; src/libsystemd/sd-journal/journal-send.c; systemd.exec(5),
$JOURNAL_STREAM; systemd.journal-fields(7); sd_notify(3); sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Final

from systemd import daemon

from journalkeeper.model import Outcome, Reason, Result
from journalkeeper.model.run import Report
from journalkeeper.model.schema import to_columns
from journalkeeper.model.sentences import describe_outcome
from journalkeeper.model.units import escape
from journalkeeper.policy import nocow
from journalkeeper.policy.deferral import PASSING

SOCKET: Final = "/run/systemd/journal/socket"

FIELD_CHARACTERS: Final = 8192
"""A longer value is cut: many together must fit one datagram (net.core.wmem_default, 208 KiB)."""

ERROR, WARNING, INFO = 3, 4, 6
"""Syslog priorities."""

SAY_AGAIN_S: Final = 86400.0
"""A condition that lasts is logged once a day, because every logged line is one more flush to wake up for."""

FORGET_S: Final = 2 * SAY_AGAIN_S
"""A condition is over that was not logged again in this time."""

LASTING_REASONS: Final = {
    **dict.fromkeys((*nocow.UNWANTED, Reason.IO_ERROR, Reason.REFUSED), WARNING),
    Reason.INTERNAL_ERROR: ERROR,
}
"""The reasons to skip a file or directory that are logged, with their priorities."""


class Event(StrEnum):
    """The subject of a line, by its MESSAGE_ID; units/journalkeeper.catalog explains each."""

    DONE = "e7b84a6a69fc423195f469620289b9f7"
    SKIPPED = "65963177ccc444caaf3b4b0882154962"
    FAILED = "a981a1a1f20841bd945bfaab79b14411"
    CONDITION = "d1f783f62e69484481b0f64bc5aac4d4"
    RECOVERED = "54fe7474375b406d90056f0f8e154abb"
    RELOADED = "2a257ae6cf36459fb101d3fa8562d022"
    NOT_RELOADED = "338ca03755044ed5b3a8cd81886df755"


def make_fields(outcome: Outcome) -> dict[str, str]:
    """Return an outcome as JOURNALKEEPER_ fields of text, without None and "": FILE for `path`, _USEC for "_us"."""
    names = {name: name.upper().replace("_US", "_USEC") for name in to_columns(outcome)} | {"path": "FILE"}
    known = {names[name]: one for name, one in to_columns(outcome).items() if one not in {None, ""}}
    return {f"JOURNALKEEPER_{name}": str(one) for name, one in known.items()}


def find_journald_socket() -> str | None:
    """Return journald's socket if stderr leads to it, as in a unit, else None. Raises: OSError if stderr is closed."""
    status = os.fstat(2)
    return SOCKET if os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}" else None


def encode(fields: Mapping[str, str]) -> bytes:
    """Return an entry of the native protocol. Values are escaped, then cut to FIELD_CHARACTERS."""
    return "".join(f"{name}={escape(value)[:FIELD_CHARACTERS]}\n" for name, value in fields.items()).encode()


class Log:
    """Writes lines to journald's socket at `path`, or to stderr if `path` is None. For one thread.

    Each line opens the socket anew. Only `say` repeats a line within a day.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._said: dict[str, tuple[str, float]] = {}

    def say(self, priority: int, sentence: str, event: Event | Outcome = Event.CONDITION) -> None:
        """Log a sentence with a priority: ERROR, WARNING or INFO. Never wait for journald, and never raise OSError.

        What journald does not take is lost. An outcome is the event of its result, and its numbers become fields.
        """
        about = make_fields(event) if isinstance(event, Outcome) else {}
        kind = Event[event.result.name] if isinstance(event, Outcome) else event
        fields = {"MESSAGE": sentence, "PRIORITY": str(priority), "MESSAGE_ID": str(kind)}
        with suppress(OSError):  # EAGAIN: a full queue; ENOENT, ECONNREFUSED: nobody there; EPIPE
            if self._path is None:
                prefix = "" if sys.stderr.isatty() else f"<{priority}>"  # sd-daemon(3)'s, for programs
                sys.stderr.write(f"{prefix}{escape(sentence)}\n")
                sys.stderr.flush()
            else:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                    sender.setblocking(False)  # noqa: FBT003 - its only argument
                    sender.sendto(encode({**fields, "SYSLOG_IDENTIFIER": "journalkeeper", **about}), self._path)

    def log(self, about: str, priority: int, sentence: str, same: str = "", outcome: Outcome | None = None) -> None:
        """Log `sentence`, unless the last one on the topic `about` (or its key `same`) is equal and under a day old."""
        last, when_s = self._said.get(about, ("", 0.0))
        if last != (same or sentence) or time.monotonic() - when_s >= SAY_AGAIN_S:
            self._said[about] = same or sentence, time.monotonic()
            self.say(priority, sentence, outcome or Event.CONDITION)

    def log_end(self, about: str, sentence: str) -> None:
        """Log `sentence`, which reports the end of a condition, if the condition `about` was logged before."""
        if self._said.pop(about, None) is not None:
            self.say(INFO, sentence, Event.RECOVERED)

    def log_bug(self, what: str, error: Exception) -> None:
        """Log an unexpected exception, whose effect is `what`, with a traceback, once a day for its type and place."""
        place = f"{type(error).__name__} {traceback.extract_tb(error.__traceback__)[-1:]}"
        trace = "".join(traceback.format_exception(error)).rstrip()
        self.log(place, ERROR, f"{what}: bug in journalkeeper, please report it:\n{trace}", same=place)

    def log_results(self, report: Report) -> None:
        """Log notices (WARNING), and outcomes that are done or not PASSING (INFO, failures ERROR).

        Within a day, repeat no notice, nor for a path the action done or the reason that it was last logged with."""
        for notice in report.notices:
            self.log(notice, WARNING, notice)
        for outcome in report.outcomes:
            is_done = outcome.result is Result.DONE
            if is_done or outcome.reason not in PASSING:
                priority = ERROR if outcome.result is Result.FAILED else INFO
                kind = f"{outcome.action} done" if is_done else outcome.reason
                self.log(outcome.path, priority, describe_outcome(outcome), same=kind, outcome=outcome)

    def log_run(self, report: Report, directories: Iterable[str], missing: tuple[str, ...]) -> None:
        """As `log_results`; also log LASTING_REASONS to skip, `missing` directories or that all `directories` are back.

        A topic is logged again after a day or a change, not of an outcome's numbers. Forget topics after FORGET_S.
        """
        self.log_results(report)
        for skip in report.plan.skipped:
            if skip.reason in LASTING_REASONS:
                self.log(skip.path, LASTING_REASONS[skip.reason], f"{skip.path}: {skip.detail}", same=skip.reason)
        if missing:
            self.log("waiting", INFO, f"waiting for {' and '.join(missing)} to appear")
        else:
            self.log_end("waiting", f"{' and '.join(directories)}: found again")
        now_s = time.monotonic()
        self._said = {about: said for about, said in self._said.items() if now_s - said[1] < FORGET_S}


class Notify:
    """The protocol of Type=notify.

    `watchdog_s` is the interval between two "WATCHDOG=1": half of $WATCHDOG_USEC, 0 if that is unset.
    """

    def __init__(self) -> None:
        self.watchdog_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
        self._said = ""

    def send(self, message: str) -> None:
        """Send one message. If the service manager has gone, the message is lost and the service continues."""
        with suppress(OSError):
            daemon.notify(message)

    def set_status(self, sentence: str) -> None:
        """Set the line in `systemctl status` if it differs. Escape it, as each line is a command to the manager."""
        if sentence != self._said:
            self._said = sentence
            self.send(f"STATUS={escape(sentence)}")
