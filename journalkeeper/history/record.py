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
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from journalkeeper.history import samples
from journalkeeper.history.database import Connection, Database
from journalkeeper.history.rows import (
    COUNT_LIMIT,
    columns,
    confirm_clock,
    encodable,
    outcome_values,
    parse_counters,
    parse_entry,
    parse_moment,
    parse_past,
    parse_path,
    parse_run,
    parse_sample,
    parse_totals,
    parse_wait,
)
from journalkeeper.history.schema import MIGRATIONS
from journalkeeper.model import Host, Kind, Outcome, Past, Reason, Result, Verb
from journalkeeper.model.recorded import Counters, Entry, Run, Sample, Totals
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


class Record:
    """The history in `directory`, which is created if necessary, unless `read_only` is given.

    One thread at a time may use it. `set_aside` is the path to which this object moved a damaged database, or None.
    `vanished` is true after the database was deleted while it was open. `ignored` has a sentence for each table with
    unreadable rows.

    Raises, here and in every method: NeedsRootError without the permission; BusyError after 5 s; FileError (ENOSPC,
        EROFS, EIO); KeeperError for a damaged database that was opened read-only.
    """

    def __init__(self, directory: str | os.PathLike[str], *, read_only: bool = False) -> None:
        path = os.path.join(os.path.abspath(directory), NAME)
        self._database = Database(path, MIGRATIONS, read_only=read_only)
        self._ignored: dict[str, tuple[int, str]] = {}

    @property
    def path(self) -> str:
        """The path of the database file."""
        return self._database.path

    @property
    def set_aside(self) -> str | None:
        """The new path of a damaged database that was renamed, or None."""
        return self._database.set_aside

    @property
    def vanished(self) -> bool:
        """Whether the database was deleted while it was open, and a new one was made."""
        return self._database.vanished

    @property
    def ignored(self) -> tuple[str, ...]:
        """One sentence for each table with rows that could not be read."""
        return tuple(
            f"{self.path}: {count} {'row' if count == 1 else 'rows'} of {table} {'was' if count == 1 else 'were'}"
            f" ignored: {why} (damaged, or written by a newer version)"
            for table, (count, why) in self._ignored.items()
        )

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin_run(self, now_us: int, origin: str) -> int:
        """Store a new run, begun by `origin` ("defrag", "daemon", ...), and return its id."""
        return self._database.write(lambda connection: _insert(connection, "runs", (None, origin, now_us, None)))

    def end_run(self, run: int, now_us: int) -> None:
        """Store that a run ended normally."""
        self._database.write(
            lambda connection: connection.execute("UPDATE runs SET ended_us = ? WHERE id = ?", (now_us, run))
        )

    def outcome(
        self,
        run: int,
        volume: VolumeKey,
        inode: int,
        outcome: Outcome,
        *,
        mtime_ns: int,
        size_bytes: int,
        when_us: int,
        extents_expected: int = 0,
        compress: str | None = None,
        kind: Kind | None = None,
    ) -> None:
        """Store an outcome. A rewrite that was done or gained nothing also replaces the past of `inode`.

        `inode`, `mtime_ns` and `size_bytes` are those after the rewrite or the rotation, which give the name a new
        inode. `compress` is the compression that was used, `kind` the kind of the file before the rewrite.
        """

        def keep(connection: Connection) -> None:
            table = f"outcomes (run, when_us, {columns(Outcome)})"
            _insert(connection, table, (run, when_us, *outcome_values(outcome)))
            if outcome.action in REWRITES and (outcome.result is Result.DONE or outcome.reason is Reason.NO_GAIN):
                after = (outcome.action.value, when_us, size_bytes, mtime_ns, outcome.extents_after, when_us)
                gain = (outcome.extents_before, extents_expected, outcome.bytes_written)
                _insert(connection, "rewrites", (*volume, inode, *after, *gain, compress, kind))

        self._database.write(keep)

    def past(self, volume: VolumeKey, inodes: Iterable[int] | None = None) -> dict[int, Past]:
        """Return the last rewrite of each file on a volume, by inode; only of `inodes` if given."""
        columns = "inode, verb, when_us, size_bytes, mtime_ns, extents, extents_before, extents_expected"
        where, values = "uuid = ? AND subvolume = ?", list[object](volume)
        if inodes is not None:
            where += " AND inode IN (SELECT value FROM json_each(?))"
            values.append(json.dumps(list(inodes)))
        rows = self._rows(
            f"SELECT {columns}, bytes_written, compress, kind FROM rewrites WHERE {where}",  # noqa: S608 - our words
            values,
        )
        return dict(self._parse_rows("rewrites", rows, parse_past))

    def observe(self, now_us: int, host: Host, *, every_us: int = 0) -> None:
        """Store each instance's totals and each active file's extents if they changed.

        A row follows its predecessor after `every_us` at the earliest: active files change with every flush, and a
        commit costs 14 I/Os. Files with a problem are left out.
        """
        rows = self._database.read(lambda connection: samples.find_new_rows(connection, now_us, host, every_us))
        if not rows:
            return

        def keep(connection: Connection) -> None:
            for table, row in rows:
                _insert(connection, table, row)

        self._database.write(keep)

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
        paths = map(os.path.split, self._parse_rows("outcomes", rows, parse_path))
        return frozenset(directory for directory, name in paths if not name.startswith("user-"))

    def waiting(self) -> dict[str, Wait]:
        """Return the files that wait, by path."""
        rows = self._rows(f"SELECT {columns(Wait)} FROM waiting ORDER BY since_us, path", ())  # noqa: S608 - our words
        return {wait.path: wait for wait in self._parse_rows("waiting", rows, parse_wait)}

    def wait(self, waits: Iterable[Wait], *, now_us: int) -> None:
        """Replace the stored files that wait with `waits`.

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

        self._database.write(keep)

    def count_run_failure(self) -> None:
        """Count a run that failed as a whole."""
        self._database.write(
            lambda connection: connection.execute("UPDATE ever SET times = times + 1 WHERE what = 'failed-run'")
        )

    def counters(self) -> Counters:
        """Return the totals since the history began, which pruning does not change."""
        counts = dict(self._parse_rows("ever", self._rows("SELECT * FROM ever", ()), parse_counters))
        times = {what: numbers[0] for what, numbers in counts.items()}
        written, removed, reclaimed, known, unmeasured = (
            sum(row[column] for row in counts.values()) for column in range(1, 6)
        )
        return Counters(
            done=times.get("done", 0),
            skipped=times.get("skipped", 0),
            failed=times.get("failed", 0),
            failed_runs=times.get("failed-run", 0),
            bytes_written=written,
            extents_removed=removed,
            bytes_reclaimed=reclaimed if known else None,
            unmeasured=unmeasured,
            since_us=self._moments().get("installed"),
        )

    def _moments(self) -> dict[str, int]:
        """Return the times in the table `moments`, by name."""
        return dict(self._parse_rows("moments", self._rows("SELECT what, when_us FROM moments", ()), parse_moment))

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
        return next(self._parse_rows("runs", rows, parse_run), None)

    def find_newest_run(self) -> int:
        """Return the id of the run that began last, 0 if there was none."""
        ((newest,),) = self._rows("SELECT coalesce(max(id), 0) FROM runs", ())
        return int(newest)

    def list_paths_since_run(self, run: int) -> list[str]:
        """Return the paths that have an outcome of a run later than `run`."""
        statement = "SELECT DISTINCT path FROM outcomes WHERE run > ? AND typeof(path) = 'blob'"
        return [os.fsdecode(path) for (path,) in self._rows(statement, (run,))]

    def history(
        self, paths: Sequence[str] = (), since_us: int | None = None, until_us: int | None = None
    ) -> list[Entry]:
        """Return the outcomes from `since_us` until before `until_us`, the oldest first.

        `paths` are files and directories, () means all; the same holds for the methods below.
        """
        where, values = _where(paths, since_us, until_us)
        rows = self._rows(
            f"""SELECT when_us, coalesce(origin, ''), {columns(Outcome)}
            FROM outcomes LEFT JOIN runs ON runs.id = outcomes.run WHERE {where} ORDER BY when_us, outcomes.id""",  # noqa: S608 - _where's words are ours
            values,
        )
        return list(self._parse_rows("outcomes", rows, parse_entry))

    def samples(
        self, paths: Sequence[str] = (), since_us: int | None = None, until_us: int | None = None
    ) -> list[Sample]:
        """Return the extent counts of active files, the oldest first."""
        where, values = _where(paths, since_us, until_us)
        rows = self._rows(
            f"""SELECT {columns(Sample)} FROM samples WHERE {where} ORDER BY when_us, id""",  # noqa: S608 - as in history
            values,
        )
        return list(self._parse_rows("samples", rows, parse_sample))

    def totals(self, since_us: int | None = None, until_us: int | None = None) -> list[Totals]:
        """Return the totals of each instance, the oldest first."""
        where, values = _where((), since_us, until_us)
        rows = self._rows(
            f"""SELECT {columns(Totals)} FROM totals WHERE {where} ORDER BY when_us, id""",  # noqa: S608 - as in history
            values,
        )
        return list(self._parse_rows("totals", rows, parse_totals))

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

        self._database.write(forget)

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
        return self._database.read(lambda connection: connection.execute(statement, values).fetchall())


def _insert(connection: Connection, table: str, row: tuple[object, ...]) -> int:
    """Insert a row, or replace the row with the same key, and return its id."""
    places = ", ".join("?" * len(row))
    kept = [encodable(value) if isinstance(value, str) else value for value in row]
    return connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({places})", kept).lastrowid or 0  # noqa: S608 - our tables


def _where(paths: Sequence[str], since_us: int | None, until_us: int | None) -> tuple[str, list[object]]:
    """Return the SQL condition, and its values, for rows of a period and of files or files below directories."""
    values: list[object] = [-FOREVER_US if since_us is None else since_us, FOREVER_US if until_us is None else until_us]
    words = "when_us >= ? AND when_us < ?"
    names = []
    for path in paths:
        name = os.fsencode(os.path.abspath(path))
        below = name.rstrip(b"/") + b"/"
        names.append("path = ? OR substr(path, 1, ?) = ?")
        values += [name, len(below), below]
    return words + (f" AND ({' OR '.join(names)})" if names else ""), values
