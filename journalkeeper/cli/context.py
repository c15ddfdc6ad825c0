# SPDX-License-Identifier: LGPL-2.1-or-later
"""What every command is given: its arguments, its output, and ways to the engine, the service and the record."""

from __future__ import annotations

import argparse
import os
import stat
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from journalkeeper.cli import backend
from journalkeeper.cli.output import Output
from journalkeeper.cli.times import parse_time_us
from journalkeeper.history import state
from journalkeeper.history.record import Record
from journalkeeper.model import Host, Plan, Request
from journalkeeper.model.errors import KeeperError, UsageError
from journalkeeper.model.progress import Progress
from journalkeeper.model.run import Report

if TYPE_CHECKING:
    from journalkeeper.bus.client import Service
    from journalkeeper.config import Config
    from journalkeeper.engine import Engine


class EngineLike(Protocol):
    """The part of engine.Engine that commands use."""

    def look(self, request: Request) -> Host: ...
    def plan(self, request: Request) -> Plan: ...
    def judged(self, request: Request, *, watch_disks: bool = True) -> tuple[Host, Plan]: ...
    def run(self, request: Request, *, on_progress: Callable[[Progress], None], stop: Callable[[], bool]) -> Report: ...


class Context:
    """One run of a command. `engine` stands in for the engine that the configuration asks for."""

    def __init__(self, args: argparse.Namespace, output: Output, engine: EngineLike | None = None) -> None:
        self._args = args
        self._engine = engine
        self.output = output
        self.state_directory = state.default_directory()
        self.privileged = os.geteuid() == 0
        self.now_us = time.time_ns() // 1000

    def config(self, file: str | None = None) -> Config:
        """The configuration: `file` or --config FILE, else the search path of journalkeeper.conf.

        Raises: ConfigError; OSError for a --config FILE that cannot be read.
        """
        from journalkeeper.config import files, validation  # noqa: PLC0415 - `status` reads none, and needs no pydantic

        given = self._args.config if file is None else file
        if given is None:
            return validation.from_assignments(files.assignments("journalkeeper.conf", subdir=""))
        return validation.from_assignments(files.parse_file(given))

    def time_us(self, text: str | None) -> int | None:
        """What --since= or --until= says. Raises: UsageError."""
        try:
            return None if text is None else parse_time_us(text, self.now_us)
        except ValueError as error:
            raise UsageError(str(error)) from error

    def engine(self) -> EngineLike:
        """The engine, with the configuration, -D, and for root what files occupy on disk.

        Raises: as `config`; KeeperError for a -D that is no directory; PermissionError (EACCES).
        """
        if self._engine is not None:
            return self._engine
        return self.new_engine(disk_bytes=self.privileged)

    def new_engine(self, *, disk_bytes: bool = False, patient: bool = False) -> Engine:
        """The engine itself, anew with the configuration as it is now.

        A `patient` one, the service's, stays, and its -D may come to be later.

        Raises: as `engine`.
        """
        from journalkeeper.engine import Engine  # noqa: PLC0415 - pages are made without its libraries

        return Engine(
            self.config(),
            directories=self._directories(patient=patient),
            state_directory=self.state_directory,
            disk_bytes=disk_bytes,
            follows=patient,
        )

    def running(self) -> Service | None:
        """The running service, to be closed; None if there is none, or another host's journal is meant."""
        return None if self._engine is not None else backend.running(self._args, self.state_directory)

    def needed(self) -> Service:
        """The running service, to be closed. Raises: KeeperError if there is none."""
        service = self.running()
        if service is None:
            raise KeeperError(f"the service is {backend.ABSENT}")
        return service

    def means_service(self) -> bool:
        """Whether the command line is about this host's service: no -D, no --config, no state of its own."""
        return backend.is_meant(self._args, self.state_directory)

    def service(self, asked: Request) -> Service | None:
        """The running service if `asked` is for it to do, to be closed; None if it is for `engine`.

        Raises: as `config`.
        """
        if self._engine is not None:
            return None
        return backend.for_request(asked, self._args, self.state_directory, self._watched)

    def _watched(self) -> tuple[str, ...]:
        """The directories that the configuration names."""
        return self.config().watch.directories

    def record(self) -> Record:
        """The record, to be read. Raises: NeedsRootError without the right to; KeeperError if it is damaged."""
        return Record(self.state_directory, read_only=True)

    def _directories(self, *, patient: bool) -> tuple[str, ...] | None:
        given = self._args.directory
        if given is None:
            return None
        try:
            is_directory = stat.S_ISDIR(os.stat(given).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_directory = False
        if not (is_directory or patient):
            raise KeeperError(f"{given}: no such directory; -D takes a directory such as /var/log/journal")
        return (os.path.abspath(given),)
