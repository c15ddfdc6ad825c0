# SPDX-License-Identifier: LGPL-2.1-or-later
"""The evidence from the journal, from the output of a fake journalctl."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.health.evidence import Intake, Journal, Unknown
from journalkeeper.model.errors import KeeperError, NeedsRootError
from journalkeeper.observe import machine as reading
from journalkeeper.observe.machine import read_journal
from tests.adapters.command import Says

NOW_US = 1_795_350_000_000_000
BOOT = "a" * 32


def entry(back_s: float, **fields: Any) -> dict[str, Any]:
    """Return an entry that journald received `back_s` seconds ago."""
    when_us = NOW_US - round(back_s * 1e6)
    times = {"__REALTIME_TIMESTAMP": str(when_us), "__MONOTONIC_TIMESTAMP": str(when_us - NOW_US + 10**12)}
    return {**times, "_BOOT_ID": BOOT, **fields}


def sent(back_s: float, wait_s: float, **fields: Any) -> dict[str, Any]:
    """Return an entry from /dev/log that waited for `wait_s`."""
    source = {"_SOURCE_REALTIME_TIMESTAMP": str(NOW_US - round((back_s + wait_s) * 1e6)), "_TRANSPORT": "syslog"}
    return entry(back_s, **source, **fields)


def read(*, most: int = 100) -> Journal:
    found = read_journal(None, most)
    assert isinstance(found, Journal)
    return found


def test_waits_are_the_oldest_first_with_their_units(says: Says) -> None:
    several = [list(b"c\xff"), "other"]  # journalctl's form of two values, of which the first is not UTF-8
    says(sent(3, 0, SYSLOG_IDENTIFIER=several), entry(2, _TRANSPORT="kernel"), sent(1, 0.25, _SYSTEMD_UNIT="a.service"))
    found = read()
    assert found.intake == (Intake(NOW_US - 3_000_000, 0, "c\udcff"), Intake(NOW_US - 1_000_000, 250_000, "a.service"))
    assert (found.entries, found.oldest_us, found.complete) == (3, NOW_US - 3_000_000, True)


def test_a_limited_reading_has_its_oldest_entries_and_is_not_complete(says: Says, tmp_path: Path) -> None:
    says(entry(2), entry(1))
    found = read(most=2)
    assert (found.entries, found.oldest_us, found.complete) == (2, NOW_US - 2_000_000, False)
    assert (tmp_path / "asked").read_text().count("--lines=2") == 2  # a user's journalctl is asked once more


@pytest.mark.parametrize("step_s", [5, -3600])
def test_a_change_of_the_clock_is_no_wait(says: Says, step_s: int) -> None:
    """An entry that was sent before the step and received after it seems to have waited; other waits count."""
    before = [sent(20 - n, 0.001) for n in range(5)]
    later = [sent(10 - n, 0.002) for n in range(5)]
    for one in later:  # the wall clock jumped, the other did not; the first was sent before
        for name in ("__REALTIME_TIMESTAMP", "_SOURCE_REALTIME_TIMESTAMP"):
            if one is not later[0] or name[1] == "_":
                one[name] = str(int(one[name]) + step_s * 1_000_000)
    says(*before, *later)
    assert [one.wait_us for one in read().intake] == [1000] * 5 + [2000] * 4


@pytest.mark.parametrize("transport", ["kernel", "audit"])
def test_a_clock_that_is_set_during_the_boot_is_no_wait(says: Says, transport: str) -> None:
    """As in systemd's test-journals/no-rtc: only entries without a wait show the clock before it was set."""
    jump_us = 34_000_000 * 1_000_000
    first = entry(10, _TRANSPORT=transport)
    first["__REALTIME_TIMESTAMP"] = str(int(first["__REALTIME_TIMESTAMP"]) - jump_us)
    queued = sent(9, 1, SYSLOG_IDENTIFIER="timesyncd")  # sent by the old clock
    queued["_SOURCE_REALTIME_TIMESTAMP"] = str(int(queued["_SOURCE_REALTIME_TIMESTAMP"]) - jump_us)
    late = entry(-60, **{name: queued[name] for name in ("_SOURCE_REALTIME_TIMESTAMP", "_TRANSPORT")})
    says(first, queued, sent(2, 0.2), late)
    assert [one.wait_us for one in read().intake] == [200_000]


