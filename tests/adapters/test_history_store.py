# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rows of the history: what is stored, read again, counted and pruned."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from journalkeeper.history.store import CONFIRM_US, NAME, Record, store_outcome
from journalkeeper.model import Host, JournalFile, Kind, Outcome, Past, Reason, Result, Verb
from journalkeeper.model.run import LONG_US, Counters, Run, Totals, Wait
from journalkeeper.model.units import DAY_US, HOUR_US
from tests import hosts
from tests.hosts import read_past

VOLUME = ("uuid-a", 256)
HOST_US = 1_700_000_000_000_000
"""The installation: November 2023."""


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    with Record(tmp_path / "state") as record:
        yield record


UNKNOWN: dict[str, Any] = {"disk_bytes_before": None, "disk_bytes_after": None}
outcome = partial(hosts.outcome, "/j/m/a.journal", detail="said in words")


def keep(record: Record, *outcomes: Outcome, when_us: int = 100, inode: int = 7, run: int = 0, **words: Any) -> None:
    for one in outcomes:
        record.insert_outcome(run, VOLUME, hosts.done(inode, one, **words), when_us)


def journal(name: str = "system.journal", *, total: int = 10, **words: Any) -> JournalFile:
    """Return an active file of 8 MiB in directory /j/m; `words` replace fields."""
    size = {"size_bytes": 8 << 20, "allocated_bytes": 8 << 20, "extents": hosts.extents(total, 8 << 20)}
    named: dict[str, Any] = {"path": f"/j/m/{name}", "inode": 7, "instance": "m", "kind": Kind.ACTIVE, **size, **words}
    return hosts.file(**named)


def forget(record: Record, now_us: int, keep_us: int) -> None:
    """Prune twice, so that the second call confirms the clock of the first."""
    record.prune(now_us, keep_us)
    record.prune(now_us + CONFIRM_US, keep_us)


def host(*files: JournalFile) -> Host:
    return hosts.host(*files, instances=(), volumes=(hosts.volume(uuid=VOLUME[0], subvolume=VOLUME[1]),))


def writes(record: Record) -> int:
    """Return how often the database was changed, from offset 24 of its file (sqlite.org/fileformat.html)."""
    return int.from_bytes(Path(record.path).read_bytes()[24:28], "big")


# What waits


def test_waits_of_an_hour_are_replaced_as_a_whole_and_written_only_if_they_changed(record: Record) -> None:
    assert record.list_waits() == {}
    waits, now_us = [Wait("/j/\udcff.journal", 5, "budget"), Wait("/j/b", 4, "pressure")], HOUR_US + 5
    record.store_waits(waits, now_us=now_us - 1)
    assert list(record.list_waits()) == ["/j/b"]
    record.store_waits(waits, now_us=now_us)
    assert record.list_waits() == {wait.path: wait for wait in waits}
    before = writes(record)
    record.store_waits(reversed(waits), now_us=now_us)
    assert writes(record) == before
    record.store_waits(waits[1:], now_us=now_us)
    assert list(record.list_waits()) == ["/j/b"]
    other = waits[1]._replace(reason="budget")
    record.store_waits([other], now_us=4 + LONG_US)
    assert record.list_waits()["/j/b"].reason == "pressure"
    record.store_waits([other], now_us=5 + LONG_US)  # from now on `status` tells of it
    assert record.list_waits()["/j/b"].reason == "budget"
    for left in ("not-begun", "interrupted"):  # which decides the order of the next run
        record.store_waits([other._replace(reason=left)], now_us=0)
        assert record.list_waits()["/j/b"].reason == left


# The record of 0.1.0, for readers who see it before it is converted, too


