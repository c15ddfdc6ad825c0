# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was done and seen, kept in the state directory: rewrites, runs, outcomes, extent counts.

One transaction per outcome, so that a run that is killed has recorded what it
finished, and nothing is written that says the same as the row before it.

A file is known by (volume UUID, subvolume, inode), because st_dev is dealt out anew at each
mount; a volume's key is the first two. Paths are bytes in the database: names need not be UTF-8.
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
    counted,
    encodable,
    entry,
    moment,
    named,
    outcome_values,
    past,
    ran,
    sample,
    totals,
    waited,
)
from journalkeeper.history.schema import MIGRATIONS
from journalkeeper.model import Host, Kind, Outcome, Past, Reason, Result, Verb
from journalkeeper.model.recorded import Counters, Entry, Run, Sample, Totals
from journalkeeper.model.units import DAY_US
from journalkeeper.model.waiting import Wait, is_long
from journalkeeper.wire.records import KEPT_OUTCOME, SAMPLE, TOTALS, WAIT

NAME = "history.db"
FOREVER_US = (1 << 63) - 1
REWRITES = (Verb.DEFRAGMENT, Verb.COMPRESS, Verb.REWRITE, Verb.ROTATE)


WRITTEN = f"coalesce(sum(bytes_written) FILTER (WHERE bytes_written BETWEEN 0 AND {COUNT_LIMIT}), 0)"
"""SQL for a sum without damaged numbers, of two of which SQLite makes none ("integer overflow")."""

THESE: Final = "uuid = ? AND subvolume = ? AND inode IN (SELECT value FROM json_each(?))"
SEEN: Final = f"UPDATE rewrites SET seen_us = ? WHERE {THESE} AND abs(seen_us - ?) >= ?"  # noqa: S608 - our words
"""The rewrites of these files, last seen a day ago, are not to be forgotten."""

T = TypeVar("T")

VolumeKey = tuple[str, int]
"""A volume's UUID and the tree id of the subvolume."""


