# SPDX-License-Identifier: LGPL-2.1-or-later
"""One SQLite file that survives: killed writers, a full disk, a corrupt or foreign file.

What SQLite says leaves here as one of our errors, or as a fresh database
with the old one set aside; never both lost. Set aside is only what two tries found damaged
while every byte could be read: SQLite reports a failed read as damage, too (EIO becomes
SQLITE_IOERR_CORRUPTFS, and that SQLITE_CORRUPT; sqlite 3.40, os_unix.c and vdbe.c).

A rollback journal and not WAL, although WAL is much cheaper (measured on btrfs per commit:
0.2 I/Os and 11 KiB against 14 and 164 KiB; synchronous=FULL would be 27 and 304 KiB). WAL
maps its index file, and on a full btrfs the first store to that mapping is a SIGBUS that
kills the process (measured); and who may not write in the directory cannot read it once
the writer is gone. So commits are kept few instead. With synchronous=NORMAL a power cut
at the worst moment could corrupt the file; it is then set aside like any other.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from sqlite3 import Connection as Connection  # noqa: PLC0414 - record names it, and only this module knows sqlite3
from typing import TypeVar

from journalkeeper.history import state
from journalkeeper.model.errors import BusyError, FileError, KeeperError, NeedsRootError

T = TypeVar("T")

APPLICATION_ID = 0x4A6B7031
"""Ours in PRAGMA application_id: a file with another one is foreign."""

BUSY_S = 5.0
"""How long to wait for another process's transaction: readers and writers take milliseconds."""

MODE = 0o640

READ_BYTES = 1 << 20


class RecordLockedError(BusyError):
    """Another process holds a lock on the record's file."""