V0_1_0 = """
CREATE TABLE rewrites (
    uuid TEXT, subvolume INTEGER, inode INTEGER, verb TEXT, when_us INTEGER, size_bytes INTEGER, mtime_ns INTEGER,
    extents INTEGER, seen_us INTEGER, extents_before INTEGER NOT NULL DEFAULT 0,
    extents_expected INTEGER NOT NULL DEFAULT 0, bytes_written INTEGER NOT NULL DEFAULT 0, compress TEXT, kind TEXT,
    PRIMARY KEY (uuid, subvolume, inode)) WITHOUT ROWID;
CREATE TABLE runs (id INTEGER PRIMARY KEY, origin TEXT, began_us INTEGER, ended_us INTEGER);
CREATE TABLE outcomes (
    id INTEGER PRIMARY KEY, run INTEGER, when_us INTEGER, path BLOB, action TEXT, result TEXT, reason TEXT,
    extents_before INTEGER, extents_after INTEGER, disk_bytes_before INTEGER, disk_bytes_after INTEGER,
    bytes_written INTEGER, duration_us INTEGER, detail TEXT, unshared_bytes INTEGER NOT NULL DEFAULT 0);
CREATE INDEX outcomes_when ON outcomes (when_us);
CREATE TABLE totals (
    id INTEGER PRIMARY KEY, when_us INTEGER, instance TEXT, files INTEGER, extents INTEGER,
    ideal_extents INTEGER, active_extents INTEGER, size_bytes INTEGER, allocated_bytes INTEGER);
CREATE TABLE samples (
    id INTEGER PRIMARY KEY, when_us INTEGER, path BLOB, extents INTEGER, ideal_extents INTEGER,
    size_bytes INTEGER, allocated_bytes INTEGER);
CREATE TABLE ever (
    what TEXT PRIMARY KEY, times INTEGER, bytes_written INTEGER, extents_removed INTEGER,
    bytes_reclaimed INTEGER, reclaims_known INTEGER) WITHOUT ROWID;
CREATE TABLE waiting (path BLOB PRIMARY KEY, since_us INTEGER, reason TEXT) WITHOUT ROWID;
CREATE TRIGGER outcomes_counted AFTER INSERT ON outcomes BEGIN UPDATE ever SET times = 0; END;
PRAGMA application_id = 1248555057;
PRAGMA user_version = 5;
"""
"""The tables of 0.1.0."""

ROWS = f"""
INSERT INTO runs VALUES (1, 'bus', {HOST_US}, {HOST_US + 1});
INSERT INTO outcomes VALUES
    (1, 1, {HOST_US}, x'2f61', 'compress', 'done', 'fragmented', 500, 40, 900, 100, 1000, 1, '', 0),
    (2, 1, {HOST_US}, x'2f61', 'compress', 'done', 'fragmented', 500, 40, 100, 350, 1000, 1, '', 0),
    (3, 1, {HOST_US + 5}, x'2f61', 'compress', 'done', 'fragmented', 500, 40, 900, 100, 1000, 1, '', 700),
    (4, 1, 'soon', x'2f61', 'compress', 'done', 'fragmented', 500, 40, 900, 100, 1000, 1, '', 0);
INSERT INTO rewrites VALUES ('uuid-a', 256, 7, 'compress', 100, 66, 55, 40, 100, 0, 0, 0, NULL, NULL);
INSERT INTO ever VALUES ('done', 13, 8000, 1480, 1670, 5), ('skipped', 4, 0, 0, 0, 0), ('failed-run', 2, 0, 0, 0, 0);
INSERT INTO totals VALUES (1, {HOST_US}, 'm', 1, 2, 3, 4, 5, 6);
INSERT INTO samples VALUES (1, {HOST_US}, x'2f61', 2, 3, 5, 6), (2, NULL, x'2f61', 2, 3, 5, 6);
INSERT INTO waiting VALUES (x'2f61', 5, 'budget');
"""  # noqa: S608 - the numbers are ours
"""Its totals counted nothing for the second outcome, and the shared file's bytes as if they were free."""


@pytest.mark.parametrize("read_only", [True, False])
def test_the_history_of_0_1_0_is_converted(tmp_path: Path, *, read_only: bool) -> None:
    with closing(sqlite3.connect(tmp_path / NAME)) as connection:
        connection.executescript(V0_1_0 + ROWS)
    with Record(tmp_path, read_only=read_only) as record:
        assert record.set_aside is None
        assert [(one.origin, one.outcome.path, one.outcome.unshared_bytes) for one in record.list_entries()] == [
            ("bus", "/a", 0), ("bus", "/a", 0), ("bus", "/a", 700),
        ]  # fmt: skip
        assert read_past(record, VOLUME, range(200)) == {7: Past(Verb.COMPRESS, 100, 66, 55, 40)}
        since_us = record.read_counters().since_us
        assert (record.read_counters(), (since_us or 0) > HOST_US) == (Counters(since_us=since_us), True)
        assert [row.allocated_bytes for row in record.list_totals()] == [6]
        assert [row.allocated_bytes for row in record.list_samples()] == [6]
        assert record.list_waits() == {"/a": Wait("/a", 5, "budget")}
        assert record.ignored == ()
    if not read_only:
        with Record(tmp_path) as record:
            keep(record, outcome())
            assert (record.read_counters().done, len(record.list_entries())) == (1, 4)


