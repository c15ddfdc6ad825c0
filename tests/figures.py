# SPDX-License-Identifier: LGPL-2.1-or-later
"""A made-up host's numbers, all of them known."""

from __future__ import annotations

from journalkeeper.metrics.prometheus import Facts, Status
from journalkeeper.model import Reason
from journalkeeper.model.run import Counters

COUNTERS = Counters(done=5, skipped=4, failed=2, bytes_written=1000, extents_removed=600, bytes_reclaimed=800)
STATUS = Status(
    files=7,
    problem_files=1,
    fragmented_files=2,
    active_extents=40,
    sums={
        "extents": 5040,
        "ideal_extents": 300,
        "size_bytes": 11,
        "allocated_bytes": 12,
        "shared_bytes": 13,
        "disk_bytes": 14,
    },
    skipped=((Reason.BUDGET, 1), (Reason.SHARED, 2)),
    window_open=True,
    budget_bytes=15,
    budget_left_bytes=0,
)
FACTS = Facts(
    last_run_success=True,
    counters=COUNTERS,
    status=STATUS,
    last_run_timestamp_us=1_700_000_000_000_001,
    intake_delay_us=250_000,
    healthy=True,
    unhealthy_since_timestamp_us=0,
    by_service=True,
)
