# SPDX-License-Identifier: LGPL-2.1-or-later
"""The history of runs, outcomes, rewrites and extent counts in the state directory.

Each outcome is one transaction, so that a killed run has recorded all that it finished. A row that would repeat the row
before it is not written.

A file is known by (volume UUID, subvolume, inode), because st_dev changes with each mount; a volume's key is the first
two. Paths are bytes in the database: names need not be UTF-8.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from journalkeeper.history.database import Connection, Database
from journalkeeper.history.rows import (
    COUNT_LIMIT,
    Ever,
    columns,
    confirm_clock,
    count_extents,
    encodable,
    outcome_values,
    parse_row,
)
from journalkeeper.model import Host, Outcome, Past, Reason, Result, Verb, Volume
from journalkeeper.model.errors import KeeperError
from journalkeeper.model.recorded import Counters, Entry, Run, Sample, Totals
from journalkeeper.model.run import Done
from journalkeeper.model.units import DAY_US
from journalkeeper.model.waiting import Wait, is_long

NAME = "history.db"
FOREVER_US = (1 << 63) - 1
REWRITES = (Verb.DEFRAGMENT, Verb.COMPRESS, Verb.REWRITE, Verb.ROTATE)


WRITTEN = f"coalesce(sum(bytes_written) FILTER (WHERE bytes_written BETWEEN 0 AND {COUNT_LIMIT}), 0)"
"""SQL for a sum without damaged numbers: SQLite raises "integer overflow" for the sum of two of them."""

THESE: Final = "uuid = ? AND subvolume = ? AND inode IN (SELECT value FROM json_each(?))"
SEEN: Final = f"UPDATE rewrites SET seen_us = ? WHERE {THESE} AND abs(seen_us - ?) >= ?"  # noqa: S608 - our words
"""SQL that marks the rewrites of these files as seen today, so that they are not pruned."""

T = TypeVar("T")

VolumeKey = tuple[str, int]
"""A volume's UUID and the tree id of the subvolume."""


class Moment(NamedTuple):
    """A row of the table `moments`: a name and a time.

    It is also used for an outcome: the origin of its run, and its time.
    """

    what: str
    when_us: int