# The past of files


@pytest.mark.parametrize(
    ("one", "remembered"),
    [
        *((outcome(action=verb), True) for verb in (Verb.DEFRAGMENT, Verb.COMPRESS, Verb.REWRITE, Verb.ROTATE)),
        (outcome(result=Result.SKIPPED, reason=Reason.NO_GAIN, extents_after=4999), True),
        (outcome(result=Result.SKIPPED), False),
        (outcome(result=Result.FAILED), False),
        (outcome(action=Verb.SET_NOCOW), False),
    ],
)
def test_a_rewrite_done_or_in_vain_is_the_past_of_its_inode(record: Record, one: Outcome, *, remembered: bool) -> None:
    keep(record, one, compress="zstd:9", kind=Kind.ARCHIVED, extents_expected=40)
    past = Past(one.action, 100, 66, 55, one.extents_after, 5000, 40, 1000, "zstd:9", Kind.ARCHIVED)
    assert read_past(record, VOLUME, [6, 7, 8]) == ({7: past} if remembered else {})
    others = [("uuid-b", 256), ("uuid-a", 257)]
    assert [read_past(record, other, [7]) for other in others] == [{}, {}]
    assert len(record.list_entries()) == 1


def test_rotations_that_were_asked_for_count_within_their_time(record: Record) -> None:
    for when_us in (99, 100, 200, 201):
        keep(record, outcome(action=Verb.ROTATE), when_us=when_us)
    keep(record, outcome(action=Verb.ROTATE, result=Result.FAILED), when_us=150)
    keep(record, outcome(action=Verb.ROTATE, result=Result.SKIPPED), when_us=150)
    keep(record, outcome(action=Verb.COMPRESS), when_us=150)
    assert record.count_rotations(100, 200) == 3


# Runs


def test_a_run_counts_its_own_outcomes(record: Record) -> None:
    assert record.read_last_run() is None
    keep(record, outcome(), run=record.begin_run(1, "daemon"))
    run = record.begin_run(10, "defrag")
    assert record.read_last_run() == Run(run, "defrag", 10, None, done=0, skipped=0, failed=0, bytes_written=0)
    keep(record, outcome(bytes_written=5), outcome(result=Result.SKIPPED, bytes_written=0), run=run)
    keep(record, outcome(result=Result.FAILED, bytes_written=3), run=run)
    record.end_run(run, 20)
    assert record.read_last_run() == Run(run, "defrag", 10, 20, done=1, skipped=1, failed=1, bytes_written=8)


# The budget


def test_written_bytes_are_summed_after_a_moment_for_every_result(record: Record) -> None:
    keep(record, outcome(bytes_written=1), when_us=100)
    keep(record, outcome(bytes_written=2, result=Result.FAILED), when_us=101)
    keep(record, outcome(bytes_written=4), when_us=200)
    assert [record.sum_written_bytes(after_us, 200) for after_us in (99, 100, 200)] == [7, 6, 0]
    assert record.sum_written_bytes(0, 199) == 3  # the rest was written while the clock was ahead


# History


def test_an_outcome_comes_back_as_it_was(record: Record) -> None:
    run = record.begin_run(1, "defrag")
    given = hosts.outcome("/j/\udcff\udcfe/\n'x.journal", **UNKNOWN)
    keep(record, given, when_us=1_700_000_000_000_000, run=run)
    ((when_us, origin, kept),) = record.list_entries()
    assert (when_us, origin, kept) == (1_700_000_000_000_000, "defrag", given)
    keep(record, outcome(), run=99)  # a run that was lost
    assert [entry.origin for entry in record.list_entries()] == ["", "defrag"]