class _UnusableError(Exception):
    """The file is not one that we can write: `why` is the word for its new name."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class Database:
    """The SQLite file at `path`, made of `migrations`: statements to get from version N to N + 1.

    `set_aside` is where a file that could not be used was moved to, None while nothing was;
    `vanished` says that the file was removed under our hands and made anew. One thread at a
    time may use it. A read-only database that does not exist is empty.
    """

    def __init__(self, path: str, migrations: tuple[tuple[str, ...], ...], *, read_only: bool) -> None:
        self.path = path
        self.set_aside: str | None = None
        self.vanished = False
        self._migrations = migrations
        self._read_only = read_only
        self._identity: tuple[int, int] | None = None
        self._connection: Connection | None = None
        self.read(lambda connection: None)

    def close(self) -> None:
        """Let go of the file; what was not committed is rolled back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read(self, work: Callable[[Connection], T]) -> T:
        """What `work` finds. It may run twice, and fetches all it needs: an open cursor bars writers.

        Raises: NeedsRootError without the right to; BusyError if it was locked for BUSY_S;
            FileError (ENOSPC, EROFS, EIO); KeeperError for a damaged file that may only be read,
            and for a number beyond 63 bits.
        """
        return self._guarded("read the record", work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, after all that it wrote was committed; it may run twice.

        Raises: as `read`; nothing of `work` is then in the file.
        """

        def transaction(connection: Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            result = work(connection)
            connection.execute("COMMIT")
            return result

        return self._guarded("write the record", transaction)

    def _guarded(self, doing: str, work: Callable[[Connection], T]) -> T:
        """Run `work` on an open connection; on a fresh database if this one is unusable at a second try, too."""
        try:
            return self._tried_twice(doing, work)
        except _UnusableError as error:
            if self._read_only:
                what = f"{self.path}: the record is {error.why}; the next run as root sets it aside and begins anew"
                raise KeeperError(what) from error
            self._put_aside(error.why)
        try:
            return self._tried(doing, work)
        except _UnusableError as error:
            raise KeeperError(f"{self.path}: the new record is {error.why} too: is the disk failing?") from error

    def _tried_twice(self, doing: str, work: Callable[[Connection], T]) -> T:
        """As `_tried`, but an error of the disk that SQLite takes for damage is raised as what it is."""
        try:
            return self._tried(doing, work)
        except _UnusableError:
            _read_through(self.path)
        try:
            return self._tried(doing, work)
        except _UnusableError:
            _read_through(self.path)
            raise

    def _tried(self, doing: str, work: Callable[[Connection], T]) -> T:

        with ExitStack() as undo:
            undo.callback(self.close)
            try:
                done = work(self._opened())
            except sqlite3.DatabaseError as error:
                raise _translated(error, doing, self.path) from error
            except OverflowError as error:  # a parameter of more than 63 bits
                raise KeeperError(f"{self.path}: cannot {doing}: {error}") from error
            undo.pop_all()
        return done

    def _opened(self) -> Connection:
        """The connection; a new one if there is none or the file at our path is no longer the one we opened."""
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
        """A connection to the file, brought up to date if we may write, or to an empty database in memory."""

        # A reader who has the right to write opens for writing all the same, or it could
        # not roll back what a killed writer has left half done.
        mode = "rw" if not self._read_only or os.access(self.path, os.W_OK, effective_ids=True) else "ro"
        target = _uri(self.path, mode) if exists else ":memory:"
        connection = sqlite3.connect(target, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=exists)
        with ExitStack() as undo:
            undo.callback(connection.close)
            connection.text_factory = _text
            version = _version(connection, len(self._migrations))
            if self._read_only and exists and version == 0:  # its writer was killed before the first commit
                return self._connect(exists=False)
            if self._read_only and exists and version < len(self._migrations):
                # A reader sees what an older version keeps as this one would have it.
                copy = undo.enter_context(closing(sqlite3.connect(":memory:", isolation_level=None)))
                connection.backup(copy)
                copy.text_factory = _text
                self._migrate(copy)
                connection.close()
                connection = copy
            elif not (self._read_only and exists):
                connection.execute("PRAGMA journal_mode = TRUNCATE")
                connection.execute("PRAGMA synchronous = NORMAL")
                if version < len(self._migrations):
                    self._migrate(connection)
            connection.execute(f"PRAGMA query_only = {self._read_only:d}")
            undo.pop_all()
        return connection

    def _migrate(self, connection: Connection) -> None:
        """Bring the database to the newest version, in one transaction."""
        connection.execute("BEGIN IMMEDIATE")
        for statements in self._migrations[_version(connection, len(self._migrations)) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(self._migrations)}")
        connection.execute("COMMIT")

    def _put_aside(self, why: str) -> None:
        """Rename the file, unless somebody else has already done so; its rollback journal after it.

        In this order: a journal that is left without its database is deleted by SQLite, while
        a new database beside the old journal would have that rolled into it.
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
            raise state.refused("set the damaged record aside", self.path, error) from error
        self.set_aside, self._identity = aside, None


def _version(connection: Connection, newest: int) -> int:
    """The schema version of an open database, 0 if it is empty.

    Raises: _UnusableError if it is not ours or newer than we know; sqlite3.DatabaseError if it is none at all.
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
    if version > newest:
        raise _UnusableError("newer")
    return int(version)


def _translated(error: sqlite3.DatabaseError, doing: str, path: str) -> Exception:
    """Our error for one of SQLite's; the same error where only a mistake of ours can be the reason."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _UnusableError("corrupt")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return RecordLockedError(f"{path}: cannot {doing}: another process has held it locked for {BUSY_S:.0f} s")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) and os.geteuid() != 0:
        return NeedsRootError(f"{path}: cannot {doing}: {os.strerror(errno.EACCES)}")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_PROTOCOL):
        return KeeperError(f"{path}: cannot {doing}: {error}")
    number = {
        sqlite3.SQLITE_FULL: errno.ENOSPC,
        sqlite3.SQLITE_READONLY: errno.EROFS,
        sqlite3.SQLITE_IOERR: errno.EIO,
    }.get(code)
    return error if number is None else FileError(doing, path, number)


def _identity(path: str) -> tuple[int, int] | None:
    """The (device, inode) of a file, None if there is none."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise state.refused("look at the record", path, error) from error
    return status.st_dev, status.st_ino


def _read_through(path: str) -> None:
    """Read every byte of a database and of its rollback journal.

    Raises: FileError if the disk does not give them (EIO).
    """
    for name in (path, f"{path}-journal"):
        try:
            with open(name, "rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    continue
        except FileNotFoundError:
            continue
        except OSError as error:
            raise state.refused("read the record", name, error) from error


def _text(data: bytes) -> str:
    """What a damaged row says where text should be: it is shown, and compared with the words that there are."""
    return data.decode(errors="replace")


def _create(path: str) -> None:
    """Make an empty file that only its owner writes, for SQLite and its journal to take the mode from."""
    state.make(os.path.dirname(path))
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE))
    except OSError as error:
        raise state.refused("make the record", path, error) from error


def _uri(path: str, mode: str) -> bytes:
    """SQLite's name for a file, any bytes in it; an option such as the mode can be given in no other way."""
    quoted = os.fsencode(path).replace(b"%", b"%25").replace(b"?", b"%3f").replace(b"#", b"%23")
    return b"file:" + quoted + b"?mode=" + mode.encode()
