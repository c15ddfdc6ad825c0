# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 240.0
"""How long a test waits before it calls a program hung. Longer than any settle time, and nobody waits for it else."""


def eventually(true: Callable[[], object], patience_s: float = PATIENCE_S, *, pause_s: float = 0.02) -> bool:
    """Whether it came true within `patience_s`, looked at each `pause_s`."""
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True
