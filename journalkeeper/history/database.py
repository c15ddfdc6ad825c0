# SPDX-License-Identifier: LGPL-2.1-or-later
"""A SQLite file that survives killed writers, a full disk, and a corrupt or foreign file.

Each SQLite error becomes one of our errors, or the damaged file is renamed and a fresh database is made. A file counts
as damaged only after two failed tries during which every byte could be read. SQLite reports a failed read as damage,
too: EIO becomes SQLITE_IOERR_CORRUPTFS, and that SQLITE_CORRUPT (sqlite 3.40, os_unix.c and vdbe.c).

The database uses a rollback journal, although WAL is much cheaper (measured on btrfs per commit: 0.2 I/Os and 11 KiB
against 14 and 164 KiB; synchronous=FULL would be 27 and 304 KiB). WAL maps its index file, and on a full btrfs the
first store to that mapping kills the process with SIGBUS (measured). A reader without write permission in the directory
also cannot read a WAL database after its writer has ended. So commits are kept few instead. With synchronous=NORMAL, a
power cut at the worst moment could corrupt the file; it is then renamed like any damaged file.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from sqlite3 import Connection as Connection  # noqa: PLC0414 - record names it, and only this module knows sqlite3
from typing import Self, TypeVar

from journalkeeper.history import state
from journalkeeper.history.schema import MIGRATIONS, VERSION
from journalkeeper.model.errors import BusyError, FileError, KeeperError, NeedsRootError

T = TypeVar("T")

APPLICATION_ID = 0x4A6B7031
"""The value of PRAGMA application_id in our databases: a file with another value is foreign."""

BUSY_S = 5.0
"""How long to wait for another process's transaction; readers and writers take milliseconds."""

MODE = 0o640

READ_BYTES = 1 << 20


class RecordLockedError(BusyError):
    """Another process holds a lock on the record's file."""