def test_no_message_waits_for_longer_than_the_machine_is_up(says: Says) -> None:
    up = [{"__MONOTONIC_TIMESTAMP": str(2_000_000 + n * 3_000_000)} for n in range(3)]
    says(sent(10, 0) | up[0], sent(7, 0) | up[1], sent(4, 5.1) | up[2])
    assert [one.wait_us for one in read().intake] == [0, 0, 5_100_000]
    says(sent(10, 0) | up[0], sent(7, 0) | up[1], sent(4, 8.1) | up[2])
    assert [one.wait_us for one in read().intake] == [0, 0]


SAID = "Time spent on flushing to /var/log/journal/a is 1min 2.345678s for 471 entries."


def test_a_boot_has_the_times_of_its_messages(says: Says) -> None:
    says(
        events=[
            entry(80, MESSAGE=SAID.replace("1min", "1moon"), _TRANSPORT="driver", _BOOT_ID="b" * 32),
            entry(5, MESSAGE="Journal started", _TRANSPORT="driver"),
            entry(3, MESSAGE=SAID, _TRANSPORT="driver"),
            entry(2, MESSAGE=SAID.replace("1min 2.345678s", "2ms"), _TRANSPORT="driver"),  # not the boot's
            entry(1, MESSAGE_ID=reading.STARTUP_FINISHED, USERSPACE_USEC="9000000", _TRANSPORT="journal"),
        ]
    )
    older, boot = read().boots
    assert (boot.boot_id, boot.when_us) == (BOOT, NOW_US - 5_000_000)
    assert (boot.userspace_us, boot.flush_us) == (9_000_000, 62_345_678)
    assert (older.userspace_us, older.flush_us) == (None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"__REALTIME_TIMESTAMP": "9" * 30, "_SOURCE_REALTIME_TIMESTAMP": "-1", "_TRANSPORT": "syslog"},
        {"__REALTIME_TIMESTAMP": ["0", "2"], "MESSAGE": ["a", "b"], "_TRANSPORT": ["stdout"]},
        {"MESSAGE_ID": [1, 2], "UNIT": None, "_TRANSPORT": "driver", "MESSAGE": {"a": 1}},
        {"_SYSTEMD_UNIT": "</script>\n" * 1000, "_TRANSPORT": "syslog", "_SOURCE_REALTIME_TIMESTAMP": "5"},
    ],
)
def test_no_damaged_entry_ends_the_reading(says: Says, fields: dict[str, Any]) -> None:
    says(entry(1, **fields), events=[entry(1, **fields)])
    found = read()
    assert found.entries == 1
    assert found.oldest_us in {0, NOW_US - 1_000_000}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"end": "exit 3", "stderr": "out of memory\n"}, "exit status 3: out of memory"),
        ({"end": "kill -9 $$"}, "killed by signal 9"),
        ({"rest": '{"MESSAGE": "half a'}, "journalctl failed"),
        pytest.param({"rest": "{\n" + "x" * 200_000}, "journalctl failed", id="a line that is not JSON before others"),
    ],
)
def test_an_answer_that_breaks_off_is_an_error_with_journalctls_words(says: Says, words: Any, said: str) -> None:
    says(entry(1), **words)
    with pytest.raises(KeeperError, match=said):
        read()


@pytest.mark.parametrize(
    ("stderr", "whole"), [("", True), ("Hint: You are currently not seeing messages from other users\n", False)]
)
def test_a_partial_journal_is_unknown(says: Says, monkeypatch: pytest.MonkeyPatch, stderr: str, *, whole: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    says(entry(1), stderr=stderr)
    assert isinstance(read_journal(None, 10), Journal) is whole


INSUFFICIENT = "No journal files were opened due to insufficient permissions.\n"
DENIED = "Failed to open /j: Permission denied\n"


@pytest.mark.parametrize("directory", [None, "/j"])
@pytest.mark.parametrize(("user", "stderr"), [(0, INSUFFICIENT), (1000, INSUFFICIENT), (1000, DENIED)])
def test_a_reader_without_permission_gets_the_reason_or_an_error_for_a_named_directory(
    says: Says, monkeypatch: pytest.MonkeyPatch, user: int, stderr: str, directory: str | None
) -> None:
    """The host has other evidence, and a named directory has none."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    says(end="exit 1", stderr=stderr)
    if directory is not None:
        with pytest.raises(NeedsRootError):
            read_journal(directory, 10)
        return
    found = read_journal(None, 10)
    assert isinstance(found, Unknown)
    assert "systemd-journal" in found.why or "Permission denied" in found.why


def test_without_a_journalctl_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = read_journal(None, 10)
    assert isinstance(found, Unknown)
    assert "cannot be run" in found.why