def test_history_is_of_files_and_of_what_is_below_directories(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/j/m/a.journal", "/j/m/b.journal", "/j/mm/a.journal", "/j/m%/a.journal"):
        keep(record, hosts.outcome(path))

    def found(*paths: str) -> list[str]:
        return [entry.outcome.path for entry in record.list_entries(paths)]

    assert found("/j/m") == found("/j/m/") == found("/j/../j/m") == ["/j/m/a.journal", "/j/m/b.journal"]
    assert found("/j/m%", "/j/m/b.journal") == ["/j/m/b.journal", "/j/m%/a.journal"]
    assert found("/j/m/a") == found("/j/_") == []
    assert len(found("/")) == len(found()) == 4
    monkeypatch.chdir("/")
    assert found("j/m") == found("/j/m")


# Extent counts


def test_totals_are_of_each_instance_and_samples_of_active_files(record: Record) -> None:
    archive = journal("system@1.journal", kind=Kind.ARCHIVED, total=90)
    other = journal("remote-\udcff.journal", total=5, instance="remote")
    record.store_counts(1, [journal(), archive, other, journal("user-1.journal", problem=Reason.BAD_HEADER)])
    assert record.list_totals() == [
        Totals(1, "m", files=2, extents=100, ideal_extents=2, active_extents=10, size_bytes=16 << 20,
               allocated_bytes=16 << 20),
        Totals(1, "remote", files=1, extents=5, ideal_extents=1, active_extents=5, size_bytes=8 << 20,
               allocated_bytes=8 << 20),
    ]  # fmt: skip
    assert [(row.path, row.extents) for row in record.list_samples()] == [
        ("/j/m/system.journal", 10), ("/j/m/remote-\udcff.journal", 5),
    ]  # fmt: skip
    assert [row.extents for row in record.list_samples(["/j/m/remote-\udcff.journal"], since_us=1, until_us=2)] == [5]
    assert not [*record.list_samples(since_us=2), *record.list_samples(until_us=1), *record.list_samples(until_us=0)]


def test_nothing_is_written_while_nothing_changes(record: Record) -> None:
    record.store_counts(1, [journal()])
    before = writes(record)
    record.store_counts(2, [journal()])
    assert writes(record) == before
    record.store_counts(3, [journal(total=11)])
    assert writes(record) == before + 1
    record.store_counts(4, [journal(total=10)])
    assert [(row.when_us, row.extents) for row in record.list_samples()] == [(1, 10), (3, 11), (4, 10)]


# Forgetting


def test_prune_forgets_what_is_older(record: Record) -> None:
    for when_us in (99, 100):
        run = record.begin_run(when_us, "defrag")
        keep(record, outcome(), when_us=when_us, run=run, inode=when_us)
        record.store_counts(when_us, [journal(total=when_us, inode=1)])
    forget(record, 1100, 1000)
    assert [entry.when_us for entry in record.list_entries()] == [100]
    assert [row.when_us for row in record.list_samples()] == [row.when_us for row in record.list_totals()] == [100]
    assert list(read_past(record, VOLUME, range(200))) == [100]
    forget(record, 1101, 1000)
    assert record.read_last_run() is None
    assert not [*record.list_entries(), *record.list_samples(), *record.list_totals()]
    assert read_past(record, VOLUME, range(200)) == {}


DAYS_AHEAD = 90 * DAY_US


@pytest.mark.parametrize(
    ("clock_us", "rows"),
    [
        ((0, DAYS_AHEAD), 1),  # it jumped
        ((0, DAYS_AHEAD, DAYS_AHEAD + CONFIRM_US - 1), 1),  # and stayed, for too short a time to be sure
        ((0, DAYS_AHEAD, DAYS_AHEAD + CONFIRM_US), 0),
        ((0, DAYS_AHEAD, 5, DAYS_AHEAD, DAYS_AHEAD + 1), 1),  # it was set back between, and jumped again
        ((DAYS_AHEAD, DAYS_AHEAD + 1), 1),  # the first look of this record
        ((0, CONFIRM_US, 2 * CONFIRM_US), 1),
    ],
)
def test_a_clock_that_jumped_ahead_prunes_nothing_yet(record: Record, clock_us: tuple[int, ...], rows: int) -> None:
    keep(record, outcome(), when_us=0)
    for now_us in clock_us:
        record.prune(now_us, 30 * DAY_US)
    assert len(record.list_entries()) == rows


def test_prune_keeps_the_newest_rows(record: Record) -> None:
    for when_us in range(10):
        keep(record, outcome(), when_us=when_us)
        record.store_counts(when_us, [journal(total=when_us)])
    record.prune(now_us=10, keep_us=1000, max_rows=10)
    assert len(record.list_entries()) == len(record.list_samples()) == 10
    record.prune(now_us=10, keep_us=1000, max_rows=3)
    assert [entry.when_us for entry in record.list_entries()] == [7, 8, 9]
    assert [row.when_us for row in record.list_samples()] == [row.when_us for row in record.list_totals()] == [7, 8, 9]
    assert len(read_past(record, VOLUME, range(200))) == 1


def test_prune_writes_nothing_when_nothing_is_due(record: Record) -> None:
    keep(record, outcome())
    record.prune(now_us=1000, keep_us=1000, max_rows=1)  # which keeps the clock
    before = writes(record)
    record.prune(now_us=1001, keep_us=1000, max_rows=1)
    assert writes(record) == before


def test_the_past_of_a_file_that_is_still_there_is_not_forgotten(record: Record) -> None:
    keep(record, outcome(), when_us=0, inode=7)
    keep(record, outcome(), when_us=0, inode=8)
    there = [(VOLUME, [7])]
    record.prune(DAY_US - 1, 90 * DAY_US, there)
    before = writes(record)
    for now_us, more in ((DAY_US - 1, 0), (DAY_US, 1), (DAY_US + 1, 1)):  # it is marked as seen once a day
        record.prune(now_us, 90 * DAY_US, there)
        assert writes(record) == before + more
    for day in range(2, 100):
        record.prune(day * DAY_US, 90 * DAY_US, there)
    assert {inode: past.when_us for inode, past in read_past(record, VOLUME, range(200)).items()} == {7: 0}


# Reading only


def test_any_name_of_a_directory_will_do(tmp_path: Path) -> None:
    directory = os.fsdecode(os.fsencode(tmp_path) + b"/a?mode=ro#\xff%41 'x'")
    with Record(directory) as record:
        keep(record, outcome())
    assert os.listdir(tmp_path) == [os.path.basename(directory)]
    with Record(directory, read_only=True) as record:
        assert len(record.list_entries()) == 1


# What was ever done


def test_the_ledger_counts_every_outcome_and_only_grows_when_rows_are_forgotten(record: Record) -> None:
    keep(record, outcome(), outcome(result=Result.SKIPPED), outcome(result=Result.FAILED), outcome())
    before = record.read_counters()
    assert before[:4] == (2, 1, 1, 4000)
    forget(record, DAY_US, HOUR_US)
    assert record.list_entries() == []
    assert record.read_counters() == before
    keep(record, outcome())
    assert record.read_counters().done == 3


@pytest.mark.parametrize(
    ("one", "removed", "reclaimed", "unmeasured"),
    [
        (outcome(), 4960, 800, 0),
        (outcome(extents_after=6000), 0, 800, 0),
        (outcome(result=Result.FAILED), 0, 800, 0),
        (outcome(disk_bytes_before=100, disk_bytes_after=900), 4960, -800, 0),
        (outcome(disk_bytes_after=None), 4960, None, 1),
        (outcome(unshared_bytes=5), 4960, None, 1),  # a snapshot keeps the old data
        (outcome(action=Verb.ROTATE, **UNKNOWN), 0, None, 0),
        (outcome(action=Verb.SET_NOCOW, extents_before=0, extents_after=0, **UNKNOWN), 0, None, 0),
    ],
)
def test_a_saving_is_what_rewrites_removed_and_what_was_measured(
    record: Record, one: Outcome, removed: int, reclaimed: int | None, unmeasured: int
) -> None:
    keep(record, one)
    found = record.read_counters()
    assert (found.extents_removed, found.bytes_reclaimed, found.unmeasured) == (removed, reclaimed, unmeasured)
    keep(record, outcome())
    assert record.read_counters().bytes_reclaimed == (reclaimed or 0) + 800


def test_directories_that_became_nocow_lately_are_known(record: Record) -> None:
    for path, result, when_us in (("/j/a", "done", 100), ("/j/b", "done", 200), ("/j/c", "failed", 200)):
        keep(record, hosts.outcome(path, action=Verb.SET_NOCOW, result=Result(result)), when_us=when_us)
    assert record.list_nocow_directories(7 * DAY_US + 100) == {"/j/b"}
    assert record.list_nocow_directories(7 * DAY_US + 99) == {"/j/a", "/j/b"}


def test_a_file_that_had_vanished_costs_no_commit(record: Record) -> None:
    """Of 10,000 removed files each cost three fdatasyncs."""
    vanished = hosts.outcome(reason=Reason.VANISHED, result=Result.SKIPPED, bytes_written=0)
    for one in (vanished, vanished._replace(bytes_written=1)):
        assert store_outcome(record, 1, [hosts.volume()], hosts.DEVICE, hosts.done(7, one)) == []
    assert [entry.outcome.bytes_written for entry in record.list_entries()] == [1]
