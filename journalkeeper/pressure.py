# SPDX-License-Identifier: LGPL-2.1-or-later
"""For how much of the time tasks wait for I/O, as the kernel counts it (PSI).

The one rule: where the kernel does not say, nothing is known, and nothing waits for it.
"""

from __future__ import annotations

from typing import Final

PRESSURE: Final = "/proc/pressure/io"


def pressure_percent(path: str = PRESSURE) -> float | None:
    """For how much of the last 10 s some task waited for I/O; None where the kernel does not say.

    Source: Documentation/accounting/psi.rst. Without psi=1 the file is there and reading it
    fails (EOPNOTSUPP); in a sandbox it may be missing.
    """
    try:
        with open(path, encoding="ascii") as file:
            words = file.readline().split()
    except OSError:
        return None
    return next((float(word[6:]) for word in words if word.startswith("avg10=")), None)
