# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service's log: what journald gets, and that nothing ever waits for journald."""

from __future__ import annotations

import io
import os
import pty
import socket
import threading
import time
from pathlib import Path

import pytest

from journalkeeper.model import Outcome, Plan, Reason, Result, Skip, Verb
from journalkeeper.model.run import Report
from journalkeeper.service.log import FORGET_S, SAY_AGAIN_S, SOCKET, Event, Log, find_journald_socket

OUTCOME = Outcome("/j/system@1.journal", Verb.COMPRESS, Result.DONE, Reason.FRAGMENTED, 5992, 40, None, 7, 4096, 1.5)
MANY = 2000


@pytest.fixture
def log(journald: socket.socket) -> Log:
    return Log(str(journald.getsockname()))


def received(journald: socket.socket) -> dict[str, str]:
    """The fields of the next entry, of which none has a newline in it."""
    lines = journald.recv(1 << 20).decode("utf-8", "surrogateescape").splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def drain(journald: socket.socket) -> list[dict[str, str]]:
    """All that is in the queue."""
    journald.setblocking(False)
    found = []
    try:
        while True:
            found.append(received(journald))
    except BlockingIOError:
        journald.settimeout(60)
        return found


def test_a_sentence_bears_priority_event_and_identifier(log: Log, journald: socket.socket) -> None:
    log.say(4, "the volume is read-only", Event.CONDITION)
    assert received(journald) == {
        "MESSAGE": "the volume is read-only",
        "PRIORITY": "4",
        "MESSAGE_ID": Event.CONDITION,
        "SYSLOG_IDENTIFIER": "journalkeeper",
    }


def test_an_outcome_bears_its_numbers_and_nothing_unknown(log: Log, journald: socket.socket) -> None:
    log.say(6, "mended", OUTCOME)
    fields = received(journald)
    ours = {name.removeprefix("JOURNALKEEPER_"): value for name, value in fields.items() if "KEEPER_" in name}
    assert fields["MESSAGE_ID"] == Event.DONE
    assert ours == {
        "FILE": "/j/system@1.journal",
        "ACTION": "compress",
        "RESULT": "done",
        "REASON": "fragmented",
        "EXTENTS_BEFORE": "5992",
        "EXTENTS_AFTER": "40",
        "DISK_BYTES_AFTER": "7",
        "BYTES_WRITTEN": "4096",
        "DURATION_USEC": "1500000",
        "UNSHARED_BYTES": "0",
    }


def test_a_long_value_is_cut_so_that_it_can_be_sent(log: Log, journald: socket.socket) -> None:
    log.say(3, "x" * 10**7)
    assert len(received(journald)["MESSAGE"]) == 8192


def test_a_stuck_journald_blocks_nobody(log: Log, journald: socket.socket) -> None:
    """The queue is full after a few; whoever waited for room would wait for ever here."""

    def speak() -> None:
        for _ in range(MANY):
            log.say(6, "a line")

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    speaker.join(30)
    assert not speaker.is_alive()
    taken = drain(journald)
    assert 0 < len(taken) < MANY
    log.say(6, "at last")
    assert received(journald)["MESSAGE"] == "at last"


def test_a_journald_that_came_back_is_found(tmp_path: Path, journald: socket.socket, log: Log) -> None:
    log.say(6, "before")
    journald.close()
    os.unlink(tmp_path / "socket")
    log.say(6, "background")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as again:
        again.bind(os.fspath(tmp_path / "socket"))
        log.say(6, "after")
        assert received(again)["MESSAGE"] == "after"


def test_without_journald_a_sentence_is_one_line_with_its_priority(capsys: pytest.CaptureFixture[str]) -> None:
    Log(None).say(3, "one.conf:1: wrong; two.conf:2: wrong, too")
    assert capsys.readouterr().err == "<3>one.conf:1: wrong; two.conf:2: wrong, too\n"


def test_a_person_at_a_terminal_is_shown_no_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, terminal = pty.openpty()
    with io.TextIOWrapper(io.FileIO(terminal, "w"), write_through=True) as stderr, io.FileIO(screen, "r") as seen:
        monkeypatch.setattr("sys.stderr", stderr)
        Log(None).say(4, "wrong")
        assert seen.readline() == b"wrong\r\n"


def test_a_stderr_that_nobody_reads_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(io.FileIO(writable, "w"), write_through=True))
    Log(None).say(6, "nobody listens")


@pytest.mark.parametrize(("stream", "found"), [("{dev}:{ino}", SOCKET), ("{dev}:1", None), ("", None), (None, None)])
def test_journald_is_at_the_end_of_stderr_only_if_the_very_stream_is(
    monkeypatch: pytest.MonkeyPatch, stream: str | None, found: str | None
) -> None:
    """$JOURNAL_STREAM alone is inherited by everybody, whatever their stderr is."""
    status = os.fstat(2)
    if stream is None:
        monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    else:
        monkeypatch.setenv("JOURNAL_STREAM", stream.format(dev=status.st_dev, ino=status.st_ino))
    assert find_journald_socket() == found


@pytest.mark.parametrize(
    ("result", "reason", "logged"),
    [
        (Result.DONE, Reason.FRAGMENTED, [("6", Event.DONE)]),
        (Result.FAILED, Reason.IO_ERROR, [("3", Event.FAILED)]),
        (Result.SKIPPED, Reason.CHANGED, []),
    ],
)
def test_a_failure_is_an_error_and_what_passes_is_not_logged(
    log: Log, journald: socket.socket, result: Result, reason: Reason, logged: list[tuple[str, Event]]
) -> None:
    outcome = OUTCOME._replace(result=result, reason=reason)
    log.log_results(Report(Plan({}, (), ()), (outcome,), 0, 0.0, ()))
    assert [(fields["PRIORITY"], fields["MESSAGE_ID"]) for fields in drain(journald)] == logged


def test_new_numbers_of_the_same_outcome_are_not_logged_again(log: Log, journald: socket.socket) -> None:
    done = [OUTCOME._replace(extents_after=40 + number) for number in (0, 0, 1)]
    for outcome in (*done, OUTCOME._replace(action=Verb.DEFRAGMENT, extents_after=50)):
        left = Plan({}, (), (Skip(outcome.path, Reason.RECORDED, ""),))
        log.log_run(Report(left, (outcome,), 0, 0.0, ()), ("/j",), ())
    assert [int(fields["JOURNALKEEPER_EXTENTS_AFTER"]) for fields in drain(journald)] == [40, 50]


def test_a_lasting_reason_to_leave_something_alone_is_logged_once(log: Log, journald: socket.socket) -> None:
    skips = (Skip("/j", Reason.SNAPSHOTS, "snapshots share data"), Skip("/j/a", Reason.SETTLING, "changed 1s ago"))
    for _ in range(2):
        log.log_run(Report(Plan({}, (), skips), (), 0, 0.0, ()), ("/j",), ())
    assert [fields["MESSAGE"] for fields in drain(journald)] == ["/j: snapshots share data"]


def test_a_condition_that_is_over_is_forgotten(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic()
    log.log("/j/a", 4, "cannot be read")
    for age_s, known in ((SAY_AGAIN_S, True), (FORGET_S, False)):
        monkeypatch.setattr("time.monotonic", lambda age_s=age_s: now_s + age_s + 1)
        log.log_run(Report(Plan({}, (), ()), (), 0, 0.0, ()), ("/j",), ())
        assert ("/j/a" in log._said) is known
