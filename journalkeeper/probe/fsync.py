# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long an fsync takes where the journal is: alone, and beside a writer elsewhere on the volume.

The file that is synced has a name and is where the journal is, NOCOW as new files are there: btrfs
logs no inode without a name, so the fsync of one looks cheap.
"""

from __future__ import annotations

import os
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from journalkeeper.btrfs import inode
from journalkeeper.lab.journald import machine_id
from journalkeeper.model.errors import FileError
from journalkeeper.probe import who
from journalkeeper.probe.base import Measurement, Steps, floor, sample, schedule, scratch
from journalkeeper.probe.base import wall_ns as wall
from journalkeeper.report.distribution import Series

BLOCK: Final = b"x" * 4096
BUSY: Final = (0.0, 0.05, 0.20)
"""Shares of the time in which the writer keeps the volume at work: measured after one another."""

CHUNK: Final = b"y" * (64 << 10)
LENGTH: Final = 16 << 20


def journal_directory(asked: Namespace) -> str:
    """Where journald writes: this machine's directory in the journal that is named, or that itself."""
    directory = str(asked.directory or "/var/log/journal")
    own = f"{directory}/{machine_id()}"
    return own if os.path.isdir(own) else directory


@contextmanager
def measured(asked: Namespace) -> Iterator[Measurement]:
    """Sync a file of ours as `asked` says, or with --who watch whoever syncs."""
    if asked.who is not None:
        with who.measured(asked) as found:
            yield found
        return
    with scratch(journal_directory(asked)) as place:
        path, other = f"{place}/synced", f"{place}/written"
        names = [f"fsync, writer {share:.0%} busy" if share else "fsync alone" for share in BUSY]
        found = Measurement([Series(name, planned=True) for name in names], _sink(), wall_ns=wall())
        with open(path, "wb", buffering=0) as file:
            _synced(file.fileno())  # the first one logs the new directory, too
            nocow = "NOCOW" if _is_nocow(file.fileno()) else "datacow"
            found.notes.append(f"{place}: {nocow}, {len(BLOCK)} bytes and an fsync, {asked.rate:g} times a second")
            found.steps = _steps(asked, found, file.fileno(), other)
            yield found


def _is_nocow(fd: int) -> bool:
    try:
        return inode.is_nocow(fd)
    except OSError:
        return False  # another file system, which has no such flag


def _steps(asked: Namespace, found: Measurement, fd: int, other: str) -> Steps:
    for share, series in zip(BUSY, found.series, strict=True):
        count = max(1, round(asked.rate * asked.seconds))
        with Writer(other, share) if share else nullcontext() as writer:
            yield from sample(series, schedule(asked.rate, count), lambda: _synced(fd))
        if writer is not None:
            found.notes.append(f"{series.name}: it was at work for {writer.share:.1%} of the time")


def _synced(fd: int) -> None:
    os.pwrite(fd, BLOCK, 0)
    os.fsync(fd)


def _sink() -> Series:
    """The same calls on a file in memory."""
    fd = os.memfd_create("floor")
    try:
        return floor(lambda: _synced(fd))
    finally:
        os.close(fd)


class Writer(AbstractContextManager["Writer"]):
    """Writes and syncs another file, and then rests, so that it is at work for a share of the time.

    Raises at the end what ended it: OSError (ENOSPC).
    """

    def __init__(self, path: str, share: float) -> None:
        self._path = path
        self._wanted = share
        self._stop = threading.Event()
        self._busy_s = self._began_s = 0.0
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._go_on)

    def _go_on(self) -> None:
        offset, self._began_s = 0, time.monotonic()
        try:
            with open(self._path, "wb", buffering=0) as file:
                while True:
                    began_s = time.monotonic()
                    os.pwrite(file.fileno(), CHUNK, offset)
                    os.fdatasync(file.fileno())
                    offset = (offset + len(CHUNK)) % LENGTH
                    took_s = time.monotonic() - began_s
                    self._busy_s += took_s
                    if self._stop.wait(took_s / self._wanted - took_s):
                        return
        except OSError as error:
            self._error = error

    @property
    def share(self) -> float:
        """For how much of the time it was at work."""
        return self._busy_s / max(1e-9, time.monotonic() - self._began_s)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise FileError.wrap("write", self._path, self._error)
