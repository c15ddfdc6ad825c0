# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a kind of attack came to: one line of JSON, the same for each kind."""

from __future__ import annotations

import json
import sys
from typing import NamedTuple


class Verdict(NamedTuple):
    """The points that were tried, and what they cost.

    `lost` counts files or entries that are no longer what they were, `unclean` what is left behind or came
    without a reason; `worst_outage_s` is the longest time for which the service did no work though it could have.
    """

    kind: str
    points: int
    lost: int
    unclean: int
    worst_outage_s: float
    seed: int

    def print(self) -> int:
        """Say it on stdout; the exit status."""
        row = self._replace(worst_outage_s=round(self.worst_outage_s, 1))._asdict()
        sys.stdout.write(f"{json.dumps(row)}\n")
        sys.stdout.flush()
        return int(bool(self.lost or self.unclean))