class Record:
    """The record in `directory`, which is made if need be; read-only for who only wants to know.

    One thread at a time may use it. `set_aside` is where a damaged record was moved to by
    this object, None while nothing was; `vanished` says that it was deleted under our hands
    and begun anew. `ignored` has a sentence on each table with rows that could not be understood.

    Raises, here and in every method: NeedsRootError without the right; BusyError after 5 s;
        FileError (ENOSPC, EROFS, EIO); KeeperError for a damaged record opened read-only.
    """

    def __init__(self, directory: str | os.PathLike[str], *, read_only: bool = False) -> None:
        path = os.path.join(os.path.abspath(directory), NAME)
        self._database = Database(path, MIGRATIONS, read_only=read_only)
        self._ignored: dict[str, tuple[int, str]] = {}

    @property
    def path(self) -> str:
        """The database file."""
        return self._database.path

    @property
    def set_aside(self) -> str | None:
        """The new path of a record that could not be used."""
        return self._database.set_aside

    @property
    def vanished(self) -> bool:
        """Whether the record disappeared while it was open."""
        return self._database.vanished

    @property
    def ignored(self) -> tuple[str, ...]:
        """What is to be said of rows that were read and left out."""
        return tuple(
            f"{self.path}: {count} {'row' if count == 1 else 'rows'} of {table} {'was' if count == 1 else 'were'}"
            f" ignored: {why}; written by a newer version, or damaged"
            for table, (count, why) in self._ignored.items()
        )

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin_run(self, now_us: int, origin: str) -> int:
        """The id of a new run, begun by `origin` ("defrag", "daemon", ...)."""
        return self._database.write(lambda connection: _inserted(connection, "runs", (None, origin, now_us, None)))

    def end_run(self, run: int, now_us: int) -> None:
        """Say that a run came to its end by itself."""
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
        """Keep one outcome; a rewrite that was carried out, for good or in vain, is also the past of `inode`.

        `inode`, `mtime_ns` and `size_bytes` are the file's afterwards: what takes a name by a
        rewrite or a rotation has another inode than the plan saw. `compress` is how it was compressed, `kind` what the
        file was when the rewrite began.
        """

        def keep(connection: Connection) -> None:
            table = f"outcomes (run, when_us, {columns(KEPT_OUTCOME)})"
            _inserted(connection, table, (run, when_us, *outcome_values(outcome)))
            if outcome.action in REWRITES and (outcome.result is Result.DONE or outcome.reason is Reason.NO_GAIN):
                after = (outcome.action.value, when_us, size_bytes, mtime_ns, outcome.extents_after, when_us)
                gain = (outcome.extents_before, extents_expected, outcome.bytes_written)
                _inserted(connection, "rewrites", (*volume, inode, *after, *gain, compress, kind))

        self._database.write(keep)

    def past(self, volume: VolumeKey, inodes: Iterable[int] | None = None) -> dict[int, Past]:
        """The last rewrite of each file on a volume, or of those with `inodes`, by inode."""
        columns = "inode, verb, when_us, size_bytes, mtime_ns, extents, extents_before, extents_expected"
        where, values = "uuid = ? AND subvolume = ?", list[object](volume)
        if inodes is not None:
            where += " AND inode IN (SELECT value FROM json_each(?))"
            values.append(json.dumps(list(inodes)))
        rows = self._rows(
            f"SELECT {columns}, bytes_written, compress, kind FROM rewrites WHERE {where}",  # noqa: S608 - our words
            values,
        )
        return dict(self._understood("rewrites", rows, past))

    def observe(self, now_us: int, host: Host, *, every_us: int = 0) -> None:
        """Keep each instance's totals and each active file's extents where they are not what they were.

        A row follows its predecessor after `every_us` at the earliest: active files change
        with every flush, and a commit costs 14 I/Os. Files with a problem are left out.
        """
        rows = self._database.read(lambda connection: samples.news(connection, now_us, host, every_us))
        if not rows:
            return

        def keep(connection: Connection) -> None:
            for table, row in rows:
                _inserted(connection, table, row)

        self._database.write(keep)

    def written_since(self, when_us: int, until_us: int | None = None) -> int:
        """The bytes that were written after `when_us`, for the budget.

        With `until_us`, the present time, what was recorded while the clock was ahead does
        not use up the budgets of the days until then.
        """
        ((written,),) = self._rows(
            f"SELECT {WRITTEN} FROM outcomes WHERE when_us > ? AND when_us <= ?",  # noqa: S608 - our words
            (when_us, FOREVER_US if until_us is None else until_us),
        )
        return int(written)

    def rotations_since(self, when_us: int, until_us: int) -> int:
        """How many rotations were asked for in that time; journald may have made one and not answered."""
        wanted = "action = 'rotate' AND result != 'skipped' AND when_us BETWEEN ? AND ?"
        return int(self._rows(f"SELECT count(*) FROM outcomes WHERE {wanted}", (when_us, until_us))[0][0])  # noqa: S608 - our words

    def unshared_since(self, when_us: int) -> frozenset[str]:
        """Return the directories in which a file was rewritten beside a snapshot since then.

        Journals of users are left out: a user may have reflinked the own one.
        """
        rows = self._rows("SELECT DISTINCT path FROM outcomes WHERE unshared_bytes > 0 AND when_us > ?", (when_us,))
        paths = map(os.path.split, self._understood("outcomes", rows, named))
        return frozenset(directory for directory, name in paths if not name.startswith("user-"))

    def waiting(self) -> dict[str, Wait]:
        """The files that wait, by path."""
        rows = self._rows(f"SELECT {columns(WAIT)} FROM waiting ORDER BY since_us, path", ())  # noqa: S608 - our words
        return {wait.path: wait for wait in self._understood("waiting", rows, waited)}

    def wait(self, waits: Iterable[Wait], *, now_us: int) -> None:
        """Keep these in place of what was kept.

        Nothing is written where the same files wait since the same times, those of more than a day, which `status`
        reports, for the same reasons.
        """

        def reported(wait: Wait) -> tuple[str, int, str]:
            return wait.path, wait.since_us, wait.reason if is_long(wait, now_us) else ""

        kept = {one.path: one for one in waits}
        if set(map(reported, kept.values())) == set(map(reported, self.waiting().values())):
            return
        rows = [(os.fsencode(one.path), one.since_us, one.reason) for one in kept.values()]

        def keep(connection: Connection) -> None:
            connection.execute("DELETE FROM waiting")
            connection.executemany("INSERT INTO waiting VALUES (?, ?, ?)", rows)

        self._database.write(keep)

    def run_failed(self) -> None:
        """Count a run that came to nothing as a whole."""
        self._database.write(
            lambda connection: connection.execute("UPDATE ever SET times = times + 1 WHERE what = 'failed-run'")
        )

    def counters(self) -> Counters:
        """Return the totals since the record began, which pruning does not change."""
        counts = dict(self._understood("ever", self._rows("SELECT * FROM ever", ()), counted))
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
        """Return the times of the table of moments, by name."""
        return dict(self._understood("moments", self._rows("SELECT what, when_us FROM moments", ()), moment))

    def last_run(self) -> Run | None:
        """The run that began last, None if there was none."""
        rows = self._rows(
            f"""SELECT runs.id, origin, began_us, ended_us, count(*) FILTER (WHERE result = 'done'),
                count(*) FILTER (WHERE result = 'skipped'), count(*) FILTER (WHERE result = 'failed'),
                {WRITTEN}
            FROM runs LEFT JOIN outcomes ON outcomes.run = runs.id
            WHERE runs.id = (SELECT max(id) FROM runs) GROUP BY runs.id""",  # noqa: S608 - our words
            (),
        )
        return next(self._understood("runs", rows, ran), None)

    def newest_run(self) -> int:
        """The id of the run that began last, 0 if there is none."""
        ((newest,),) = self._rows("SELECT coalesce(max(id), 0) FROM runs", ())
        return int(newest)

    def worked_on_after(self, run: int) -> list[str]:
        """The paths with an outcome of a run later than `run`."""
        statement = "SELECT DISTINCT path FROM outcomes WHERE run > ? AND typeof(path) = 'blob'"
        return [os.fsdecode(path) for (path,) in self._rows(statement, (run,))]

    def history(
        self, paths: Sequence[str] = (), since_us: int | None = None, until_us: int | None = None
    ) -> list[Entry]:
        """The outcomes from `since_us` until before `until_us`, the oldest first.

        `paths` are files and directories, () means all; so in the methods below.
        """
        where, values = _where(paths, since_us, until_us)
        rows = self._rows(
            f"""SELECT when_us, coalesce(origin, ''), {columns(KEPT_OUTCOME)}
            FROM outcomes LEFT JOIN runs ON runs.id = outcomes.run WHERE {where} ORDER BY when_us, outcomes.id""",  # noqa: S608 - _where's words are ours
            values,
        )
        return list(self._understood("outcomes", rows, entry))

    def samples(
        self, paths: Sequence[str] = (), since_us: int | None = None, until_us: int | None = None
    ) -> list[Sample]:
        """The extent counts of active files, the oldest first."""
        where, values = _where(paths, since_us, until_us)
        rows = self._rows(
            f"""SELECT {columns(SAMPLE)} FROM samples WHERE {where} ORDER BY when_us, id""",  # noqa: S608 - as in history
            values,
        )
        return list(self._understood("samples", rows, sample))

    def totals(self, since_us: int | None = None, until_us: int | None = None) -> list[Totals]:
        """The sums of each instance, the oldest first."""
        where, values = _where((), since_us, until_us)
        rows = self._rows(
            f"""SELECT {columns(TOTALS)} FROM totals WHERE {where} ORDER BY when_us, id""",  # noqa: S608 - as in history
            values,
        )
        return list(self._understood("totals", rows, totals))

    def prune(self, now_us: int, keep_us: int, host: Host | None = None, *, max_rows: int | None = None) -> None:
        """Delete rows older than `keep_us`, and of each table the oldest beyond `max_rows`.

        A row is old only by a clock that a later call confirmed: a clock that jumps ahead deletes nothing. The past
        of a file is deleted when the file was not among those of `host` for `keep_us`, however old the past is: an
        archive is rewritten once.
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

    def _understood(
        self, table: str, rows: Sequence[tuple[Any, ...]], made: Callable[[tuple[Any, ...]], T]
    ) -> Iterator[T]:
        """What is made of each row; one that says nothing to us ends nothing, and `ignored` counts it."""
        for row in rows:
            try:
                yield made(row)
            except (ValueError, TypeError) as error:
                count, why = self._ignored.get(table, (0, str(error)))
                self._ignored[table] = count + 1, why

    def _rows(self, statement: str, values: Sequence[object]) -> list[Any]:
        return self._database.read(lambda connection: connection.execute(statement, values).fetchall())


def _inserted(connection: Connection, table: str, row: tuple[object, ...]) -> int:
    """Put a row in and return its id; a row of the same key gives way."""
    places = ", ".join("?" * len(row))
    kept = [encodable(value) if isinstance(value, str) else value for value in row]
    return connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({places})", kept).lastrowid or 0  # noqa: S608 - our tables


def _where(paths: Sequence[str], since_us: int | None, until_us: int | None) -> tuple[str, list[object]]:
    """The condition for rows of a time and of files, or files below directories, and its values."""
    values: list[object] = [-FOREVER_US if since_us is None else since_us, FOREVER_US if until_us is None else until_us]
    words = "when_us >= ? AND when_us < ?"
    names = []
    for path in paths:
        name = os.fsencode(os.path.abspath(path))
        below = name.rstrip(b"/") + b"/"
        names.append("path = ? OR substr(path, 1, ?) = ?")
        values += [name, len(below), below]
    return words + (f" AND ({' OR '.join(names)})" if names else ""), values
