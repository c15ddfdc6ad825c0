# SPDX-License-Identifier: LGPL-2.1-or-later
"""Faults below the history and damage in it: no row is lost or claims what is undone, every error is a sentence."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from journalkeeper.cli.program import run as command
from journalkeeper.config.directives import Config, Nocow
from journalkeeper.engine import Engine
from journalkeeper.history.store import Record
from journalkeeper.model import Request, Verb
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.run import Counters, Found, Wait
from journalkeeper.model.units import HOUR_US
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests import hosts
from tests.btrfs.faults import cut_power
from tests.btrfs.journals import go
from tests.hosts import MACHINE, read_past
from tests.journal_files import archive_name, put
from tests.trust.claims import find_false_claims, read_claims
from tests.trust.scenarios import make_archive
from tests.trust.wholeness import CONFIG, STATE

VOLUME = ("uuid-a", 256)
ROWS = 5
FOREVER = "1+"

READ = """
import sys
from journalkeeper.model.errors import KeeperError
from journalkeeper.history.store import Record
try:
    with Record(sys.argv[1], read_only=sys.argv[2] == "ro") as record:
        if sys.argv[2] == "rw":
            record.begin_run(1, "defrag")
        print(len(record.list_entries()), record.set_aside)
except KeeperError as error:
    print(error)
"""

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def keep(record: Record, number: int) -> None:
    record.insert_outcome(1, VOLUME, hosts.done(number, hosts.outcome("/j/a.journal")), number)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory whose record has some rows."""
    with Record(tmp_path / "state") as record:
        for number in range(ROWS):
            keep(record, number)
    return tmp_path / "state"


