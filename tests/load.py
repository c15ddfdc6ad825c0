# SPDX-License-Identifier: LGPL-2.1-or-later
"""A steady load on a private journald: messages by schedule, each with the moment for which it was planned."""

from __future__ import annotations

import threading
import time
from typing import Self

from journalkeeper.probe.bed import Bed, messages

FIELDS = ("MESSAGE", "LAB_USER", "LAB_PEER", "LAB_SESSION")
"""With the time two that are new in every message, as of most programs: six would fill the hash
tables of 128 MiB, at which journald rotates, in five minutes of 100 messages a second."""


class Load:
    """Logs `rate` messages a second while it is entered, each in its time: who is held up catches up.

    Each bears the moment for which it was planned (LAB_PLANNED, microseconds of CLOCK_REALTIME).
    `sent` and `sent_bytes` count what was logged.
    """

    def __init__(self, place: Bed, rate: float) -> None:
        self._journald = place.journald
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on)
        self.sent = self.sent_bytes = 0

    def _go_on(self) -> None:
        wall_s, clock_s = time.time(), time.monotonic()
        for number, fields in enumerate(messages(seed=2)):
            planned_s = number / self._rate
            if self._stop.wait(max(0.0, clock_s + planned_s - time.monotonic())):
                return
            body = {name: fields[name] for name in FIELDS}
            body["LAB_PLANNED"] = str(round((wall_s + planned_s) * 1e6))
            self.sent_bytes += sum(len(name) + len(value) for name, value in body.items())
            self._journald.log(body.pop("MESSAGE"), **body)
            self.sent += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
