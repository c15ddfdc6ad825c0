# SPDX-License-Identifier: LGPL-2.1-or-later
"""The times at which the service may continue, after a failure or after costly work. Pure: times are arguments."""

from __future__ import annotations

RETRY_S = 60.0
"""The delay of the next plan while another process holds what a run needs, or after an action that was not done."""

FAILED_S = 300.0
"""The delay of the next look after a look that failed as a whole, or while the kernel refuses a watch."""


class CpuShare:
    """Limits repeated work to a `share` of one processor, after `burst_s` of work that is free."""

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
        """The time in seconds, on the clock of `spend`, from which more work may begin."""
        return self._at_s + max(0.0, self._owed_s - self._burst_s) / self._share
