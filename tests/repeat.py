# SPDX-License-Identifier: LGPL-2.1-or-later
"""Work that is repeated in a thread during a block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeat(
    work: Callable[[], object], rest_s: Callable[[], float], failed: Callable[[Exception], object] | None = None
) -> Iterator[None]:
    """Call `work` again and again in a thread during the block, with a rest of `rest_s()` seconds before each call.

    An exception of `work` ends the thread. It is passed to `failed`, or without that raised at the end of the block.
    """
    over = threading.Event()
    raised: list[Exception] = []

    def go_on() -> None:
        try:
            while not over.wait(rest_s()):
                work()
        except Exception as error:  # noqa: BLE001 - it is passed on
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
