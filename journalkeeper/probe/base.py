# SPDX-License-Identifier: LGPL-2.1-or-later
"""The parts that all probes share: waits, schedules, lines of a program, cleanup, and the record of a measurement.

Every wait is stored, and a percentile is one of the values.

A child process undoes all that would outlive this process. The child waits for the end of its stdin, so the cleanup is
the same whether the block ends, raises, or the process is killed.
"""

from __future__ import annotations

import os
import select
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Annotated, Final, NamedTuple

from journalkeeper.model.errors import FileError
from journalkeeper.model.schema import Count, Key, Seconds
from journalkeeper.model.units import quantile, spell_time
from journalkeeper.probe.scratch_volume import undo_at_end
from journalkeeper.whole_file import require_root_only

PATIENCE_S, MOMENT_S = 10.0, 0.1
PER_MILLES: Final = (500, 900, 990, 999)
ABOVE: Final = 10
"""A percentile needs this many values above it; else it is unknown."""


@dataclass
class Series:
    """Waits in nanoseconds, in the order in which they ended."""

    name: str
    waits_ns: array[int] = field(default_factory=lambda: array("q"))


class Statistics(NamedTuple):
    """A series in the answer of `probe`."""

    name: str
    waits: Annotated[Count, Key("count")]
    total_s: Seconds
    mean_s: Seconds | None
    p50_s: Seconds | None
    p90_s: Seconds | None
    p99_s: Seconds | None
    p99_9_s: Seconds | None
    worst_s: Seconds | None


def compute_statistics(series: Series) -> Statistics:
    """Return statistics. Without waits, all but the sums are None; so is a percentile that fewer than ABOVE exceed."""
    ordered = [wait_ns / 1e9 for wait_ns in sorted(series.waits_ns)]
    count, total_s = len(ordered), sum(ordered)
    percentiles = (
        quantile(ordered, per_mille) if count * (1000 - per_mille) // 1000 >= ABOVE else None
        for per_mille in PER_MILLES
    )
    known = (total_s / count, *percentiles, ordered[-1]) if count else [None] * 6
    return Statistics(series.name, count, total_s, *known)


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
    """The values and notes that a probe has collected so far. It is complete when the probe ends or is interrupted.

    `length_s` is that of a trace. `faults` say why the figures cannot be trusted, `losses` which messages did not
    arrive, and `causes` explain the waits. The verdict is about the series in `judged`, or about all if it is empty.
    """

    series: list[Series] = field(default_factory=list)
    judged: list[Series] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    length_s: float | None = None
    writes: Writes | None = None

    def describe_verdict(self, limit_ns: int, source: str) -> str:
        """Return losses, causes and longest wait: none, within `source`'s limit, or how many in its series are over."""
        limit = f"{spell_time(limit_ns / 1e9)} ({source})"
        slowest = max(self.judged or self.series, key=lambda series: max(series.waits_ns, default=0))
        worst_ns = max(slowest.waits_ns, default=0)
        worst = spell_time(worst_ns / 1e9)
        if not slowest.waits_ns:
            said = f"No wait was measured; the limit is {limit}."
        elif worst_ns <= limit_ns:
            said = f"OK: the longest wait, {worst}, is within {limit}."
        else:
            late = sum(wait_ns > limit_ns for wait_ns in slowest.waits_ns)
            over = f"{late:,} of {len(slowest.waits_ns):,} waits ({slowest.name}) {'is' if late == 1 else 'are'} over"
            said = f"Slow: {over} {limit}, the longest {worst}. `journalkeeper doctor` looks for the cause."
        return " ".join([*self.losses, *self.causes, said])


def schedule(rate: float, count: int) -> Iterator[int]:
    """Sleep until each of `count` planned times, `rate` a second, and yield it (CLOCK_MONOTONIC, ns).

    The first is the time of the first request. A slow caller gets each time late, and misses none.
    """
    began_ns = time.monotonic_ns()
    for number in range(count):
        planned_ns = began_ns + int(number * 1e9 / rate)
        while (left_ns := planned_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)
        yield planned_ns


def read_lines(fd: int) -> Iterator[list[bytes]]:
    """Yield the whole lines that have arrived, without newlines, until the end of the data.

    Yield [] if data ended no line, or none came in MOMENT_S. A last line without newline is dropped. Raises: OSError.
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
