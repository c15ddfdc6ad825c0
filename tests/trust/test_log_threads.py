# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was said already is told by the worker and by the event loop: neither may break the other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from journalkeeper.service.daemon import INFO, WARNING
from journalkeeper.service.repeats import Told
from tests.trust.services import listener


class Interrupted(frozenset[str]):
    """Names to keep, in whose middle another thread has its turn."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def __contains__(self, one: object) -> bool:
        self.meanwhile()
        return super().__contains__(one)


def test_what_the_loop_says_while_the_worker_forgets_is_remembered() -> None:
    """Without a lock it ended the service's look: RuntimeError, dictionary changed size during iteration."""
    said: list[str] = []
    told = Told(listener(said))
    told.tell("file", INFO, "mended")
    kept = Interrupted({"bus"})
    threads: list[threading.Thread] = []

    def meanwhile() -> None:
        """Let the other thread do it, once, and wait for it a little: it may have to wait for us."""
        if not threads:
            threads.append(threading.Thread(target=told.tell, args=("bus", WARNING, "off the bus")))
            threads[0].start()
            threads[0].join(0.3)

    kept.meanwhile = meanwhile
    told.keep(kept)
    (speaker,) = threads
    speaker.join()
    told.tell("bus", WARNING, "off the bus")
    assert said == ["mended", "off the bus"]
