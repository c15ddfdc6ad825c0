# SPDX-License-Identifier: LGPL-2.1-or-later
"""The times at which the service may continue, after a failure or after costly work. Pure: times are arguments."""

from __future__ import annotations

from math import inf

RETRY_S = 60.0
"""The delay of the first retry after a failure ..."""

RETRY_MOST_S = 3600.0
"""... doubled after each further failure, up to this."""


class Backoff:
    """The time of the next retry: `at_s`, infinite while nothing has failed."""

    def __init__(self) -> None:
        self._wait_s, self.at_s = 0.0, inf

    def note(self, now_s: float, *, failed: bool) -> None:
        """Record the result of a try at `now_s`. A success ends the retries.

        After a failure the next retry comes RETRY_S later, doubled with each failure in a row. A try that came before
        its time does not change the time of the next retry.
        """
        if not failed:
            self._wait_s, self.at_s = 0.0, inf
        elif self.at_s == inf or now_s >= self.at_s:
            self._wait_s = min(2 * self._wait_s, RETRY_MOST_S) or RETRY_S
            self.at_s = now_s + self._wait_s


class CpuShare:
    """Limits repeated work to a `share` of one processor, after `burst_s` of work that is free.

    Work makes a debt, which shrinks by `share` seconds a second. The next work may begin when the debt is at most
    `burst_s`, so that cheap work never waits.
    """

    def __init__(self, share: float, burst_s: float) -> None:
        self._share = share
        self._burst_s = burst_s
        self._owed_s = 0.0
        self._at_s = 0.0

    def spend(self, cpu_s: float, now_s: float) -> None:
        """Record that work has just used `cpu_s` seconds of processor time. `now_s` is the present time."""
        self._owed_s = max(0.0, self._owed_s - self._share * (now_s - self._at_s)) + cpu_s
        self._at_s = now_s

    @property
    def free_at_s(self) -> float:
        """The time in seconds, on the clock of `spend`, from which more work may begin.

        Earlier work may leave a debt of `burst_s` seconds, which delays nothing. A larger debt delays the next work
        until it has shrunk to that. Without delay, the time is that of the last `spend`.
        """
        return self._at_s + max(0.0, self._owed_s - self._burst_s) / self._share
