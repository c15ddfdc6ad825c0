# SPDX-License-Identifier: LGPL-2.1-or-later
"""The oracle of claims finds a false one, and none in a history that is true."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from journalkeeper.config import Config, Nocow
from journalkeeper.engine import Engine
from journalkeeper.model import Request, Verb
from journalkeeper.probe.scratch_volume import ScratchVolume, run
from tests.btrfs.faults import cut_power
from tests.btrfs.journals import NOW
from tests.hosts import MACHINE
from tests.journal_files import archive_name, put
from tests.trust.claims import DATABASE, Claims, Rewrite, compare_with_report, find_false_claims, read_claims
from tests.trust.scenarios import aged
from tests.trust.wholeness import CONFIG, STATE

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def volume() -> Iterator[Path]:
    """A volume with two archives, one of them NOCOW, that a run with disk bytes has rewritten."""
    with ScratchVolume("512M") as scratch:
        top = scratch.mountpoint
        (top / MACHINE).mkdir()
        for number in (1, 2):
            put(top / MACHINE, aged(), archive_name(number), nocow=number == 2)
        engine = Engine(CONFIG, directories=(f"{top}",), state_directory=f"{top / STATE}", disk_bytes=True)
        engine.run(NOW, on_progress=lambda _: None, stop=lambda: False)
        yield top


def change_history(volume: Path, statement: str) -> list[str]:
    """Return the false claims after `statement`, which is undone."""
    database = volume / STATE / DATABASE
    before = database.read_bytes()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement)
    try:
        return find_false_claims(volume, read_claims(volume / STATE))
    finally:
        database.write_bytes(before)


def test_a_true_history_is_not_contradicted(volume: Path) -> None:
    claims = read_claims(volume / STATE)
    assert {row.verb for row in claims.rewrites} == {"compress", "rewrite"}
    assert [row.disk_bytes_after is None for row in claims.done] == [False, False]
    assert find_false_claims(volume, claims) == []


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE rewrites SET extents = extents + 20", "extents are claimed, filefrag counts"),
        ("UPDATE outcomes SET disk_bytes_after = disk_bytes_after / 2 - 200000", "bytes on disk are claimed"),
    ],
)
def test_a_false_number_is_found(volume: Path, statement: str, sentence: str) -> None:
    found = change_history(volume, statement)
    assert len(found) == 2
    assert all(sentence in line for line in found)


def test_a_rewrite_that_left_the_file_nocow_is_found(volume: Path) -> None:
    path = volume / MACHINE / "empty.journal"
    path.touch()
    run("chattr", "+C", path)
    status = path.stat()
    claim = Rewrite(status.st_ino, "rewrite", 0, status.st_mtime_ns, 0)
    try:
        found = find_false_claims(volume, Claims((claim,)))
    finally:
        path.unlink()
    assert found == ["empty.journal: rewrite is claimed, and lsattr shows C"]


def test_a_report_that_differs_from_the_history_is_found(volume: Path) -> None:
    claims = read_claims(volume / STATE)
    rows = [
        {"path": row.path, "action": row.action, "extents_after": row.extents_after, "result": "done"}
        for row in claims.done
    ]
    none = claims._replace(done=())
    assert compare_with_report(claims, none, {"outcomes": rows}, "") == []
    assert "is reported and not recorded" in compare_with_report(none, none, {"outcomes": rows[:1]}, "")[0]
    assert compare_with_report(none, none, {"outcomes": rows[:1]}, f"{DATABASE}: disk full") == []
    assert "is recorded and not reported" in compare_with_report(claims, none, {"outcomes": rows[:1]}, "")[0]


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
        put(top / MACHINE, aged(), name, nocow=verb is Verb.REWRITE, torn=verb is not Verb.SET_NOCOW)
        run("sync", "--file-system", top)
        engine = Engine(config, directories=(f"{top}",), state_directory=f"{top / STATE}")
        engine.run(Request(now=True, upkeep=True), on_progress=lambda _: None, stop=lambda: False)
        cut_power(scratch)
        claims = read_claims(top / STATE)
        assert verb in {row.action for row in claims.done}
        assert find_false_claims(top, claims) == []
