# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts that all probes share: schedules, samples, cleanup, and the journald that is measured.

A child process undoes all that would outlive this process. The child waits for the end of its stdin, so the cleanup is
the same whether the block ends, raises, or the process is killed.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple, TypeAlias

from journalkeeper.model.errors import FileError, KeeperError
from journalkeeper.model.schema import Count
from journalkeeper.probe import bed
from journalkeeper.probe.distribution import Limit, Series, verdict
from journalkeeper.probe.scratch_volume import undo_at_end
from journalkeeper.whole_file import require_root_only

PATIENCE_S, MOMENT_S = 10.0, 0.1
SCRATCH = "/var/tmp"  # noqa: S108 - in it a directory of our own is made, for root only


class Writes(NamedTuple):
    """The bytes that were logged, dirtied and written during a measurement."""

    logged_bytes: Count
    """The new entries in the Journal Export Format."""
    dirtied_bytes: Count
    """The pages of files that journald dirtied, without the metadata of the filesystem."""
    disk_bytes: Count
    """All writes to the disks of the filesystem of the journal, of all programs."""
    flushes: Count
    """The flushes of files by journald's threads."""


@dataclass
class Measurement:
    """The values and notes that a probe has collected so far.

    `length_s` is that of a trace. `faults` say why the figures cannot be trusted, and `losses` which messages did not
    arrive. The verdict is about the series in `judged`, or about all if it is empty.
    """

    series: list[Series]
    judged: list[Series] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    length_s: float | None = None
    writes: Writes | None = None

    def verdict(self, limit: Limit) -> str:
        """Return the losses, the causes, and whether the longest judged wait exceeds `limit`, as sentences."""
        return " ".join([*self.losses, *self.causes, verdict(self.judged or self.series, limit)])


Steps: TypeAlias = Generator[Measurement, None, None]
"""The generator of a probe: it yields one Measurement again after each sample or moment.

The Measurement gets its sums and causes at the end, also if the caller closes the generator early.
"""


def schedule(rate: float, count: int) -> Iterator[int]:
    """Sleep until each of `count` planned times, `rate` a second from now on, and yield it (CLOCK_MONOTONIC, ns)."""
    began_ns = time.monotonic_ns()
    for number in range(count):
        planned_ns = began_ns + int(number * 1e9 / rate)
        while (left_ns := planned_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)
        yield planned_ns


def sample(series: Series, waited_ns: Iterable[int], call: Callable[[], object]) -> Iterator[None]:
    """Run `call` after each item of `waited_ns`, which waits for that time, add both to `series`, and yield."""
    for planned in waited_ns:
        began_ns = time.monotonic_ns()
        call()
        series.add(began_ns, time.monotonic_ns() - began_ns, planned)
        yield


def read_lines(fd: int) -> Iterator[list[bytes]]:
    """Yield the whole lines that have arrived, without newlines, at least every MOMENT_S, until the end of the data.

    Raises: OSError.
    """
    rest = b""
    while True:
        lines: list[bytes] = []
        if select.select([fd], [], [], MOMENT_S)[0]:
            if not (chunk := os.read(fd, 1 << 20)):
                return
            *lines, rest = (rest + chunk).split(b"\n")
        yield lines


@contextmanager
def scratch(directory: str) -> Iterator[str]:
    """Yield the path of a new directory in `directory` that only its owner can use; a child process removes it.

    Raises: FileError for any OSError, also of the block; KeeperError as `require_root_only`.
    """
    try:
        require_root_only(directory)
        path = f"{directory}/.journalkeeper-{token_hex(8)}"
        # systemctl stop sends SIGTERM to every process of a unit
        with undo_at_end("sh", "-c", 'trap "" TERM; echo ready; read -r _; rm -rf "$1"', "sh", path):
            os.mkdir(path, 0o700)
            yield path
    except OSError as error:
        raise FileError.wrap("measure here", os.fsdecode(error.filename or directory), error) from error


class Target(NamedTuple):
    """The journald that is measured: its sockets' directory, process id, and journal (None for the host's)."""

    sockets: Path
    pid: int
    directory: str | None

    @classmethod
    def of(cls, daemon: bed.PrivateJournald) -> Target:
        return cls(Path(f"/proc/{daemon.pid}/root/run/systemd/journal"), daemon.pid, str(daemon.journal))


HOST: Final = Target(Path("/run/systemd/journal"), 1, None)
"""The host's journald. Process 1 has its network namespace."""


@contextmanager
def target(*, host: bool, directory: str | None) -> Iterator[Target]:
    """Yield the journald to measure: the host's, or a private one that writes below `directory` (None: SCRATCH).

    Raises: KeeperError if there is none, or it cannot start; FileError as `scratch`, also of the block; OSError.
    """
    if host:
        if not (HOST.sockets / "stdout").exists():
            raise KeeperError("no systemd-journald runs here: `journalkeeper probe syslog` starts a private one")
        yield HOST
        return
    with scratch(directory or SCRATCH) as place, bed.PrivateJournald(place) as daemon:
        yield Target.of(daemon)