class _UnusableError(Exception):
    """The file cannot be used as our database; `why` is the suffix for its new name."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Database:
    """The SQLite file at `path`, with the schema of schema.py.

    `set_aside` is the new path of a damaged file, or None. `vanished` is true after the file was removed while it was
    open and a new one was made. One thread at a time may use it. A read-only database that does not exist is empty.
    """

    def __init__(self, path: str, *, read_only: bool) -> None:
        self.path = path
        self.set_aside: str | None = None
        self.vanished = False
        self._read_only = read_only
        self._identity: tuple[int, int] | None = None
        self._connection: Connection | None = None
        self.read(lambda connection: None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; an open transaction is rolled back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Call `work` with the open connection, and return its result. `work` may run twice.

        `work` must fetch all rows, because an open cursor blocks writers.

        Raises: NeedsRootError without the permission; BusyError if the file was locked for BUSY_S; FileError (ENOSPC,
            EROFS, EIO); KeeperError for a damaged read-only file, and for a number beyond 63 bits.
        """
        return self._run_or_replace("read the history", work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction, commit it and return its result; `work` may run twice.

        Raises: as `read`; then nothing that `work` wrote is in the file.
        """

        def transaction(connection: Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            result = work(connection)
            connection.execute("COMMIT")
            return result

        return self._run_or_replace("write the history", transaction)

    def _run_or_replace(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Run `work` on an open connection. If the database is unusable twice, rename it and run `work` on a new one.

        Raises: KeeperError if the unusable database was opened read-only, or if the new one is unusable, too.
        """
        try:
            return self._run_with_retry(doing, work)
        except _UnusableError as error:
            if self._read_only:
                what = f"{self.path}: the history is {error.why}; the next run as root renames it and starts a new one"
                raise KeeperError(what) from error
            self._move_aside(error.why)
        try:
            return self._run_once(doing, work)
        except _UnusableError as error:
            raise KeeperError(f"{self.path}: the new history is {error.why} too: is the disk failing?") from error

    def _run_with_retry(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Run `work` and return its result. If the file is unusable, run `work` a second time.

        After each failure the whole file is read, to find out whether the disk is the cause.

        Raises: FileError if the disk cannot read the file; _UnusableError if the second run failed, too.
        """
        try:
            return self._run_once(doing, work)
        except _UnusableError:
            _read_through(self.path)
        try:
            return self._run_once(doing, work)
        except _UnusableError:
            _read_through(self.path)
            raise

    def _run_once(self, doing: str, work: Callable[[Connection], T]) -> T:

        with ExitStack() as undo:
            undo.callback(self.close)
            try:
                done = work(self._open())
            except sqlite3.DatabaseError as error:
                raise _translate_error(error, doing, self.path) from error
            except OverflowError as error:  # a parameter of more than 63 bits
                raise KeeperError(f"{self.path}: cannot {doing}: {error}") from error
            undo.pop_all()
        return done

    def _open(self) -> Connection:
        """Return the open connection, or a new one if none is open or the file at `path` was replaced."""
        identity = _identity(self.path)
        if self._connection is not None and identity == self._identity:
            return self._connection
        if self._identity is not None and identity != self._identity:
            self.vanished = True
        self.close()
        if identity is None and not self._read_only:
            _create(self.path)
            identity = _identity(self.path)
        self._identity = identity
        self._connection = self._connect(exists=identity is not None)
        return self._connection

    def _connect(self, *, exists: bool) -> Connection:
        """Return a connection to the file, or to an empty database in memory unless it `exists`.

        An older schema is migrated: in the file, or for a reader in a copy in memory.
        """

        # A reader who has the right to write opens for writing all the same, or it could
        # not roll back what a killed writer has left half done.
        mode = "rw" if not self._read_only or os.access(self.path, os.W_OK, effective_ids=True) else "ro"
        target = _uri(self.path, mode) if exists else ":memory:"
        connection = sqlite3.connect(target, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=exists)
        with ExitStack() as undo:
            undo.callback(connection.close)
            connection.text_factory = _text
            version = _version(connection)
            if self._read_only and exists and version == 0:  # its writer was killed before the first commit
                return self._connect(exists=False)
            if self._read_only and exists and version < VERSION:
                # A reader sees what an older version keeps as this one would have it.
                copy = undo.enter_context(closing(sqlite3.connect(":memory:", isolation_level=None)))
                connection.backup(copy)
                copy.text_factory = _text
                _migrate(copy)
                connection.close()
                connection = copy
            elif not (self._read_only and exists):
                connection.execute("PRAGMA journal_mode = TRUNCATE")
                connection.execute("PRAGMA synchronous = NORMAL")
                if version < VERSION:
                    _migrate(connection)
            connection.execute(f"PRAGMA query_only = {self._read_only:d}")
            undo.pop_all()
        return connection

    def _move_aside(self, why: str) -> None:
        """Rename the file, then its rollback journal, unless another process has already replaced the file.

        The order matters. SQLite deletes a journal without a database, but would roll the old journal into a new
        database of the same name.
        """
        if _identity(self.path) != self._identity:
            return
        aside = f"{self.path}.{why}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        try:
            os.rename(self.path, aside)
            for suffix in ("-journal", "-wal", "-shm"):
                if os.path.lexists(self.path + suffix):
                    os.rename(self.path + suffix, aside + suffix)
        except OSError as error:
            raise state.wrap_error("rename the damaged history", self.path, error) from error
        self.set_aside, self._identity = aside, None


def _migrate(connection: Connection) -> None:
    """Bring the database to the newest version, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in MIGRATIONS.get(_version(connection), ()):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _version(connection: Connection) -> int:
    """Return the schema version of an open database, 0 if it is empty.

    Raises: _UnusableError if it is foreign or of another version; sqlite3.DatabaseError if it is no database.
    """
    # One statement, so that no other process's migration falls between.
    application, version, tables = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)"
        " FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    if application == version == tables == 0:
        return 0
    if application != APPLICATION_ID:
        raise _UnusableError("foreign")
    if version != VERSION and version not in MIGRATIONS:
        raise _UnusableError("newer" if version > VERSION else "foreign")
    return int(version)


def _translate_error(error: sqlite3.DatabaseError, doing: str, path: str) -> Exception:
    """Return the error to raise for an error of SQLite while we `doing` the file at `path`.

    SQLite's error itself is returned if only a bug in journalkeeper can cause it.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _UnusableError("corrupt")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return RecordLockedError(f"{path}: cannot {doing}: another process has kept it locked for {BUSY_S:.0f} s")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) and os.geteuid() != 0:
        return NeedsRootError(f"{path}: cannot {doing}: {os.strerror(errno.EACCES)}")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_CONSTRAINT):
        return KeeperError(f"{path}: cannot {doing}: {error}")
    number = {
        sqlite3.SQLITE_FULL: errno.ENOSPC,
        sqlite3.SQLITE_READONLY: errno.EROFS,
        sqlite3.SQLITE_IOERR: errno.EIO,
    }.get(code)
    return error if number is None else FileError(doing, path, number)


def _identity(path: str) -> tuple[int, int] | None:
    """Return the (device, inode) of a file, None if it does not exist."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise state.wrap_error("stat the history", path, error) from error
    return status.st_dev, status.st_ino


def _read_through(path: str) -> None:
    """Read every byte of a database and of its rollback journal.

    Raises: FileError if the disk cannot read them (EIO).
    """
    for name in (path, f"{path}-journal"):
        try:
            with open(name, "rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    continue
        except FileNotFoundError:
            continue
        except OSError as error:
            raise state.wrap_error("read the history", name, error) from error


def _text(data: bytes) -> str:
    """Return the text in a column that may be damaged. Invalid bytes become U+FFFD."""
    return data.decode(errors="replace")


def _create(path: str) -> None:
    """Create an empty file that only its owner may write; SQLite gives its journal the same mode."""
    state.make_directory(os.path.dirname(path))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE))
    except OSError as error:
        raise state.wrap_error("create the history", path, error) from error


def _uri(path: str, mode: str) -> bytes:
    """Return the URI with which SQLite opens the file at `path` in `mode`.

    Only a URI can contain the mode; the bytes of the path that have a meaning in a URI are escaped.
    """
    quoted = os.fsencode(path).replace(b"%", b"%25").replace(b"?", b"%3f").replace(b"#", b"%23")
    return b"file:" + quoted + b"?mode=" + mode.encode()
