# SPDX-License-Identifier: LGPL-2.1-or-later
"""The history of runs, outcomes, rewrites and extent counts in the state directory.

Each outcome is one transaction, so that a killed run has recorded all that it finished. A row that would repeat the row
before it is not written. A newer version knows other words, and a bad disk flips bits: a row with an impossible value
is skipped and counted.

A file is known by (volume UUID, subvolume, inode), because st_dev changes with each mount; a volume's key is the first
two. Paths are bytes in the database: names need not be UTF-8.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from journalkeeper.history.database import Database
from journalkeeper.model import JournalFile, Kind, Outcome, Past, Reason, Result, Verb, Volume
from journalkeeper.model.errors import run_bookkeeping
from journalkeeper.model.run import LEFT, Counters, Done, HistoryEntry, Run, Sample, Totals, Wait, is_long
from journalkeeper.model.schema import parse_record, to_columns
from journalkeeper.model.units import DAY_US, HOUR_US, TIME_LIMIT_US, pluralize

NAME = "history.db"
FOREVER_US = (1 << 63) - 1
LATELY_US: Final = 7 * DAY_US
"""How long +C on a directory is recent: the first snapshots after it do not make it wrong at once."""

CONFIRM_US: Final = 12 * HOUR_US
"""A clock that a later run finds this much later is trusted: it was not set ahead for a moment."""

REWRITES = (Verb.DEFRAGMENT, Verb.COMPRESS, Verb.REWRITE, Verb.ROTATE)

COUNT_LIMIT: Final = 1 << 50
"""The largest number of bytes in a sum: a thousand times what one file may have, and the sum of two fits."""

WRITTEN = f"coalesce(sum(bytes_written) FILTER (WHERE bytes_written BETWEEN 0 AND {COUNT_LIMIT}), 0)"
"""SQL for a sum without damaged numbers: SQLite raises "integer overflow" for the sum of two of them."""

ENTRIES: Final = """(SELECT outcomes.*, duration_us / 1e6 AS duration_s, coalesce(origin, '') AS origin
    FROM outcomes LEFT JOIN runs ON runs.id = outcomes.run)"""
"""SQL for the outcomes with the fields of an Entry."""

SEEN: Final = """UPDATE rewrites SET seen_us = ? WHERE uuid = ? AND subvolume = ?
    AND inode IN (SELECT value FROM json_each(?)) AND abs(seen_us - ?) >= ?"""
"""SQL that marks the rewrites of these files as seen today, so that they are not pruned."""

T = TypeVar("T")

Statement = tuple[str, Sequence[object]]
"""SQL with its values."""
VolumeKey = tuple[str, int]
"""A volume's UUID and the tree id of the subvolume."""
Inodes = tuple[VolumeKey, list[int]]
"""Files of one volume."""
ASIDE: Final = {"newer": "was written by a newer version", "foreign": "belonged to another program"}


