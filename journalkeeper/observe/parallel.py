# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two things at once: a look waits for the kernel, and who asked for it gets ready meanwhile.

The one rule: nothing is left running: leaving the context waits for the work's end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """`work` on a thread of its own, from entering the context on, if there is one to be had; `result` waits for it.

    Not `apart` it is done on entering: who has nothing to get ready, and stays, needs no thread
    each time, whose memory the C library keeps (5 MiB after 10 min of 300 messages a second).

    >>> with Background(lambda: 6 * 7) as question:
    ...     question.result()
    42
    """

    def __init__(self, work: Callable[[], T], *, apart: bool = True) -> None:
        self._work = work
        self._made: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="background") if apart else None

    def _run(self) -> None:
        try:
            self._made.append(self._work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error

    def __enter__(self) -> Self:
        if self._thread is not None:
            try:
                self._thread.start()
            except RuntimeError:  # the kernel gives no thread (TasksMax=, RLIMIT_NPROC)
                self._thread = None
        if self._thread is None:
            self._run()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.join()

    def result(self) -> T:
        """What `work` returned.

        Raises: whatever it raised.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._made[0]


def by_two(searches: Sequence[Callable[[], T]], *, apart: bool) -> list[T]:
    """What the searches find, in their order; `apart`, a second thread takes its share of them.

    Three quarters of a look is the kernel's search for shared extents: two processors
    search in about half the time, and of a slow disk two requests wait at once. What is
    quick is not done here: threads that take turns with the interpreter lose more.

    Raises: whatever ended one of them early; no other is begun then, and none is left running.
    """
    found: dict[int, T] = {}
    left = list(range(len(searches)))[::-1]

    def work() -> None:
        try:
            while (number := _next(left)) is not None:
                found[number] = searches[number]()
        finally:
            left.clear()  # for the other thread, if this one was ended early

    with Background(work, apart=apart) as second:
        work()
        second.result()
    return [found[number] for number in range(len(searches))]


def _next(left: list[int]) -> int | None:
    """The last of `left`, which another thread takes from, too."""
    try:
        return left.pop()
    except IndexError:
        return None
