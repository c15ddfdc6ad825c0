# SPDX-License-Identifier: LGPL-2.1-or-later
"""`journalkeeper probe`: its words, what it refuses, and what it makes of a journal that journalctl reads."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from journalkeeper.cli.parser import parse
from journalkeeper.config import files
from journalkeeper.model.errors import UsageError
from journalkeeper.probe import syslog
from journalkeeper.probe.base import Measurement, scratch
from journalkeeper.probe.intake import add_waits
from tests.adapters.command import Says, Typed
from tests.answers import check

SECOND = 1_000_000


@pytest.fixture(autouse=True)
def _signals_as_before() -> Any:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_bounds_are_valid() -> None:
    args = parse(["probe", "syslog", "--rate", "20000", "--seconds", "0.1", "-D", "/j"])
    assert (args.rate, args.seconds, args.directory) == (20_000, 0.1, "/j")


def test_a_probe_that_needs_root_names_the_reason(monkeypatch: pytest.MonkeyPatch, typed: Typed) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for name in ("syslog", "fsync", "writes"):
        said = typed("probe", name)
        assert said.err.startswith("journalkeeper: probe needs root, try sudo: ")
        assert (said.status, said.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("burst", "interval", "words", "allowed"),
    [
        ("10000", "30s", "--rate=166 --seconds=3600", True),
        ("10000", "30s", "--rate=167 --seconds=3600", False),
        ("10000", "30s", "--rate=5000 --seconds=1", True),
        ("10000", "30s", "--rate=5001 --seconds=1", False),
        ("0", "30s", "--rate=5001 --seconds=3600", True),
        ("10", "0", "--rate=5001 --seconds=3600", True),
    ],
)
def test_a_host_gets_at_most_half_of_its_rate_limit(
    burst: str, interval: str, words: str, *, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("RateLimitBurst", burst), ("RateLimitIntervalSec", interval)]
    assignments = [files.Assignment("f", n, "Journal", *row) for n, row in enumerate(rows)]
    monkeypatch.setattr(files, "read_assignments", lambda *_, **__: assignments)
    asked = parse(["probe", "syslog", *words.split()])
    if allowed:
        assert syslog.count_messages(asked) == round(asked.rate * asked.seconds)
        return
    with pytest.raises(UsageError, match="at most 5000 messages in 30s, half of RateLimitBurst="):
        syslog.count_messages(asked)


def entry(taken_us: int, wait_us: int | None = 1000, **fields: str) -> dict[str, str]:
    """One entry; the machine was booted at 0 of CLOCK_REALTIME."""
    source = {} if wait_us is None else {"_SOURCE_REALTIME_TIMESTAMP": str(taken_us - wait_us)}
    times = {"__REALTIME_TIMESTAMP": str(taken_us), "__MONOTONIC_TIMESTAMP": str(taken_us), "_BOOT_ID": "b"}
    return {**times, **source, "_TRANSPORT": "syslog", "MESSAGE": "m", "PRIORITY": "6", **fields}


def intake(*entries: dict[str, str]) -> Measurement:
    found = Measurement()
    add_waits(entries, found)
    return found


def test_each_unit_has_its_waits_and_an_entry_without_the_kernels_time_of_a_datagram_does_not_count() -> None:
    ours = [entry(at_us, wait_us, _SYSTEMD_UNIT="a.service") for at_us, wait_us in ((1000, 5), (3000, 7))]
    others = [entry(2000, 6, _TRANSPORT="journal"), entry(2500, None), entry(3000, 10, _TRANSPORT="stdout")]
    found = intake(ours[0], *others, ours[1])
    waits_ns = {series.name: series.waits_ns.tolist() for series in found.series[1:]}
    assert waits_ns == {"a.service": [5000, 7000], "no unit": [6000]}


@pytest.mark.parametrize("moved_us", [3600 * SECOND, -3600 * SECOND, 30_000])
def test_a_wait_across_a_change_of_the_clock_is_left_out(moved_us: int) -> None:
    set_ = entry(10020 * SECOND + moved_us, moved_us + 500) | {"__MONOTONIC_TIMESTAMP": str(10020 * SECOND)}
    after = entry(10021 * SECOND + moved_us, 700) | {"__MONOTONIC_TIMESTAMP": str(10021 * SECOND)}
    found = intake(entry(10010 * SECOND, 300), set_, after)
    assert found.series[0].waits_ns.tolist() == [300_000, 700_000]
    assert found.notes == ["1 entry left out: the clock may have been set while they waited."]


def test_a_wait_that_began_before_the_first_entry_of_a_boot_is_left_out() -> None:
    waits = [3600 * SECOND, 3600 * SECOND + 5, 9_000]
    found = intake(*(entry(7200 * SECOND + n, wait) for n, wait in enumerate(waits)))
    assert found.series[0].waits_ns.tolist() == [9_000_000]
    assert found.notes == ["2 entries left out: the clock may have been set while they waited."]


def test_a_clock_that_ntp_slews_is_not_a_change_of_the_clock() -> None:
    later = entry(3610 * SECOND, 20_000) | {"__MONOTONIC_TIMESTAMP": str(3608 * SECOND + SECOND // 5)}
    assert intake(entry(10 * SECOND), later).notes == []


def test_dropped_messages_are_in_the_verdict_and_fail_the_probe(says: Says, typed: Typed) -> None:
    dropped = entry(3 * SECOND, None, _TRANSPORT="driver", N_DROPPED="1200", MESSAGE="Suppressed 1200 messages from a")
    says(entry(SECOND), dropped, entry(4 * SECOND))
    said = typed("probe", "intake")
    assert said.status == 1
    assert said.words.startswith("journald dropped 1,200 messages (RateLimitBurst=). OK: the longest wait, ")


def test_a_journal_is_text_and_json(says: Says, typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    says(*(entry(SECOND * n, 200_000 if n == 9 else 1000, _SYSTEMD_UNIT="a\x1b.service") for n in range(1, 31)))
    words = ("probe", "intake", "-D", f"{tmp_path}", "--since=2026-01-01")
    found = typed(*words, "-j").document
    check("probe", found)
    assert (tmp_path / "asked").read_text().split()[-1].startswith("--since=@1767")
    assert [(one["name"], one["count"]) for one in found["series"]] == [("all", 30), ("a\\x1b.service", 30)]
    assert found["series"][0]["worst_s"] == 0.2
    assert found["series"][0]["p50_s"] == 0.001
    assert found["series"][0]["p99_s"] is None
    assert found["verdict"].startswith("Slow: 1 of 30 waits (all) is over 100ms (IntakeDelayMaxSec=")
    status, out, _ = typed(*words)
    assert status == 0
    assert re.search(r"^ +30 +1ms +- +- +- +200ms +all$", out, re.MULTILINE)
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_signal_that_nohup_ignores_stays_ignored(says: Says, typed: Typed) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    says(entry(SECOND))
    assert typed("probe", "intake").status == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler


def test_an_error_of_journalctl_is_shown(says: Says, typed: Typed) -> None:
    says(end="exit 1", stderr="no such boot\n")
    line = "journalkeeper: journalctl failed: exit status 1: no such boot\n"
    assert typed("probe", "intake", "--boot") == (1, "", line)


def test_a_scratch_directory_is_removed_when_a_unit_stops(tmp_path: Path) -> None:
    """`systemctl stop` sends SIGTERM to every process of the unit, and so to the one that removes the directory."""
    others = psutil.Process().children()
    with scratch(str(tmp_path)) as place:
        (child,) = set(psutil.Process().children()) - set(others)
        child.send_signal(signal.SIGTERM)
        with suppress(psutil.TimeoutExpired):
            child.wait(0.2)
    assert not os.path.exists(place)