class Record(Database):
    """The history in `directory`, opened at once. A writer creates what is missing, and replaces an unusable file.

    A missing history that is opened `read_only` is empty. Only the thread that opened the history may use it.
    Raises in every method: NeedsRootError without the permission; FileError; KeeperError if it was locked for 5 s, or
    for a damaged, foreign or newer database that was opened read-only.
    """

    def __init__(self, directory: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._ignored: dict[str, tuple[int, str]] = {}
        super().__init__(os.path.join(os.path.abspath(directory), NAME), read_only=read_only)

    @property
    def ignored(self) -> tuple[str, ...]:
        """One sentence for each table with rows that could not be read so far; () if all could be read."""
        rows = {t: f"{pluralize(n, 'row')} of {t} {'was' if n == 1 else 'were'}" for t, (n, _) in self._ignored.items()}
        damaged = "(damaged, or written by a newer version)"
        return tuple(f"{self.path}: {rows[t]} ignored: {why} {damaged}" for t, (_, why) in self._ignored.items())

    @property
    def replacement(self) -> list[str]:
        """A notice if a method so far found the history damaged, foreign or newer, and began a new one; else []."""
        if self.set_aside is None:
            return []
        why = ASIDE.get(self.set_aside.rpartition(".")[2].partition("-")[0], "was damaged")
        return [f"the history {why}: it was moved to {self.set_aside}, and a new one was started"]

    def begin_run(self, now_us: int, origin: str) -> int:
        """Store a new run that began at `now_us`, with its `origin` ("defrag", "daemon", ...), and return its id."""
        return self._execute([_make_insert("runs", {"origin": origin, "began_us": now_us})])

    def end_run(self, run: int, now_us: int) -> None:
        """Store `now_us` as the end of the run with the id `run`. A run that was killed keeps no end."""
        self._execute([("UPDATE runs SET ended_us = ? WHERE id = ?", (now_us, run))])

    def insert_outcome(self, run: int, volume: VolumeKey, done: Done, when_us: int) -> None:
        """Store the outcome `done` of the run `run` in one transaction. A trigger adds it to the counters.

        A rewrite or rotation that is done, or without gain, also becomes the file's past.
        """
        outcome = done.outcome
        past = Past(
            outcome.action,
            when_us,
            done.after.size_bytes,
            done.after.mtime_ns,
            outcome.extents_after,
            outcome.extents_before,
            done.extents_expected,
            outcome.bytes_written,
            done.compress,
            done.kind,
        )
        file = {"uuid": volume[0], "subvolume": volume[1], "inode": done.after.inode, "seen_us": when_us}
        statements = [_make_insert("outcomes", {"run": run, "when_us": when_us, **to_columns(outcome)})]
        if outcome.action in REWRITES and (outcome.result is Result.DONE or outcome.reason is Reason.NO_GAIN):
            statements.append(_make_insert("rewrites", {**file, **past._asdict()}))
        self._execute(statements)

    def find_past(self, files: Mapping[int, Inodes]) -> dict[tuple[int, int], Past]:
        """Return the last rewrite or rotation of each of `files`, by (device, inode), as far as one is stored.

        `files` is as from `group_inodes`. A host can have 27,000 rows.
        """
        columns, found = f"inode, {', '.join(Past._fields)}", dict[tuple[int, int], Past]()
        wanted = "uuid = ? AND subvolume = ? AND inode IN (SELECT value FROM json_each(?))"
        for device, (volume, inodes) in files.items():
            rows = self._query(f"SELECT {columns} FROM rewrites WHERE {wanted}", (*volume, json.dumps(inodes)))  # noqa: S608 - our words
            found |= {(device, row["inode"]): past for row in rows if (past := self._parse(Past, "rewrites", row))}
        return found

    def store_counts(self, now_us: int, files: Iterable[JournalFile]) -> None:
        """Store the changed totals of instances and counts of active files. Files with a problem are left out."""
        fresh = []
        for table, key, counts in _make_rows(now_us, files):
            row = counts._asdict()
            newest = f"SELECT * FROM {table} WHERE {key} = ? ORDER BY id DESC LIMIT 1"  # noqa: S608 - our words
            last = self._query(newest, (_encode_value(key, row[key]),))
            if not last or any(last[0][name] != value for name, value in row.items() if name != "when_us"):
                fresh.append(_make_insert(table, row))
        if fresh:
            self._execute(fresh)

    def sum_written_bytes(self, after_us: int, until_us: int) -> int:
        """Return the number of bytes written after `after_us`, up to and including `until_us`; 0 without outcomes.

        Later outcomes were recorded while the clock was ahead, and would use up the budget of the coming days.
        """
        wanted = f"SELECT {WRITTEN} FROM outcomes WHERE when_us > ? AND when_us <= ?"  # noqa: S608 - our words
        return self._query_number(wanted, (after_us, until_us))

    def count_rotations(self, when_us: int, until_us: int) -> int:
        """Return the number of rotations, done or failed, from `when_us` to `until_us`, both included.

        A failed one counts, because journald may have rotated without an answer.
        """
        wanted = "action = 'rotate' AND result != 'skipped' AND when_us BETWEEN ? AND ?"
        return self._query_number(f"SELECT count(*) FROM outcomes WHERE {wanted}", (when_us, until_us))  # noqa: S608 - our words

    def list_nocow_directories(self, now_us: int) -> frozenset[str]:
        """Return the directories on which +C was set later than LATELY_US before `now_us`."""
        wanted = "SELECT DISTINCT path FROM outcomes WHERE action = 'set-nocow' AND result = 'done' AND when_us > ?"
        rows = self._query(wanted, (now_us - LATELY_US,))
        return frozenset(row["path"] for row in rows if isinstance(row["path"], str))

    def list_waits(self) -> dict[str, Wait]:
        """Return the stored waits of files, by path, the longest first. Damaged rows are left out."""
        rows = self._query("SELECT * FROM waiting ORDER BY since_us, path")
        return {wait.path: wait for wait in self._parse_all(Wait, "waiting", rows)}

    def store_waits(self, waits: Iterable[Wait], *, now_us: int) -> None:
        """Store those of `waits` that last an hour or have a reason in LEFT, in place of the stored ones.

        A commit costs 14 I/Os: only if paths, beginnings, or reasons (in LEFT, or of `is_long` waits) differ.
        """

        def select_facts(wait: Wait) -> tuple[str, int, str]:
            """Return the path, the beginning, and the reason if it is in LEFT or the wait `is_long`, else ""."""
            return wait.path, wait.since_us, wait.reason if is_long(wait, now_us) or wait.reason in LEFT else ""

        kept = {one.path: one for one in waits if now_us - one.since_us >= HOUR_US or one.reason in LEFT}
        if set(map(select_facts, kept.values())) == set(map(select_facts, self.list_waits().values())):
            return
        rows = (_make_insert("waiting", one._asdict()) for one in kept.values())
        self._execute([("DELETE FROM waiting", ()), *rows])

    def read_counters(self) -> Counters:
        """Return the totals, also of pruned rows, and when they began; if one is damaged, `Counters()`.

        `bytes_reclaimed` is None if it was never measured.
        """
        rows = self._query("SELECT * FROM ever")
        times = {row["what"]: row["times"] for row in rows}
        sums = {name: sum(row[name] for row in rows) for name in ("bytes_written", "extents_removed", "unmeasured")}
        known = {
            **times,
            **sums,
            "bytes_reclaimed": sum(row["bytes_reclaimed"] for row in rows)
            if any(row["reclaims_known"] for row in rows)
            else None,
            "since_us": self._read_moments().get("installed"),
        }
        return self._parse(Counters, "ever", known) or Counters()

    def _read_moments(self) -> dict[str, int]:
        """Return the stored times by name: "installed", "clock", "confirmed"; without those outside 1970 to 9999."""
        rows = self._query("SELECT * FROM moments WHERE when_us BETWEEN 0 AND ?", (TIME_LIMIT_US,))
        return {row["what"]: row["when_us"] for row in rows}

    def read_last_run(self) -> Run | None:
        """Return the newest run, with its outcomes by result and its written bytes; None if missing or damaged."""
        rows = self._query(
            f"""SELECT runs.*, count(*) FILTER (WHERE result = 'done') AS done,
                count(*) FILTER (WHERE result = 'skipped') AS skipped,
                count(*) FILTER (WHERE result = 'failed') AS failed, {WRITTEN} AS bytes_written
            FROM runs LEFT JOIN outcomes ON outcomes.run = runs.id
            WHERE runs.id = (SELECT max(id) FROM runs) GROUP BY runs.id"""  # noqa: S608 - our words
        )
        return self._parse(Run, "runs", rows[0]) if rows else None

    def find_newest_run(self) -> int:
        """Return the id of the newest run, 0 if there was none."""
        return self._query_number("SELECT coalesce(max(id), 0) FROM runs")

    def list_paths_since_run(self, run: int) -> list[str]:
        """Return the paths that have an outcome of a run with a higher id than `run`, each once."""
        return [row["path"] for row in self._query("SELECT DISTINCT path FROM outcomes WHERE run > ?", (run,))]

    def list_entries(
        self, paths: Sequence[str] = (), since_us: int = 0, until_us: int | None = None
    ) -> list[HistoryEntry]:
        """Return the outcomes from `since_us` until before `until_us` (None: no limit), the oldest first.

        `paths` are files, and directories for all files below them; () means all. `ignored` counts unreadable rows.
        """
        rows = self._query_between(ENTRIES, paths, since_us, until_us)
        nested = ({**row, "outcome": {name: row[name] for name in Outcome._fields}} for row in rows)
        return self._parse_all(HistoryEntry, "outcomes", nested)

    def list_samples(self, paths: Sequence[str] = (), since_us: int = 0, until_us: int | None = None) -> list[Sample]:
        """Return the extent counts of active files, the oldest first. Arguments as in `list_entries`."""
        return self._parse_all(Sample, "samples", self._query_between("samples", paths, since_us, until_us))

    def list_totals(self) -> list[Totals]:
        """Return the stored sums over the files of each instance, the oldest first."""
        return self._parse_all(Totals, "totals", self._query_between("totals"))

    def prune(self, now_us: int, keep_us: int, files: Iterable[Inodes] = (), *, max_rows: int | None = None) -> None:
        """Delete runs, outcomes and counts older than `keep_us`, or beyond the newest `max_rows` of each table.

        Ages count from the confirmed clock, which the call first updates; without one, no row is too old. A file's past
        goes after `keep_us` in which the file was not in `files`: no archive is rewritten twice. None: no limit.
        """
        moments = _compute_moments(self._read_moments(), now_us)
        oldest_us = moments.get("confirmed", -FOREVER_US + keep_us) - keep_us
        rules = [("rewrites", "seen_us < ?", oldest_us), ("runs", "began_us < ?", oldest_us)]
        rules += [(table, "when_us < ?", oldest_us) for table in ("outcomes", "totals", "samples")]
        if max_rows is not None:
            tables = ("runs", "outcomes", "totals", "samples")
            rules += [(table, f"id <= (SELECT max(id) FROM {table}) - ?", max_rows) for table in tables]  # noqa: S608 - our words
        changed = "INSERT INTO moments VALUES (?, ?) ON CONFLICT DO UPDATE SET when_us = excluded.when_us"
        statements: list[Statement] = [
            (f"{changed} WHERE when_us IS NOT excluded.when_us", moment) for moment in moments.items()
        ]
        for volume, inodes in files:
            statements.append((SEEN, (now_us, *volume, json.dumps(inodes), now_us, DAY_US)))
        statements += [(f"DELETE FROM {table} WHERE {condition}", (value,)) for table, condition, value in rules]  # noqa: S608 - our words
        self._execute(statements)

    def _execute(self, statements: Sequence[Statement]) -> int:
        """Execute `statements`, at least one, in one transaction. If the last one inserts a row, return its id."""
        return self.write(lambda connection: [connection.execute(*one).lastrowid for one in statements][-1] or 0)

    def _parse(self, kind: type[T], table: str, row: Mapping[str, Any]) -> T | None:
        """Return the record of class `kind` for a row of `table`, or None for an invalid row, counted in `ignored`."""
        try:
            return parse_record(kind, row)
        except ValueError as error:
            count, why = self._ignored.get(table, (0, str(error)))
            self._ignored[table] = count + 1, why
            return None

    def _parse_all(self, kind: type[T], table: str, rows: Iterable[Mapping[str, Any]]) -> list[T]:
        """Return the readable records; count the others as ignored rows of `table`."""
        return [one for row in rows if (one := self._parse(kind, table, row)) is not None]

    def _query(self, statement: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        """Return the rows by column name, with paths as texts. Raises: as Database.read."""
        rows = [dict(row) for row in self.read(lambda connection: connection.execute(statement, values).fetchall())]
        for row in rows:
            if isinstance(row.get("path"), bytes):  # another type is damage
                row["path"] = os.fsdecode(row["path"])
        return rows

    def _query_between(
        self, source: str, paths: Sequence[str] = (), since_us: int = 0, until_us: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of `source`, a table or a query, with times and paths as in `list_entries`, oldest first."""
        values: list[object] = [since_us, FOREVER_US if until_us is None else until_us]
        below = []
        for path in paths:
            name = os.fsencode(os.path.abspath(path))
            directory = name.rstrip(b"/") + b"/"
            below.append("path = ? OR substr(path, 1, ?) = ?")
            values += [name, len(directory), directory]
        where = f"when_us >= ? AND when_us < ? AND ({' OR '.join(below) or 'true'})"
        return self._query(f"SELECT * FROM {source} WHERE {where} ORDER BY when_us, id", values)  # noqa: S608 - our words

    def _query_number(self, statement: str, values: Sequence[object] = ()) -> int:
        """Return the number, never NULL, in the one row of the result."""
        return self.read(lambda connection: int(connection.execute(statement, values).fetchone()[0]))


def group_inodes(files: Iterable[JournalFile], volumes: Iterable[Volume]) -> dict[int, Inodes]:
    """Return, by st_dev, the key (UUID, subvolume) of each of `volumes` and the inodes of its `files`, [] if none."""
    found: dict[int, Inodes] = {one.device: ((one.uuid, one.subvolume), []) for one in volumes}
    for file in files:
        if file.device in found:
            found[file.device][1].append(file.inode)
    return found


def store_outcome(record: Record, run: int, volumes: Sequence[Volume], device: int, done: Done) -> list[str]:
    """Store the outcome in the history. Return [], or one notice if the history cannot be written.

    One of `volumes` has `device`. A file that vanished before a byte was written is not stored: a commit costs 14 I/Os.
    """
    if done.outcome.reason is Reason.VANISHED and not done.outcome.bytes_written:
        return []
    key = next((volume.uuid, volume.subvolume) for volume in volumes if volume.device == device)
    store = partial(record.insert_outcome, run, key, done, time.time_ns() // 1000)
    return run_bookkeeping(store, f"{done.outcome.path}: not recorded: ")


def _make_insert(table: str, row: Mapping[str, object]) -> Statement:
    """Return the statement that stores `row`, in place of one with the same key."""
    names, places = ", ".join(row), ", ".join("?" * len(row))
    values = [_encode_value(*item) for item in row.items()]
    return f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({places})", values  # noqa: S608 - our tables


def _encode_value(column: str, value: object) -> object:
    """Return a value as SQLite stores it in the column `column`: paths as bytes, other texts as valid UTF-8."""
    if not isinstance(value, str):
        return value
    return os.fsencode(value) if column == "path" else value.encode(errors="backslashreplace").decode()


def _compute_moments(moments: Mapping[str, int], now_us: int) -> dict[str, int]:
    """Return the moments "clock" and "confirmed" for the present time `now_us`. `moments` stays unchanged.

    "confirmed" is a time that the clock showed at least CONFIRM_US before a later call. No moment exceeds `now_us`.
    """
    clock_us, confirmed_us = moments.get("clock", now_us), moments.get("confirmed")
    if now_us - clock_us >= CONFIRM_US:
        clock_us, confirmed_us = now_us, clock_us
    clock_us = min(clock_us, now_us)  # the clock was ahead, and was set back
    return {"clock": clock_us} | ({} if confirmed_us is None else {"confirmed": min(confirmed_us, now_us)})


def _make_rows(now_us: int, files: Iterable[JournalFile]) -> list[tuple[str, str, Totals | Sample]]:
    """Return (table, column of the subject, row) for each instance and active file, without files with a problem."""
    below: dict[str, list[JournalFile]] = {}
    rows: list[tuple[str, str, Totals | Sample]] = []
    for file in files:
        if file.problem is None:
            below.setdefault(file.instance, []).append(file)
            if file.kind is Kind.ACTIVE:
                counts = (file.extents.total, file.ideal_extents, file.size_bytes, file.allocated_bytes)
                rows.append(("samples", "path", Sample(now_us, file.path, *counts)))
    return rows + [("totals", "instance", Totals.of(now_us, name, some)) for name, some in below.items()]