def damage(state: Path, *statements: str) -> None:
    with closing(sqlite3.connect(state / "history.db", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# The disk


def with_fault(state: Path, fault: str, mode: str) -> str:
    """What a program says that reads the record (mode "ro"), or writes it too ("rw"), with an injected fault."""
    words = ["strace", "-f", "-qq", "-o", "/dev/null", "-P", str(state / "history.db"), "-e", f"inject={fault}"]
    program = [sys.executable, "-c", READ, str(state), mode]
    done = subprocess.run([*words, *program], check=False, capture_output=True, text=True, cwd=os.getcwd())
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.strip()


@needs_strace
@pytest.mark.parametrize("mode", ["ro", "rw"])
@pytest.mark.parametrize("when", ["1", "2", "3", "4", "5", "2+2", "3+", "3+3", FOREVER])
def test_a_read_error_is_no_damage(state: Path, when: str, mode: str) -> None:
    """SQLite calls EIO damage (SQLITE_IOERR_CORRUPTFS becomes SQLITE_CORRUPT); the rows are whole.

    With "3+3" both tries meet a block deep in the file that cannot be read, and so does the reading of the whole file.
    """
    damage(state, "UPDATE outcomes SET detail = hex(zeroblob(2 << 20)) WHERE when_us = 0")
    said = with_fault(state, f"pread64,read:error=EIO:when={when}", mode)
    failed = "cannot (read|write) the history: Input/output error"
    assert said == f"{ROWS} None" or re.search(failed, said), said
    if when == FOREVER:
        assert re.search(failed, said)
    assert [name for name in os.listdir(state) if "corrupt" in name] == []
    with Record(state) as record:
        assert len(record.list_entries()) == ROWS


@needs_strace
@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_a_lock_that_the_kernel_does_not_permit_is_a_sentence(state: Path, mode: str) -> None:
    said = with_fault(state, "fcntl:error=EPERM:when=2+", mode)
    assert "history.db: cannot " in said
    assert os.geteuid() != 0 or "Permission denied" not in said


# Rows


@pytest.mark.parametrize(
    "change", ["{word} = 'squash'", "{word} = CAST(x'ff00' AS TEXT)", "{number} = -1", "when_us = 9000000000000000000"]
)
def test_one_row_that_says_nothing_is_ignored_with_a_message(state: Path, change: str) -> None:
    """A word of a newer version, or a damaged row, ends neither `plan` nor `history` nor the service."""
    damage(state, f"UPDATE rewrites SET {change.format(word='verb', number='extents')} WHERE inode = 2")  # noqa: S608
    damage(state, f"UPDATE outcomes SET {change.format(word='action', number='extents_before')} WHERE when_us = 2")  # noqa: S608
    with Record(state) as record:
        assert read_past(record, VOLUME, range(5)).keys() == {0, 1, 3, 4}
        assert [entry.when_us for entry in record.list_entries()] == [0, 1, 3, 4]
        about = [f"{record.path}: 1 row of {table} was ignored" for table in ("rewrites", "outcomes")]
        assert [said.startswith(start) for said, start in zip(record.ignored, about, strict=True)] == [True, True]
        assert record.set_aside is None


def test_bytes_that_are_no_text_are_shown_as_far_as_they_go(state: Path) -> None:
    damage(state, "UPDATE outcomes SET detail = CAST(x'ff41' AS TEXT) WHERE when_us = 2")
    with Record(state) as record:
        assert [entry.outcome.detail for entry in record.list_entries()] == ["", "", "\udcffA", "", ""]
        assert record.ignored == ()


def test_sums_survive_a_damaged_number(state: Path) -> None:
    for column in ("bytes_written", "disk_bytes_before"):
        damage(state, f"UPDATE outcomes SET {column} = 9223372036854775807 WHERE when_us IN (1, 2)")  # noqa: S608
    with Record(state) as record:
        assert record.sum_written_bytes(0, 100) == (ROWS - 3) * 1000
        record.begin_run(10, "defrag")
        damage(state, "UPDATE outcomes SET run = (SELECT max(id) FROM runs)")
        last = record.read_last_run()
        assert last is not None
        assert (last.done, last.bytes_written) == (ROWS, (ROWS - 2) * 1000)


def test_a_run_whose_times_are_damaged_is_no_last_run(state: Path) -> None:
    with Record(state) as record:
        record.begin_run(10, "defrag")
        damage(state, "UPDATE runs SET began_us = 9000000000000000000")
        assert record.read_last_run() is None
        assert "row of runs was ignored" in record.ignored[0]


def test_damaged_counters_are_reported_and_a_missing_one_is_zero(state: Path) -> None:
    with Record(state) as record:
        before = record.read_counters()
        assert before.done == ROWS
        damage(state, "DELETE FROM ever WHERE what = 'skipped'")
        assert record.read_counters() == before
        damage(state, "UPDATE ever SET bytes_written = -(1 << 50) WHERE what = 'failed'")
        assert record.read_counters() == Counters()
        assert "row of ever was ignored" in record.ignored[0]


def test_history_shows_the_rows_that_it_understands_and_says_so(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(state, "UPDATE outcomes SET action = 'squash' WHERE when_us = 2")
    monkeypatch.setenv("STATE_DIRECTORY", str(state))
    assert command(["history", "--no-legend"]) == 0
    out, err = capsys.readouterr()
    assert out.count("compressed j/a.journal") == ROWS - 1
    assert "1 row of outcomes was ignored" in err
    assert "'squash'" in err


# What goes in


def test_a_number_beyond_63_bits_is_a_sentence(state: Path) -> None:
    with Record(state) as record:
        with pytest.raises(KeeperError, match=r"history\.db: cannot write the history: .* too large"):
            record.insert_outcome(1, VOLUME, hosts.done(9)._replace(after=Found(9, 1, 1 << 63, 1)), 9)
        keep(record, 9)
        assert [entry.when_us for entry in record.list_entries()] == [0, 1, 2, 3, 4, 9]


def test_a_name_that_is_no_text_is_kept_in_words_as_well(state: Path) -> None:
    name = "/j/\udcff.journal"
    outcome = hosts.outcome(name, detail=f"{name}: cannot")
    with Record(state) as record:
        record.insert_outcome(1, VOLUME, hosts.done(9, outcome), 9)
        kept = record.list_entries()[-1].outcome
        assert kept._replace(detail="") == outcome._replace(detail="")
        assert kept.detail == r"/j/\udcff.journal: cannot"


@pytest.mark.parametrize("row", ["(x'2f62', -1, 'x')", "(x'2f62', 9000000000000000000, 'x')"])
def test_a_damaged_wait_is_left_out_and_said(state: Path, row: str) -> None:
    with Record(state) as record:
        record.store_waits([Wait("/j/a.journal", 5, "pressure")], now_us=HOUR_US + 5)
    damage(state, f"INSERT INTO waiting VALUES {row}")  # noqa: S608 - a row of the table above
    with Record(state) as record:
        assert record.list_waits() == {"/j/a.journal": Wait("/j/a.journal", 5, "pressure")}
        assert len(record.ignored) == 1


# a power cut


@pytest.mark.root
@pytest.mark.parametrize(
    ("verb", "name", "config"),
    [
        (Verb.COMPRESS, archive_name(), CONFIG),
        (Verb.REWRITE, archive_name(), CONFIG),
        (Verb.DEFRAGMENT, "system.journal", CONFIG),
        (Verb.SET_NOCOW, "system.journal", CONFIG.model_copy(update={"nocow": Nocow(nocow="yes")})),
    ],
)
def test_a_power_cut_right_after_a_run_contradicts_no_claim(verb: Verb, name: str, config: Config) -> None:
    """SQLite's fsync makes a row durable, and nothing of the files that the row is about."""
    with ScratchVolume("512M", options="commit=300") as scratch:
        top = scratch.mountpoint
        (top / MACHINE).mkdir()
        put(top / MACHINE, make_archive(), name, nocow=verb is Verb.REWRITE, torn=verb is not Verb.SET_NOCOW)
        run("sync", "--file-system", top)
        engine = Engine(config, directories=(f"{top}",), state_directory=f"{top / STATE}")
        go(engine, Request(now=True, upkeep=True))
        cut_power(scratch)
        claims = read_claims(top / STATE)
        assert verb in {row.action for row in claims.done}
        assert find_false_claims(top, claims) == []
