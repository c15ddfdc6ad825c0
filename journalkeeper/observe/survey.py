# SPDX-License-Identifier: LGPL-2.1-or-later
"""The slow parts of a look: the extents of open files and their disk bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from journalkeeper.btrfs import disk, placement
from journalkeeper.model import JournalFile, Kind, Reason, State
from journalkeeper.model.errors import InternalError, catch_errors
from journalkeeper.observe import file_row

T = TypeVar("T")

THREADS: Final = 2
"""The search for shared extents takes three quarters of a look. Two processors do it in about half the time, and a slow
disk can work on two requests at once.
"""

WORTH_A_THREAD: Final = 8
"""The number of files from which a second thread pays for its start.

With disk bytes it pays from one file on (4 ms less for a 34 MiB file of 7,700 extents). The service never asks for them
here.
"""

Fields = dict[str, Any]
"""Fields of a JournalFile."""


class Opened(NamedTuple):
    """An open file, its row so far, and the row's index `number` in its directory."""

    number: int
    fd: int
    row: JournalFile


def complete_rows(opened: Sequence[Opened], *, with_disk_bytes: bool) -> list[JournalFile]:
    """Return the rows of open files with their extents and, if `with_disk_bytes`, their disk bytes."""
    if not opened:
        return []
    kinds = [_measure_extents, _measure_disk_bytes] if with_disk_bytes else [_measure_extents]
    searches = [partial(_guard_search, partial(search, one)) for search in kinds for one in opened]
    found = run_searches(searches, parallel=with_disk_bytes or len(opened) >= WORTH_A_THREAD)
    lies, rest = found[: len(opened)], found[len(opened) :]
    fields = [one | other for one, other in zip(lies, rest, strict=True)] if rest else lies
    return [one.row._replace(**some) for one, some in zip(opened, fields, strict=True)]


def _measure_extents(opened: Opened) -> Fields:
    """Return the extents of an open file. The dirty pages of a finished file are written back first.

    An fsync returns before btrfs has added the written extents to the file (btrfs_finish_ordered_io), by seconds on a
    busy machine. No stat shows when they are added, so an earlier row would stay wrong for good.
    """
    archived = opened.row.kind is not Kind.ACTIVE and opened.row.state is not State.ONLINE
    return {"extents": placement.survey(opened.fd, sync=archived, per_mib=opened.row.kind is Kind.ACTIVE)}


def _measure_disk_bytes(opened: Opened) -> Fields:
    """Return the disk bytes of an open file."""
    return {"disk_bytes": disk.read_disk_bytes(opened.fd)}


def _run_search(search: Callable[[], Fields]) -> Fields:
    """Return the fields that `search` finds; if it raises OSError, return the fields for a problem."""
    try:
        return search()
    except OSError as error:
        why, detail = file_row.explain_error(error)
        return {"problem": why, "problem_detail": detail}


def _guard_search(search: Callable[[], Fields]) -> Fields:
    """Run `search` and turn any other error into a problem, so that one file's failure does not end the look."""
    found = catch_errors(partial(_run_search, search))
    if isinstance(found, InternalError):
        return {"problem": Reason.INTERNAL_ERROR, "problem_detail": found.detail}
    return found


def run_searches(searches: Sequence[Callable[[], T]], *, parallel: bool) -> list[T]:
    """Run the searches and return their results in the same order; one after the other unless `parallel`.

    Short searches lose time in threads, because the threads wait for the interpreter. If the kernel refuses a thread
    (TasksMax=, RLIMIT_NPROC), the searches run one after the other.

    Raises: the error of the first search that failed; then no other search starts or keeps running.
    """
    if not parallel:
        return [search() for search in searches]
    with ThreadPoolExecutor(THREADS, thread_name_prefix="search") as pool:
        try:
            pending = [pool.submit(search) for search in searches]
        except RuntimeError:  # can't start new thread
            pool.shutdown(cancel_futures=True)
            return [search() for search in searches]
        try:
            return [one.result() for one in pending]
        finally:
            pool.shutdown(cancel_futures=True)
