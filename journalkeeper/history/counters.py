# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was ever done, in numbers.

The one rule: they only grow, as a counter must, until the record is lost and all begin at 0 again.
"""

from __future__ import annotations

from typing import NamedTuple


class Counters(NamedTuple):
    """Outcomes by result, runs that came to nothing as a whole, and what the work cost and brought.

    `bytes_reclaimed` is None while no outcome knew what its file occupies: only CAP_SYS_ADMIN may
    ask that, which the service has not. `extents_removed` counts rewrites, not rotations.
    """

    done: int = 0
    skipped: int = 0
    failed: int = 0
    failed_runs: int = 0
    bytes_written: int = 0
    extents_removed: int = 0
    bytes_reclaimed: int | None = None