class Record(Database):
    """The history in `directory`, which is created if necessary, unless `read_only` is given.

    One thread at a time may use it. `ignored` has a sentence for each table with unreadable rows.

    Raises, here and in every method: NeedsRootError without the permission; BusyError after 5 s; FileError (ENOSPC,
        EROFS, EIO); KeeperError for a damaged database that was opened read-only.
    """

    def __init__(self, directory: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._ignored: dict[str, tuple[int, str]] = {}
        super().__init__(os.path.join(os.path.abspath(directory), NAME), read_only=read_only)

    @property
    def ignored(self) -> tuple[str, ...]:
        """One sentence for each table with rows that could not be read."""
        return tuple(
            f"{self.path}: {count} {'row' if count == 1 else 'rows'} of {table} {'was' if count == 1 else 'were'}"
            f" ignored: {why} (damaged, or written by a newer version)"
            for table, (count, why) in self._ignored.items()
        )

    @property
    def replacement(self) -> list[str]:
        """Notices if the history was damaged or removed and a new one was started."""
        notices = []
        if self.set_aside is not None:
            why = "was written by a newer version" if ".newer-" in self.set_aside else "was damaged"
            notices.append(f"the history {why}: it was moved to {self.set_aside}, and a new one was started")
        if self.vanished:
            notices.append(f"{self.path}: the history was removed, and a new one was started")
        return notices

    def begin_run(self, now_us: int, origin: str) -> int:
        """Store a new run, begun by `origin` ("defrag", "daemon", ...), and return its id."""
        return self.write(lambda connection: _insert(connection, "runs", (None, origin, now_us, None)))

    def end_run(self, run: int, now_us: int) -> None:
        """Store `now_us` as the end of a run that was not interrupted."""
        self.write(lambda connection: connection.execute("UPDATE runs SET ended_us = ? WHERE id = ?", (now_us, run)))

    def outcome(self, run: int, volume: VolumeKey, done: Done, when_us: int) -> None:
        """Store an outcome. A rewrite that was done or gained nothing also replaces the past of the file's inode."""
        outcome = done.outcome

        def keep(connection: Connection) -> None:
            table = f"outcomes (run, when_us, {columns(Outcome)})"
            _insert(connection, table, (run, when_us, *outcome_values(outcome)))
            if outcome.action in REWRITES and (outcome.result is Result.DONE or outcome.reason is Reason.NO_GAIN):
                after = (outcome.action, when_us, done.size_bytes, done.mtime_ns, outcome.extents_after, when_us)
                gain = (outcome.extents_before, done.extents_expected, outcome.bytes_written)
                _insert(connection, "rewrites", (*volume, done.inode, *after, *gain, done.compress, done.kind))

        self.write(keep)

    def past(self, volume: VolumeKey, inodes: Iterable[int] | None = None) -> dict[int, Past]:
        """Return the last action on each file of a volume, by inode. `inodes` limits the result to these files."""
        where, values = "uuid = ? AND subvolume = ?", list[object](volume)
        if inodes is not None:
            where += " AND inode IN (SELECT value FROM json_each(?))"
            values.append(json.dumps(list(inodes)))
        rows = self._rows(f"SELECT inode, {columns(Past)} FROM rewrites WHERE {where}", values)  # noqa: S608 - our words
        return dict(self._parse_rows("rewrites", rows, lambda row: (int(row[0]), parse_row(Past, row[1:]))))

    def observe(self, now_us: int, host: Host, *, every_us: int = 0) -> None:
        """Store each instance's totals and each active file's extents if they changed.

        A row follows its predecessor after `every_us` at the earliest: active files change with every flush, and a
        commit costs 14 I/Os. Files with a problem are left out.
        """
        fresh = []
        for table, name, numbers in count_extents(host):
            column = "instance" if table == "totals" else "path"
            last = self._rows(f"SELECT * FROM {table} WHERE {column} = ? ORDER BY id DESC LIMIT 1", (name,))  # noqa: S608 - our words
            if not last or (last[0][3:] != numbers and not 0 <= now_us - last[0][1] < every_us):
                fresh.append((table, (None, now_us, name, *numbers)))

        def keep(connection: Connection) -> None:
            for table, row in fresh:
                _insert(connection, table, row)

        if fresh:
            self.write(keep)

    def sum_written_bytes(self, when_us: int, until_us: int | None = None) -> int:
        """Return the number of bytes written after `when_us`, for the budget.

        With `until_us`, the present time, later outcomes are left out: they were recorded while the clock was ahead,
        and would use up the budget of the coming days.
        """
        ((written,),) = self._rows(
            f"SELECT {WRITTEN} FROM outcomes WHERE when_us > ? AND when_us <= ?",  # noqa: S608 - our words
            (when_us, FOREVER_US if until_us is None else until_us),
        )
        return int(written)

    def count_rotations(self, when_us: int, until_us: int) -> int:
        """Return the number of requested rotations in that time; journald may have made one without an answer."""
        wanted = "action = 'rotate' AND result != 'skipped' AND when_us BETWEEN ? AND ?"
        return int(self._rows(f"SELECT count(*) FROM outcomes WHERE {wanted}", (when_us, until_us))[0][0])  # noqa: S608 - our words

    def list_unsharing_directories(self, when_us: int) -> frozenset[str]:
        """Return the directories in which a file that a snapshot shared was rewritten since then.

        Users' journals are left out, because any user can reflink the own journal.
        """
        rows = self._rows("SELECT DISTINCT path FROM outcomes WHERE unshared_bytes > 0 AND when_us > ?", (when_us,))
        paths = (os.path.split(os.fsdecode(path)) for (path,) in rows)
        return frozenset(directory for directory, name in paths if not name.startswith("user-"))

    def waiting(self) -> dict[str, Wait]:
        """Return the stored waits of files, by path, the longest first."""
        rows = self._rows(f"SELECT {columns(Wait)} FROM waiting ORDER BY since_us, path", ())  # noqa: S608 - our words
        return {wait.path: wait for wait in self._parse_rows("waiting", rows, partial(parse_row, Wait))}

    def wait(self, waits: Iterable[Wait], *, now_us: int) -> None:
        """Replace the stored waits with `waits`.

        Nothing is written if the same files wait since the same times. For files that wait for more than a day, which
        `status` reports, the reasons must be the same, too.
        """

        def key(wait: Wait) -> tuple[str, int, str]:
            return wait.path, wait.since_us, wait.reason if is_long(wait, now_us) else ""

        kept = {one.path: one for one in waits}
        if set(map(key, kept.values())) == set(map(key, self.waiting().values())):
            return
        rows = [(os.fsencode(one.path), one.since_us, one.reason) for one in kept.values()]

        def keep(connection: Connection) -> None:
            connection.execute("DELETE FROM waiting")
            connection.executemany("INSERT INTO waiting VALUES (?, ?, ?)", rows)

        self.write(keep)

    def count_run_failure(self) -> None:
        """Count a run that failed as a whole."""
        self.write(lambda connection: connection.execute("UPDATE ever SET times = times + 1 WHERE what = 'failed-run'"))

    def counters(self) -> Counters:
        """Return the totals since the history began, which pruning does not change."""
        ever = list(self._parse_rows("ever", self._rows("SELECT * FROM ever", ()), partial(parse_row, Ever)))
        times = {row.what: row.times for row in ever}
        known = any(row.reclaims_known for row in ever)
        return Counters(
            done=times.get("done", 0),
            skipped=times.get("skipped", 0),
            failed=times.get("failed", 0),
            failed_runs=times.get("failed-run", 0),
            bytes_written=sum(row.bytes_written for row in ever),
            extents_removed=sum(row.extents_removed for row in ever),
            bytes_reclaimed=sum(row.bytes_reclaimed for row in ever) if known else None,
            unmeasured=sum(row.unmeasured for row in ever),
            since_us=self._moments().get("installed"),
        )

    def _moments(self) -> dict[str, int]:
        """Return the times in the table `moments` in microseconds, by name: "installed", "clock", "confirmed"."""
        rows = self._rows("SELECT what, when_us FROM moments", ())
        return dict(self._parse_rows("moments", rows, partial(parse_row, Moment)))

    def last_run(self) -> Run | None:
        """Return the run that began last, None if there was none."""
        rows = self._rows(
            f"""SELECT runs.id, origin, began_us, ended_us, count(*) FILTER (WHERE result = 'done'),
                count(*) FILTER (WHERE result = 'skipped'), count(*) FILTER (WHERE result = 'failed'),
                {WRITTEN}
            FROM runs LEFT JOIN outcomes ON outcomes.run = runs.id
            WHERE runs.id = (SELECT max(id) FROM runs) GROUP BY runs.id""",  # noqa: S608 - our words
            (),
        )
        return next(self._parse_rows("runs", rows, partial(parse_row, Run)), None)

    def find_newest_run(self) -> int:
        """Return the id of the run that began last, 0 if there was none."""
        ((newest,),) = self._rows("SELECT coalesce(max(id), 0) FROM runs", ())
        return int(newest)

    def list_paths_since_run(self, run: int) -> list[str]:
        """Return the paths that have an outcome of a run later than `run`."""
        statement = "SELECT DISTINCT path FROM outcomes WHERE run > ?"
        return [os.fsdecode(path) for (path,) in self._rows(statement, (run,))]

    def history(
        self, paths: Sequence[str] = (), since_us: int | None = None, until_us: int | None = None
    ) -> list[Entry]:
        """Return the outcomes from `since_us` until before `until_us`, the oldest first.

        `paths` are files and directories, () means all; the same holds for the methods below.
        """
        where, values = _where(paths, since_us, until_us)
        rows = self._rows(
            f"""SELECT coalesce(origin, ''), when_us, {columns(Outcome)}
            FROM outcomes LEFT JOIN runs ON runs.id = outcomes.run WHERE {where} ORDER BY when_us, outcomes.id""",  # noqa: S608 - _where's words are ours
            values,
        )

        def parse(row: tuple[Any, ...]) -> Entry:
            origin, when_us = parse_row(Moment, row[:2])
            outcome = parse_row(Outcome, row[2:])
            return Entry(when_us, origin, outcome._replace(duration_s=outcome.duration_s / 1e6))

        return list(self._parse_rows("outcomes", rows, parse))

    def samples(
        self, paths: Sequence[str] = (), since_us: int | None = None, until_us: int | None = None
    ) -> list[Sample]:
        """Return the extent counts of active files, the oldest first."""
        where, values = _where(paths, since_us, until_us)
        rows = self._rows(
            f"""SELECT {columns(Sample)} FROM samples WHERE {where} ORDER BY when_us, id""",  # noqa: S608 - as in history
            values,
        )
        return list(self._parse_rows("samples", rows, partial(parse_row, Sample)))

    def totals(self, since_us: int | None = None, until_us: int | None = None) -> list[Totals]:
        """Return the stored totals from `since_us` until before `until_us`, the oldest first.

        Each row contains the sums over the files of one instance at one moment.
        """
        where, values = _where((), since_us, until_us)
        rows = self._rows(
            f"""SELECT {columns(Totals)} FROM totals WHERE {where} ORDER BY when_us, id""",  # noqa: S608 - as in history
            values,
        )
        return list(self._parse_rows("totals", rows, partial(parse_row, Totals)))

    def prune(self, now_us: int, keep_us: int, host: Host | None = None, *, max_rows: int | None = None) -> None:
        """Delete rows older than `keep_us`, and of each table the oldest rows beyond `max_rows`.

        A row counts as old only if a later call confirmed the clock: a clock that jumps ahead deletes nothing. The past
        of a file is deleted only when `host` has not shown the file for `keep_us`, so that an archive is rewritten
        once.
        """
        moments = confirm_clock(self._moments(), now_us)
        oldest_us = moments.get("confirmed", -FOREVER_US + keep_us) - keep_us
        files, volumes = ((), ()) if host is None else (host.files, host.volumes)
        rules = [("rewrites", "seen_us < ?", oldest_us), ("runs", "began_us < ?", oldest_us)]
        rules += [(table, "when_us < ?", oldest_us) for table in ("outcomes", "totals", "samples")]
        if max_rows is not None:
            tables = ("runs", "outcomes", "totals", "samples")
            rules += [(table, f"id <= (SELECT max(id) FROM {table}) - ?", max_rows) for table in tables]  # noqa: S608 - our words

        def forget(connection: Connection) -> None:
            changed = "INSERT INTO moments VALUES (?, ?) ON CONFLICT DO UPDATE SET when_us = excluded.when_us"
            connection.executemany(f"{changed} WHERE when_us IS NOT excluded.when_us", moments.items())
            for volume in volumes:
                inodes = json.dumps([file.inode for file in files if file.device == volume.device])
                connection.execute(SEEN, (now_us, volume.uuid, volume.subvolume, inodes, now_us, DAY_US))
            for table, condition, value in rules:
                connection.execute(f"DELETE FROM {table} WHERE {condition}", (value,))  # noqa: S608 - our words

        self.write(forget)

    def _parse_rows(
        self, table: str, rows: Sequence[tuple[Any, ...]], parse: Callable[[tuple[Any, ...]], T]
    ) -> Iterator[T]:
        """Yield `parse(row)` for each row; skip a row that raises ValueError or TypeError and count it in `ignored`."""
        for row in rows:
            try:
                yield parse(row)
            except (ValueError, TypeError) as error:
                count, why = self._ignored.get(table, (0, str(error)))
                self._ignored[table] = count + 1, why

    def _rows(self, statement: str, values: Sequence[object]) -> list[Any]:
        return self.read(lambda connection: connection.execute(statement, values).fetchall())


def run_bookkeeping(task: Callable[[], object], prefix: str = "") -> list[str]:
    """Call `task` and return its error as a notice, because the files are already rewritten."""
    try:
        task()
    except KeeperError as error:
        return [f"{prefix}{error}"]
    return []


def store_outcome(record: Record, run: int, volumes: Sequence[Volume], device: int, done: Done) -> list[str]:
    """Store the outcome in the history. Return a notice if the history cannot be written.

    The file on `device` is already rewritten; without the row, the next look sees a compact file and skips it.
    """
    key = next((volume.uuid, volume.subvolume) for volume in volumes if volume.device == device)
    store = partial(record.outcome, run, key, done, time.time_ns() // 1000)
    return run_bookkeeping(store, f"{done.outcome.path}: not recorded: ")


def _insert(connection: Connection, table: str, row: tuple[object, ...]) -> int:
    """Insert a row into `table`, or replace the row with the same key. Return the row's id."""
    kept = list(map(encodable, row))
    places = ", ".join("?" * len(kept))
    return connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({places})", kept).lastrowid or 0  # noqa: S608 - our tables


def _where(paths: Sequence[str], since_us: int | None, until_us: int | None) -> tuple[str, list[object]]:
    """Return an SQL condition with placeholders, and the values for them.

    It selects the rows from `since_us` until before `until_us` whose path is one of `paths` or below one. () means all
    paths.
    """
    values: list[object] = [-FOREVER_US if since_us is None else since_us, FOREVER_US if until_us is None else until_us]
    words = "when_us >= ? AND when_us < ?"
    names = []
    for path in paths:
        name = os.fsencode(os.path.abspath(path))
        below = name.rstrip(b"/") + b"/"
        names.append("path = ? OR substr(path, 1, ?) = ?")
        values += [name, len(below), below]
    return words + (f" AND ({' OR '.join(names)})" if names else ""), values
