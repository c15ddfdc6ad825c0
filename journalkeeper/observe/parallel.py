# SPDX-License-Identifier: LGPL-2.1-or-later
"""Several searches of the kernel at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

THREADS: Final = 2
"""Three quarters of a look is the kernel's search for shared extents: two processors search in about half
the time, and of a slow disk two requests wait at once."""


def results(searches: Sequence[Callable[[], T]], *, parallel: bool) -> list[T]:
    """What the searches find, in their order; one after the other unless `parallel`.

    What is quick is not done in parallel: threads that take turns with the interpreter lose more. Where the
    kernel gives no thread (TasksMax=, RLIMIT_NPROC) they are done one after the other.

    Raises: whatever ended one of them early; no other is begun then, and none is left running.
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
