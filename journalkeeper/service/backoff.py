# SPDX-License-Identifier: LGPL-2.1-or-later
"""When the service may go on: after a failure, and after work that cost processor time. Pure: times are arguments."""

from __future__ import annotations

RETRY_S = 60.0
"""After a failure the next try ..."""

RETRY_MOST_S = 3600.0
"""... and twice as long after each that fails again, up to this."""


class Backoff:
    """When to try again what failed. `at_s` is that moment, None while nothing has failed."""

    def __init__(self) -> None:
        self._wait_s = 0.0
        self.at_s: float | None = None

    def failed(self, now_s: float) -> None:
        """It failed; a try before its moment, which something else brought about, changes nothing."""
        if self.at_s is None or now_s >= self.at_s:
            self._wait_s = min(2 * self._wait_s, RETRY_MOST_S) or RETRY_S
            self.at_s = now_s + self._wait_s

    def succeeded(self) -> None:
        """It is over."""
        self._wait_s, self.at_s = 0.0, None


class CpuShare:
    """Limits repeated work to a `share` of one processor, after `burst_s` of it that is free.

    What is spent is owed, and paid off at `share` seconds a second. The next work may begin when
    no more than `burst_s` is owed, so that cheap work never waits.
    """

    def __init__(self, share: float, burst_s: float) -> None:
        self._share = share
        self._burst_s = burst_s
        self._owed_s = 0.0
        self._at_s = 0.0

    def spend(self, cpu_s: float, now_s: float) -> None:
        """So much processor time was used until now."""
        self._owed_s = max(0.0, self._owed_s - self._share * (now_s - self._at_s)) + cpu_s
        self._at_s = now_s

    @property
    def free_at_s(self) -> float:
        """From when on the next work may begin."""
        return self._at_s + max(0.0, self._owed_s - self._burst_s) / self._share
