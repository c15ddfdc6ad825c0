# SPDX-License-Identifier: LGPL-2.1-or-later
"""The history survives killed writers, damaged and foreign files, and full and read-only disks.

SQLite is used directly only to make files that another program or an accident would leave.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from journalkeeper.history import database
from journalkeeper.history.store import Record
from journalkeeper.model.errors import BusyError, FileError, KeeperError, NeedsRootError
from journalkeeper.probe.scratch_volume import run
from tests.hosts import done
from tests.nobody import being_nobody

VOLUME = ("uuid-a", 256)


def keep(record: Record, *numbers: int) -> None:
    for number in numbers:
        record.insert_outcome(1, VOLUME, done(number), number)


def moments(record: Record) -> list[int]:
    return [entry.when_us for entry in record.list_entries()]


def kept(directory: Path) -> list[int]:
    with Record(directory, read_only=True) as record:
        return moments(record)


def full(directory: Path, number: int = 100) -> Path:
    """Return the file of a history with `number` outcomes."""
    with Record(directory) as record:
        keep(record, *range(number))
    return directory / "history.db"


both = pytest.mark.parametrize("read_only", [True, False], ids=["reader", "writer"])


def child(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start another Python with `code`, which may use `database`, `Record`, `keep`, `kept` and VOLUME."""
    head = "import sys, os; sys.path.insert(0, sys.argv[1]);"
    head += "from test_history_database import database, keep, Record, kept, VOLUME\n"
    argv: list[str | Path] = [sys.executable, "-c", head + code, os.fspath(Path(__file__).parent), *arguments]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.getcwd())


# Killed writers


def half_done(directory: Path) -> None:
    """Leave the files of a writer that was killed in a transaction, with half of its pages written."""
    code = """
def work(connection):
    connection.execute("PRAGMA cache_spill = 1"); connection.execute("PRAGMA cache_size = 5")
    connection.execute("UPDATE outcomes SET detail = hex(zeroblob(3000))")
    os.kill(os.getpid(), 9)
Record(sys.argv[2]).write(work)
"""
    full(directory, 20)
    with child(code, directory) as process:
        assert process.wait() == -signal.SIGKILL
    assert (directory / "history.db-journal").stat().st_size > 0


@both
def test_a_half_done_transaction_is_undone_by_the_next_process(tmp_path: Path, *, read_only: bool) -> None:
    half_done(tmp_path)
    with Record(tmp_path, read_only=read_only) as record:
        assert [(one.when_us, one.outcome.detail) for one in record.list_entries()] == [(n, "") for n in range(20)]
        assert record.set_aside is None


# Damaged and foreign files


def garbage(path: Path) -> None:
    path.write_bytes(b"this is not a database\n" * 1000)


def zeroed_schema(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100] + bytes(3996) + path.read_bytes()[4096:])


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1); PRAGMA user_version = 999")


def newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")


