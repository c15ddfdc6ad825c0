# SPDX-License-Identifier: LGPL-2.1-or-later
"""The surroundings of a command: its arguments, its output, and access to the engine, the service and the history."""

from __future__ import annotations

import argparse
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from journalkeeper.bus.client import Service
from journalkeeper.bus.contract import MOST_CHARACTERS
from journalkeeper.cli.output import Output
from journalkeeper.config import Config, files, validation
from journalkeeper.engine import Engine
from journalkeeper.health.evidence import Hung, Recorded, Unknown
from journalkeeper.history import state
from journalkeeper.history.store import Record
from journalkeeper.keeper import BusyBusError, HungError, Keeper
from journalkeeper.model import Request
from journalkeeper.model.errors import KeeperError, NeedsRootError, UsageError
from journalkeeper.model.manager import Manager
from journalkeeper.model.units import DAY_US


class Context:
    """One run of a command: its start `now_us`, `privileged` for root, and the history's `state_directory`."""

    def __init__(self, args: argparse.Namespace, output: Output) -> None:
        self._args = args
        self.output = output
        self.state_directory = state.default_directory()
        self.privileged = os.geteuid() == 0
        self.now_us = time.time_ns() // 1000

    def read_config(self) -> Config:
        """Return the configuration, read anew: from --config FILE, else from the search path of journalkeeper.conf.

        Raises: ConfigError for wrong lines; FileError for a file that cannot be read.
        """
        given = self._args.config
        found = files.read_assignments("journalkeeper.conf", subdir="") if given is None else files.parse_file(given)
        return validation.make_config(found)

    def make_engine(self, config: Config | None = None, *, patient: bool = False) -> Engine:
        """Return an engine for `config`, by default the configuration on disk.

        Root's engine measures disk bytes. With `patient`, which only the service sets, the engine follows flushes and
        does not measure, and -D need not exist.

        Raises: as `read_config` and `list_directories`.
        """
        return Engine(
            config or self.read_config(),
            directories=self.list_directories(patient=patient),
            state_directory=self.state_directory,
            disk_bytes=self.privileged and not patient,
            follows=patient,
        )

    def find_service(self) -> Service | None:
        """Return a connection to the running service, which the caller closes, or None if no bus or no service runs, or
        if the command is not about the host's service.

        Raises: HungError if the service does not answer; BusyBusError if the bus does not; KeeperError for a refusal.
        """
        return Service.find() if self.means_service() else None

    def read_service(self) -> Manager | Hung | Unknown | None:
        """Return the running service's report, or None where `find_service` does.

        Return Hung if the service or the bus does not answer, and Unknown with the reason if the service refuses.
        """
        try:
            with self.find_service() or nullcontext() as service:
                return service.found if service else None
        except HungError:
            return Hung()
        except BusyBusError as error:
            return Hung(str(error), is_bus_busy=True)
        except KeeperError as error:
            return Unknown(str(error))

    def require_service(self) -> Service:
        """Return a connection to the running service, which the caller closes.

        Raises: UsageError unless `means_service`; KeeperError if no service runs; as `find_service`.
        """
        if not self.means_service():
            raise UsageError("only the host's service can do this: leave out -D, --config and STATE_DIRECTORY=")
        if (service := self.find_service()) is None:
            raise KeeperError("the service is not running or not on D-Bus: see systemctl status journalkeeper")
        return service

    def means_service(self) -> bool:
        """Return whether the command means the host's service: no -D, no --config, and the default state directory."""
        return self._args.directory is None and self._args.config is None and self.state_directory == state.DEFAULT

    def find_service_for(self, asked: Request) -> Service | None:
        """Return a connection to the running service, which the caller closes, or None if it cannot carry out `asked`.

        It cannot if it watches other directories than Directories=, or if a path is not below one (`_is_below`) or not
        ASCII, or if all together are too long. None before a shutdown, and for root if the bus does not answer.

        Raises: as `read_config` and `find_service`.
        """
        tops = self.read_config().watch.directories
        below = all(path.isascii() and any(_is_below(path, top) for top in tops) for path in asked.paths)
        fits = below and sum(map(len, asked.paths)) <= MOST_CHARACTERS
        try:
            service = self.find_service() if fits and not asked.before_shutdown else None
        except BusyBusError:
            if not self.privileged:
                raise
            return None
        if service is None or set(service.found.directories or ()) == set(tops):
            return service
        service.close()
        return None

    @contextmanager
    def open_keeper(self, asked: Request) -> Iterator[Keeper]:
        """Yield the running service if `find_service_for` returns it, else the engine in this process.

        Raises: as `find_service_for`, or else as `make_engine`.
        """
        with self.find_service_for(asked) or nullcontext() as service:
            yield service or self.make_engine()

    def watches(self, path: str) -> bool:
        """Return whether the absolute `path` leads to one of Directories=, or is below one without a link between.

        Raises: as `read_config`.
        """
        tops = self.read_config().watch.directories
        places = {*tops, *map(os.path.realpath, tops)}
        return os.path.realpath(path) in places or any(_is_below(path, place) for place in places)

    @contextmanager
    def open_record(self) -> Iterator[Record]:
        """Open the history for reading; a missing one is empty. After the block, unreadable rows are noted on stderr.

        Raises: NeedsRootError without the right to read it; FileError; KeeperError: damaged, foreign, newer or locked.
        """
        with Record(self.state_directory, read_only=True) as record:
            yield record
            self.output.note(*record.ignored)

    def read_history(self, since_us: int, directory: str | None = None) -> Recorded | Unknown:
        """Return the contents of the history as `open_record` does, or Unknown with the reason if it cannot be read.

        `since_us` and `directory` restrict only the actions. The written bytes are those of the last 24 hours.
        """
        try:
            with self.open_record() as record:
                return Recorded(
                    entries=tuple(record.list_entries([directory] if directory else [], since_us)),
                    totals=tuple(record.list_totals()),
                    last_run=record.read_last_run(),
                    waiting=tuple(record.list_waits().values()),
                    written_day_bytes=record.sum_written_bytes(self.now_us - DAY_US, self.now_us),
                    made_nocow=record.list_nocow_directories(self.now_us),
                    counters=record.read_counters(),
                )
        except KeeperError as error:
            denied = isinstance(error, NeedsRootError)
            return Unknown("only root may read the history" if denied else str(error), needs_root=denied)

    def list_directories(self, *, patient: bool = False) -> tuple[str, ...] | None:
        """Return a tuple with the absolute path of -D, which is not examined if `patient`; or None without -D.

        Raises: KeeperError for a -D that is no directory; OSError for a -D that is missing or cannot be examined.
        """
        given = self._args.directory
        if given is None:
            return None
        if not patient and not stat.S_ISDIR(os.stat(given).st_mode):
            raise KeeperError(f"{given}: is not a directory; -D takes a directory such as /var/log/journal")
        return (os.path.abspath(given),)


def _is_below(path: str, top: str) -> bool:
    """Return whether `path` is below `top`, not `top` itself, and no link is between. Both may be links."""
    way, below = os.path.dirname(path), top.rstrip("/")
    if not path.startswith(f"{below}/"):
        return False
    return os.path.realpath(way) == f"{os.path.realpath(top).rstrip('/')}{way[len(below) :]}"
