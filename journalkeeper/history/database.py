# SPDX-License-Identifier: LGPL-2.1-or-later
"""A SQLite file that survives killed writers, a full disk, and a corrupt or foreign file.

Each SQLite error becomes one of our errors, or the damaged file is renamed and a fresh database is made. A file counts
as damaged only after two failed tries, and if every byte can then be read. SQLite reports a failed read as damage, too:
EIO becomes SQLITE_IOERR_CORRUPTFS, and that SQLITE_CORRUPT (sqlite 3.40, os_unix.c and vdbe.c).

The database uses a rollback journal, although WAL is much cheaper (measured on btrfs per commit: 0.2 I/Os and 11 KiB
against 14 and 164 KiB; synchronous=FULL would be 27 and 304 KiB). WAL maps its index file, and on a full btrfs the
first store to that mapping kills the process with SIGBUS (measured). A reader without write permission in the directory
also cannot read a WAL database after its writer has ended. So commits are kept few instead. With synchronous=NORMAL, a
power cut at the worst moment could corrupt the file; it is then renamed like any damaged file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Self, TypeVar

from journalkeeper.history import state
from journalkeeper.history.schema import MIGRATIONS, SCHEMA, VERSION
from journalkeeper.model.errors import FileError, KeeperError, NeedsRootError

T = TypeVar("T")

APPLICATION_ID = 0x4A6B7031
"""The value of PRAGMA application_id in our databases: a file with another value is foreign."""

BUSY_S = 5.0
"""How long to wait for another process's transaction; readers and writers take milliseconds."""

READERS_S = 1.0
"""How long a writer waits for readers before its transaction. SQLite lets them try again every 0.1 s at most, so that
without this wait none of them met the moment between two commits (measured: 4 of 4 failed after BUSY_S).
"""

MODE = 0o640

READ_BYTES = 1 << 20


class _UnusableError(KeeperError):
    """The file is unusable; `why` (corrupt, foreign, newer, moved) is the suffix when root's next run renames it."""

    def __init__(self, path: str, why: str) -> None:
        self.why = why
        super().__init__(f"{path}: the history is {why}; the next run as root renames it and starts a new one")


