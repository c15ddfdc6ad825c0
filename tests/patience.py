# SPDX-License-Identifier: LGPL-2.1-or-later
"""Wait until another process has done something."""

from __future__ import annotations

import time
from collections.abc import Callable

TRIES = range(5)
"""For what other programs can disturb now and then: a duration, or dirty pages and the extents that they become.

A sync(2) of any program writes all dirty pages, some of them one by one.
"""

PATIENCE_S = 240.0
"""How long a test waits before it takes a program for hung. A test that passes does not wait so long."""


def eventually(true: Callable[[], object], patience_s: float = PATIENCE_S, *, pause_s: float = 0.02) -> bool:
    """Call `true` every `pause_s` until it returns a true value. Return False if it does not within `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True
