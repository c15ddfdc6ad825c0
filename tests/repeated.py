# SPDX-License-Identifier: LGPL-2.1-or-later
"""One thing done again and again beside something else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(
    work: Callable[[], object], rest_s: Callable[[], float], failed: Callable[[Exception], object] | None = None
) -> Iterator[None]:
    """`work` in a thread of its own, with a rest before each time, until the block ends.

    What it raises ends it: `failed` is told of that, or the block raises it at its end.
    """
    over = threading.Event()
    raised: list[Exception] = []

    def go_on() -> None:
        try:
            while not over.wait(rest_s()):
                work()
        except Exception as error:  # noqa: BLE001 - nothing that ends the thread is lost
            (failed or raised.append)(error)

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for error in raised:
        raise error
