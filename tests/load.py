# SPDX-License-Identifier: LGPL-2.1-or-later
"""A steady load on a private journald: messages at planned times."""

from __future__ import annotations

import threading
import time
from typing import Self

from journalkeeper.probe.bed import Bed, generate_messages

FIELDS = ("LAB_USER", "LAB_PEER", "LAB_SESSION")
"""Few fields are new in every message, as in those of most programs: six would fill the hash tables of 128 MiB, at
which journald rotates, in five minutes of 100 messages a second."""


class Load:
    """Logs `rate` messages a second during the block, with the identifier "load". A late message is sent at once.

    `sent` and `sent_bytes` count what was logged.
    """

    def __init__(self, place: Bed, rate: float) -> None:
        self._journald = place.journald
        self._rate = rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._log)
        self.sent = self.sent_bytes = 0

    def _log(self) -> None:
        began_s = time.monotonic()
        for number, fields in enumerate(generate_messages(seed=2)):
            if self._stop.wait(max(0.0, began_s + number / self._rate - time.monotonic())):
                return
            body = {name: fields[name] for name in FIELDS}
            self._journald.log(fields["MESSAGE"], SYSLOG_IDENTIFIER="load", **body)
            self.sent += 1
            self.sent_bytes += len(fields["MESSAGE"]) + sum(len(name) + len(value) for name, value in body.items())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
