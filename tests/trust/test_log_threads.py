# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was said already is kept by the worker and by the event loop: neither may break the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from journalkeeper.service.daily_log import DailyLog
from journalkeeper.service.log import INFO, WARNING
from tests.trust.services import listener


class Interrupted(frozenset[str]):
    """Names to keep, in whose middle another thread has its turn."""

    during: Callable[[], None] = staticmethod(lambda: None)

    def __contains__(self, one: object) -> bool:
        self.during()
        return super().__contains__(one)


def test_what_the_loop_says_while_the_worker_forgets_is_remembered() -> None:
    """Without a lock it ended the service's look: RuntimeError, dictionary changed size during iteration."""
    said: list[str] = []
    daily = DailyLog(listener(said))
    daily.log("file", INFO, "mended")
    kept = Interrupted({"bus"})
    threads: list[threading.Thread] = []

    def during() -> None:
        """Let the other thread do it, once, and wait for it a little: it may have to wait for us."""
        if not threads:
            threads.append(threading.Thread(target=daily.log, args=("bus", WARNING, "off the bus")))
            threads[0].start()
            threads[0].join(0.3)

    kept.during = during
    daily.retain(kept)
    (speaker,) = threads
    speaker.join()
    daily.log("bus", WARNING, "off the bus")
    assert said == ["mended", "off the bus"]