def alter(sql: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(sql)

    return damage


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, i AS run FROM n"
HOSTILE = (
    "CREATE TRIGGER evil AFTER INSERT ON outcomes BEGIN DELETE FROM outcomes; END",
    f"DROP TABLE outcomes; CREATE VIEW outcomes AS {ENDLESS}",
    "ALTER TABLE runs ADD COLUMN evil INTEGER AS (id + 1)",
    "DROP TABLE moments",
    "PRAGMA user_version = 5",
    f"PRAGMA journal_mode = WAL; CREATE VIEW evil AS {ENDLESS}",
)
DAMAGES = [garbage, zeroed_schema, truncated, foreign, newer, *map(alter, HOSTILE)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_reader_leaves_an_unusable_file_alone_and_a_writer_renames_it_and_begins_a_new_history(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    damage(file := full(tmp_path))
    before = file.read_bytes()
    with pytest.raises(KeeperError, match=r"history\.db: the history is (corrupt|foreign|newer); the next run as root"):
        kept(tmp_path)
    assert file.read_bytes() == before
    with Record(tmp_path) as record:
        keep(record, 1)
        assert moments(record) == [1]
        assert record.set_aside is not None
        why = damage.__name__ if damage in (foreign, newer) else "corrupt"
        assert re.fullmatch(rf"{tmp_path}/history\.db\.{why}-\d{{8}}T\d{{6}}Z", record.set_aside)
        assert Path(record.set_aside).read_bytes() == before
        (notice,) = record.replacement
        words = {"newer": "was written by a newer version", "foreign": "belonged to another program"}
        assert f"the history {words.get(why, 'was damaged')}: " in notice
    with Record(tmp_path) as record:
        assert record.set_aside is None


@both
@pytest.mark.parametrize("suffix", ["", "-journal", "-wal", "-shm"])
def test_a_fifo_in_place_of_a_file_is_named_and_not_opened(tmp_path: Path, suffix: str, *, read_only: bool) -> None:
    fifo = full(tmp_path).with_name(f"history.db{suffix}")
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    with pytest.raises(KeeperError, match=f"{fifo}: not a regular file; remove it"):
        Record(tmp_path, read_only=read_only)


def test_a_file_that_cannot_be_renamed_was_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    garbage(full(tmp_path))
    monkeypatch.setattr(os, "rename", Mock(side_effect=OSError(errno.EROFS, "read-only")))
    with pytest.raises(KeeperError), Record(tmp_path) as record:
        pytest.fail(f"moved to {record.set_aside}")


@pytest.mark.parametrize(
    ("harm", "set_aside"), [(garbage, True), (lambda file: file.rename(file.with_name("elsewhere.db")), False)]
)
def test_an_outcome_is_kept_when_the_file_is_damaged_or_renamed_under_our_hands(
    tmp_path: Path, harm: Callable[[Path], object], *, set_aside: bool
) -> None:
    with Record(tmp_path) as record:
        keep(record, 1)
        harm(tmp_path / "history.db")
        keep(record, 2)
        assert (record.set_aside is not None) == set_aside
    assert kept(tmp_path) == [2]


def test_the_rollback_journal_of_a_damaged_database_is_not_rolled_into_the_new_one(tmp_path: Path) -> None:
    half_done(tmp_path)
    garbage(tmp_path / "history.db")
    with Record(tmp_path) as record:
        keep(record, 1)
        assert moments(record) == [1]
        assert record.set_aside is not None


def test_a_commit_costs_the_fewest_fsyncs_that_keep_its_order(tmp_path: Path) -> None:
    """synchronous is NORMAL (1): FULL wrote 1.9 times as much (the module's docstring)."""
    with database.Database(f"{tmp_path}/history.db", read_only=False) as file:
        assert file.read(lambda connection: connection.execute("PRAGMA synchronous").fetchone()[0]) == 1


# Disks


@pytest.mark.root
def test_a_read_only_disk_can_be_read_and_a_write_names_it(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", disk)
    try:
        with Record(disk) as record:
            keep(record, 1)
        run("mount", "-o", "remount,ro", disk)
        assert kept(disk) == [1]
        with Record(disk) as record, pytest.raises(KeeperError, match="attempt to write a readonly database"):
            keep(record, 2)
        with pytest.raises(FileError, match="Read-only file system") as caught:
            Record(disk / "new")
        assert caught.value.number == errno.EROFS
    finally:
        run("umount", disk)


# Rights


@pytest.mark.root
@both
@pytest.mark.parametrize(
    ("place", "says"),
    [("state", r"state/history\.db: .*Permission denied$"), ("", "Permission denied$")],
    ids=["closed directory", "closed file"],
)
def test_nobody_is_sent_to_root(open_directory: Path, place: str, says: str, *, read_only: bool) -> None:
    Record(open_directory / place).close()
    with being_nobody(), pytest.raises(NeedsRootError, match=says):
        Record(open_directory / place, read_only=read_only)


@pytest.mark.root
def test_readers_of_the_directory_may_read_the_record_while_it_is_written(open_directory: Path) -> None:
    with Record(open_directory) as record:
        os.chmod(open_directory / "history.db", 0o644)
        keep(record, 1)
        with being_nobody():
            assert kept(open_directory) == [1]
    with being_nobody():
        assert kept(open_directory) == [1]
        with Record(open_directory) as record, pytest.raises(NeedsRootError, match="cannot write the history"):
            keep(record, 2)
    assert kept(open_directory) == [1]


def test_a_history_is_not_made_through_a_link(tmp_path: Path) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state.mkdir()
    (state / "history.db").symlink_to(elsewhere)
    with pytest.raises(KeeperError), Record(state) as record:
        keep(record, 1)
    assert not elsewhere.exists()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    for _ in ("without a database", "with one"):
        with Record(tmp_path, read_only=True) as record, pytest.raises(KeeperError, match="cannot write the history"):
            keep(record, 1)
        Record(tmp_path).close()
    assert kept(tmp_path) == []


def test_statistics_of_an_administrator_are_no_damage(tmp_path: Path) -> None:
    with closing(sqlite3.connect(full(tmp_path))) as connection:
        connection.execute("ANALYZE")
    assert len(kept(tmp_path)) == 100
    with Record(tmp_path) as record:
        assert record.set_aside is None


# Several at once


def test_two_writers_who_begin_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """Each sees the empty file, the other's half-made tables, or all of them; none takes the other's for foreign."""
    code = """
database.BUSY_S = 240
print("ready", flush=True); sys.stdin.readline()
for round in range(8):
    record = Record(f"{sys.argv[2]}/{round}")
    keep(record, *range(int(sys.argv[3]), int(sys.argv[3]) + 5))
    print(record.set_aside, flush=True); sys.stdin.readline()
"""
    with child(code, tmp_path, "0") as first, child(code, tmp_path, "10") as second:
        for step in range(9):
            said = [process.stdout.readline() for process in (first, second) if process.stdout is not None]
            assert said == (["None\n", "None\n"] if step else ["ready\n", "ready\n"])
            for process in (first, second):
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
        assert (first.wait(), second.wait()) == (0, 0)
    for number in range(8):
        assert kept(tmp_path / str(number)) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


def test_a_reader_waits_for_one_commit_of_many(tmp_path: Path) -> None:
    """The writer's next transaction begins at once after each, and none lets readers in."""
    code = """
def slow(connection): connection.execute("ROLLBACK"); connection.execute("BEGIN EXCLUSIVE"); time.sleep(0.3)
record = Record(sys.argv[2]); keep(record, 1); print("ready", flush=True)
while True: record.write(slow)
"""
    with child(f"import time\n{code}", tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            assert [kept(tmp_path) for _ in range(4)] == [[1]] * 4
        finally:
            process.kill()


def test_a_lock_that_is_held_too_long_is_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    with Record(tmp_path) as record, closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(KeeperError, match=r"history\.db: cannot write the history: another process has") as found:
            keep(record, 1)
        assert not isinstance(found.value, BusyError)  # status says at once that runs fail
        other.execute("ROLLBACK")
        keep(record, 2)
        assert moments(record) == [2]