class Database:
    """The SQLite file at `path`, with the schema of schema.py. A writer creates a missing file and migrates an old one.

    A writer renames a damaged or foreign file and starts a new one. `set_aside` is then the new path of the old file,
    otherwise None. A read-only database that does not exist is empty. Only the thread that opened it may use it.

    Raises: as `read`, because the constructor opens the file.
    """

    def __init__(self, path: str, *, read_only: bool) -> None:
        self.path = path
        self.set_aside: str | None = None
        self._read_only = read_only
        self._connection: Connection | None = None
        self.read(lambda connection: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file if it is open; roll back an open transaction. The next `read` or `write` opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Call `work` with the open connection, and return its result. `work` may run several times.

        A reader waits for one commit at most, however many follow. `work` must fetch all rows, because an open cursor
        blocks writers.

        Raises: NeedsRootError: no permission; FileError: an OSError, a full or failing disk; else KeeperError: locked
        for BUSY_S; opened read-only and damaged, foreign or newer; a number beyond 63 bits; another error of SQLite.
        """
        with _lock_directory(self.path, fcntl.LOCK_SH) if self._read_only else nullcontext():
            return self._run_or_replace("read the history", work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Wait for readers, at most READERS_S. Then call `work` in a transaction, commit it and return its result.

        `work` may run several times. Raises: as `read`; the errors of `work`, whose changes are then rolled back.
        """

        def run_transaction(connection: Connection) -> T:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                return work(connection)

        with _lock_directory(self.path, fcntl.LOCK_EX):
            pass
        return self._run_or_replace("write the history", run_transaction)

    def _run_or_replace(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`. If the file is unusable, run `work` on the file opened anew.

        If it still is, and can be read through, a writer renames only it to "PATH.WHY-TIME" (UTC) and uses a new file.
        Raises: _UnusableError; others as `_translate_error`.
        """
        with suppress(_UnusableError):
            return self._run_once(doing, work)
        try:
            return self._run_once(doing, work)
        except _UnusableError as error:
            with self._translate_errors(doing):
                _read_through(self.path)
                if self._read_only:
                    raise
                # A rollback journal keeps its name. SQLite has already rolled it back, or deletes it when it opens the
                # new, empty database (pager.c, hasHotJournal).
                aside = f"{self.path}.{error.why}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
                os.rename(self.path, aside)
                self.set_aside = aside
        return self._run_once(doing, work)

    def _run_once(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Return the result of `work` with the connection, opened if closed. Errors: see `_translate_errors`."""
        with self._translate_errors(doing):
            return work(self._connection or self._connect())

    @contextmanager
    def _translate_errors(self, doing: str) -> Iterator[None]:
        """Close the file after _UnusableError, OSError, OverflowError or SQLite's errors; translate the last three."""
        try:
            yield
        except _UnusableError:
            self.close()
            raise
        except (OSError, OverflowError, sqlite3.DatabaseError) as error:
            self.close()
            raise _translate_error(error, doing, self.path) from error

    def _connect(self) -> Connection:
        """Open the file, and return and store the connection. A reader gets a missing or older schema in memory.

        A reader changes no rows, but SQLite may roll back the unfinished transaction of a killed writer.
        Raises: _UnusableError; KeeperError as `make_directory` and `require_regular`; OSError; sqlite3.DatabaseError.
        """
        # SQLite opens the file read-only if it may not write. A reader who may write
        # rolls back the transaction of a killed writer.
        uri = f"{Path(self.path).as_uri()}?mode=rw"
        for suffix in ("", "-journal", "-wal", "-shm"):
            state.require_regular(f"{self.path}{suffix}")
        try:
            os.stat(self.path)
        except FileNotFoundError:
            if self._read_only:
                uri = "file::memory:"
            else:
                state.make_directory(os.path.dirname(self.path))
                # SQLite gives its journal the same mode.
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE))
        connection = self._connection = _open_uri(uri)
        version = self._read_version(connection)
        if self._read_only and version < VERSION:
            self._connection = _open_uri("file::memory:")
            with closing(connection):
                connection.backup(self._connection)
            connection = self._connection
        connection.execute("PRAGMA journal_mode = TRUNCATE")
        connection.execute("PRAGMA synchronous = NORMAL")
        if version < VERSION:
            self._migrate(connection)
        connection.execute(f"PRAGMA query_only = {self._read_only:d}")
        return connection

    def _read_version(self, connection: Connection) -> int:
        """Return the schema version, 0 if empty. Raises: _UnusableError if foreign, newer or altered; DatabaseError."""
        # One statement, so that no other process's migration falls between.
        application, version, schema = connection.execute(
            "SELECT application_id, user_version, (SELECT group_concat(sql, char(1)) FROM sqlite_schema"
            " WHERE name NOT GLOB 'sqlite_*')"  # ANALYZE makes such a table
            " FROM pragma_application_id, pragma_user_version"
        ).fetchone()
        if application == version == 0 and schema is None:
            return 0
        if application == APPLICATION_ID and version in {VERSION, *MIGRATIONS}:
            if version == VERSION and {*(schema or "").split("\1")} != SCHEMA:
                raise _UnusableError(self.path, "corrupt")
            return int(version)
        newer = application == APPLICATION_ID and version > VERSION
        raise _UnusableError(self.path, "newer" if newer else "foreign")

    def _migrate(self, connection: Connection) -> None:
        """Bring the database to the newest version in one transaction. Another process may do so meanwhile.

        Raises: _UnusableError if the tables are not those of its version; sqlite3.Error.
        """
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            for statement in MIGRATIONS.get(self._read_version(connection), ()):
                try:
                    connection.execute(statement)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                        raise
                    raise _UnusableError(self.path, "corrupt") from error  # not the tables of its version
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {VERSION}")


def _open_uri(uri: str) -> Connection:
    """Return a connection for this thread, with sqlite3.Row as its rows. Bytes not in UTF-8 become surrogates."""
    connection = sqlite3.connect(uri, timeout=BUSY_S, isolation_level=None, uri=True)
    connection.row_factory = sqlite3.Row
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")  # twice as fast as os.fsdecode
    return connection


@contextmanager
def _lock_directory(path: str, kind: int) -> Iterator[None]:
    """Hold a lock of this `kind` on the directory of `path`; none if it cannot be opened, or after READERS_S.

    A reader's lock makes writers wait. It cannot be on the file, because closing that would drop SQLite's own locks.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            deadline_s = time.monotonic() + READERS_S
            while time.monotonic() < deadline_s:
                with suppress(BlockingIOError):
                    fcntl.flock(fd, kind | fcntl.LOCK_NB)
                    break
                time.sleep(0.01)
        yield


def _translate_error(error: Exception, doing: str, path: str) -> KeeperError:
    """Return the KeeperError: _UnusableError (corrupt, moved), NeedsRootError, FileError (OSError, FULL, IOERR)."""
    if isinstance(error, OSError):
        return state.wrap_error(doing, path, error)
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if extended == sqlite3.SQLITE_READONLY_DBMOVED:  # the file was removed or renamed since it was opened
        return _UnusableError(path, "moved")
    code = extended & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _UnusableError(path, "corrupt")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return KeeperError(f"{path}: cannot {doing}: another process has kept it locked for {BUSY_S:.0f} s")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) and os.geteuid() != 0:
        return NeedsRootError(f"{path}: cannot {doing}: {os.strerror(errno.EACCES)}")
    number = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO}.get(code)
    return FileError(doing, path, number) if number else KeeperError(f"{path}: cannot {doing}: {error}")


def _read_through(path: str) -> None:
    """Read every byte of a database and of its rollback journal, if they exist. Raises: OSError, for example EIO."""
    for name in (path, f"{path}-journal"):
        with suppress(FileNotFoundError), open(name, "rb", buffering=0) as file:
            while file.read(READ_BYTES):
                continue
