# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parallel searches for extents and disk bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

THREADS: Final = 2
"""The search for shared extents takes three quarters of a look. Two processors do it in about half the time, and a slow
disk can work on two requests at once.
"""


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
