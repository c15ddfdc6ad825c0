# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service's state as it is published to clients."""

from __future__ import annotations

from typing import NamedTuple


class Manager(NamedTuple):
    """The service's properties; None is an unknown value, also if an older version does not publish it.

    `health` is ok, act or unknown. `state` is idle, waiting, working, paused or degraded. `budget_left_bytes` is None
    without a limit, too.
    """

    version: str | None = None
    health: str | None = None
    health_reasons: list[str] | None = None
    state: str | None = None
    state_reason: str | None = None
    directories: list[str] | None = None
    files: int | None = None
    extents: int | None = None
    active_extents: int | None = None
    fragmented_files: int | None = None
    window_open: bool | None = None
    next_flush_us: int | None = None
    last_run_us: int | None = None
    bytes_written: int | None = None
    bytes_reclaimed: int | None = None
    budget_left_bytes: int | None = None
    intake_delay_p99_us: int | None = None
    paused: bool | None = None
    limits: list[str] | None = None
    bytes_reclaimed_total: int | None = None
